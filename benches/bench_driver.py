"""The driver: how long the host waits for what it asks of it, call by call; what upgrades break without a word.

Latencies by the host's clock, one call a sample, while nothing else runs and nothing is watched. Every call goes to the
driver's library itself; `host_call` is what Python adds to each of them.
"""

from collections.abc import Iterator

from harness.model import Case, DeviceFacts, Work
from harness.units import KIB, MIB
from kernels import cuda_driver, driver, driver_kernels, driver_place, first_context

# Nothing here loads the card: what must find it warm runs before.
LAST = True

NODES = 100
ALLOCATED = 64 * MIB
REGISTERED = 4 * MIB
CHAIN = 2 * MIB  # as nvbandwidth's latency test
READ = 64 * MIB  # beyond every L2, should it keep what lies on the host
OVERLAPPED = 4 * MIB
COPIED = (4, 4 * KIB, 64 * KIB)

# Calls of microseconds; more of them cost nothing and make a 99th percentile that repeats.
MANY = 2000
# Calls of up to a millisecond.
SOME = 200
# Contexts take a tenth of a second and more: too few for a 99th percentile, and it is left out.
FEW = 6

PROGRAMS_PER_SM = 4


def cases(profile: str, device: DeviceFacts) -> Iterator[Case]:
    """Everything in quick but what takes seconds: contexts of fresh processes, and larger graphs and allocations."""
    yield Case("host_call", {"bytes": 4, "function": "memcpy"}, (), "latency")
    for declared in (*quick_cases(device), *(standard_cases() if profile in ("standard", "full") else ())):
        yield declared if device.kind == "cuda" else without_gpu(declared)


def quick_cases(device: DeviceFacts) -> Iterator[Case]:
    """What the gate looks at."""
    for mode, until in (("eager", "queued"), ("eager", "stream"), ("eager", "event"), ("graph", "stream")):
        yield latency("launch", mode=mode, until=until)
    yield latency("graph_instantiate", nodes=NODES)
    yield latency("graph_replay", nodes=NODES)
    for of in ("stream", "event"):
        yield latency("synchronize", of=of)
    for op in ("malloc", "free"):
        for pool in ("none", "stream"):
            yield allocation(op, pool, ALLOCATED)
    for op in ("host_register", "host_unregister"):
        yield on_host(op, device, bytes=REGISTERED)
    for until in ("loaded", "first_launch"):
        yield latency("module_load", until=until)
    for size in COPIED:
        for direction in ("h2d", "d2h"):
            yield on_host("small_copy", device, bytes=size, direction=direction)
    yield on_host("zero_copy_load", device, bytes=CHAIN)
    yield zero_copy_read(device)
    for compute in ("none", "fma"):
        yield on_host("overlap", device, bytes=OVERLAPPED, direction="h2d", compute=compute)
    yield latency("context", process="running")


def standard_cases() -> Iterator[Case]:
    """What takes longer than its place in the gate is worth."""
    yield latency("context", process="fresh")
    yield latency("graph_instantiate", nodes=10 * NODES)
    yield latency("graph_replay", nodes=10 * NODES)
    for op in ("malloc", "free"):
        yield allocation(op, "none", 16 * ALLOCATED)


def latency(op: str, **params: str | int) -> Case:
    """A call whose time is all there is to say of it."""
    return Case(op, params, (), "latency")


def allocation(op: str, pool: str, size_bytes: int) -> Case:
    """Memory of the device, had or given back."""
    return Case(op, {"bytes": size_bytes, "pool": pool}, (), "latency", memory_bytes=2 * size_bytes)


def on_host(op: str, device: DeviceFacts, **params: str | int) -> Case:
    """A call for which it matters beside which processor the host's memory lies."""
    return Case(op, {**params, "numa": device.numa}, (), "latency", defaults={"numa": "local"})


def zero_copy_read(device: DeviceFacts) -> Case:
    """A kernel that reads the host's memory through the link: bytes one way, the launch and the wait included."""
    work = Work(READ, "B", "host_link", "read by a kernel, one way")
    return Case("zero_copy_read", {"bytes": READ, "numa": device.numa}, (work,), defaults={"numa": "local"})


def without_gpu(case: Case) -> Case:
    """The same where there is no driver to ask."""
    return Case(
        case.op,
        case.params,
        case.work,
        case.kind,
        case.defaults,
        not_applicable="there is no NVIDIA driver to time",
    )


def bench_driver(case, device, measure):
    if case.op == "host_call":
        measure_operation(driver.host_call(case.params["bytes"]), MANY, measure)
    elif case.params.get("process") == "fresh":
        ordinal = int(device.torch_device.partition(":")[2] or 0)
        measure_operation(driver.first_context(lambda: first_context.time_in_child(ordinal)), FEW, measure)
    else:
        place = driver_place.Workplace(
            cuda_driver.Driver(),
            device.torch_device,
            lambda kernel: driver_kernels.compile_image(kernel, device.compute_capability),
        )
        with place:
            measure_operation(operation_of(case, device, place), shots_of(case), measure)


def operation_of(case, device, place):
    """The call that a case names."""
    params, size = case.params, case.params.get("bytes", 0)
    makers = {
        "launch": lambda: driver.launch(place, params["mode"], params["until"]),
        "graph_instantiate": lambda: driver.graph_instantiate(place, params["nodes"]),
        "graph_replay": lambda: driver.graph_replay(place, params["nodes"]),
        "synchronize": lambda: driver.synchronize(place, params["of"]),
        "malloc": lambda: driver.malloc(place, params["pool"], size),
        "free": lambda: driver.free(place, params["pool"], size),
        "host_register": lambda: driver.host_register(place, size),
        "host_unregister": lambda: driver.host_register(place, size, is_undone=True),
        "module_load": lambda: driver.module_load(place, params["until"]),
        "small_copy": lambda: driver.copy(place, params["direction"], size),
        "zero_copy_load": lambda: driver.zero_copy_chase(place, size),
        "zero_copy_read": lambda: driver.zero_copy_read(place, size),
        "overlap": lambda: driver.overlap(place, params["compute"], size, PROGRAMS_PER_SM * device.sm_count),
        "context": lambda: driver.context(place),
    }
    return makers[case.op]()


def shots_of(case):
    """How many calls: as many as a fraction of a second holds."""
    if case.op == "context":
        return FEW
    return MANY if case.op in ("launch", "synchronize", "small_copy") else SOME


def measure_operation(operation, shots, measure):
    measure(
        operation.call,
        inputs=operation.inputs,
        outputs=operation.outputs,
        reference=operation.reference,
        sets=operation.sets,
        exact=operation.exact,
        least_sqnr_db=100.0,
        shots=shots,
        operations=operation.operations,
        before=operation.before,
    )
