"""Collectives between the GPUs of one host, one rank a GPU; on a CPU gloo with two ranks for real.

Sizes and bus factors are nccl-tests' (its doc/PERFORMANCE.md): `bytes` is the larger of what one rank gives and what
it gets, and bus bytes are what each rank's link must carry of them, so that a rate can be held against the link
whatever the number of ranks.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from harness.model import Case, DeviceFacts, Work
from harness.units import GIB, KIB, MIB
from kernels.collectives import DTYPES, largest_value

LARGEST = 8 * GIB
LARGEST_ON_CPU = 2**20
FACTOR = {"smoke": 64, "quick": 64, "standard": 64, "full": 8}

# Bus over algorithm bandwidth for n ranks: nccl-tests, doc/PERFORMANCE.md, and for all-to-all and send and receive what
# its src/alltoall.cu and src/sendrecv.cu compute.
BUS_FACTORS: Mapping[str, Callable[[int], float]] = {
    "all_reduce": lambda n: 2 * (n - 1) / n,
    "all_gather": lambda n: (n - 1) / n,
    "reduce_scatter": lambda n: (n - 1) / n,
    "all_to_all": lambda n: (n - 1) / n,
    "broadcast": lambda n: 1.0,
    "reduce": lambda n: 1.0,
    "send_recv": lambda n: 1.0,
}
SUMS = ("all_reduce", "reduce_scatter", "reduce")
BETWEEN_PAIRS = ("all_to_all", "send_recv")
NO_ALGORITHM = "the algorithm that the library chose is not known"
OF_PARTS = ("all_gather", "reduce_scatter", "all_to_all")
# As torch.distributed has them: its all-reduce, reduce and broadcast take one buffer, the others two.
PLACES = {
    "all_gather": ("in_place", "out_of_place"),
    "reduce_scatter": ("in_place", "out_of_place"),
    "all_to_all": ("out_of_place",),
    "send_recv": ("out_of_place",),
}
DEFAULTS = {"launch": "queued", "buffers": "in_place", "check": "once", "hosts": 1}

# Whose all-reduce over symmetric memory, and the body that runs it.
SYMMETRIC = {
    "symm_mem": "kernels.collectives_symmetric.all_reduce",
    "triton": "kernels.collectives_triton.all_reduce",
}

OTHER_DTYPES = ("fp16", "int32", "int8", "fp8_e4m3", "fp8_e5m2")

SMALL, MEDIUM, BIG = 8, 32 * KIB, 128 * MIB
STRESS_SIZES = (64 * KIB, 16 * MIB)
# Where latency becomes bandwidth; between the sizes by 8.
GRAPH_SIZES = (64 * KIB, MIB, 4 * MIB)
GRAPH_LARGEST = 16 * MIB


def cases(profile: str, device: DeviceFacts) -> Iterator[Case]:
    """All-reduce from 8 B to 8 GiB, the rest at few sizes; `full` more of them. None of them is gated in quick."""
    if profile in ("smoke", "quick") and device.kind == "cuda":
        return
    standard = [*queued_cases(profile, device), *few_cases(device), *few_symmetric_cases(device)]
    yield from distinct([*standard, *all_cases(device)] if profile == "full" else standard)


def queued_cases(profile: str, device: DeviceFacts) -> Iterator[Case]:
    """The all-reduce in place over all sizes, in the two types of training.

    Plain launches wait in the device's queue when their turn comes, so the host's cost of launching is not in the
    time. Launching in a loop with the host in the way, as nccl-tests does, is a case of its own: `launch=loop`.
    """
    for dtype in ("fp32", "bf16"):
        for size in sizes(LARGEST if device.kind == "cuda" else LARGEST_ON_CPU, FACTOR[profile]):
            yield case_of("all_reduce", size, dtype, device)


def sizes(largest: int, factor: int) -> Iterator[int]:
    """8, 8·factor, ... up to `largest`, which is always there."""
    size = 8
    while size < largest:
        yield size
        size *= factor
    yield largest


def few_cases(device: DeviceFacts) -> Iterator[Case]:
    """What tells most of the other operations and launch modes: under a minute on two GPUs, seconds on a CPU."""
    for op in ("all_gather", "reduce_scatter", "all_to_all"):
        for size in (MEDIUM, BIG) if device.kind == "cuda" else (MEDIUM,):
            yield case_of(op, size, "fp32", device, buffers=PLACES[op][-1])
    for op in ("broadcast", "reduce", "send_recv"):
        size = BIG if device.kind == "cuda" else MEDIUM
        yield case_of(op, size, "fp32", device, buffers=PLACES.get(op, ("in_place",))[-1])
    yield barrier_case(device)
    for launch in ("loop", "graph", "eager"):
        yield case_of("all_reduce", SMALL, "fp32", device, launch=launch)
    yield case_of("all_reduce", STRESS_SIZES[0], "fp32", device, check="stress")


def all_cases(device: DeviceFacts) -> Iterator[Case]:
    """All-reduce by 8 in the two types of training, queued and in a graph; of the rest what fits into nine minutes.

    On two H200s a queued case of up to 2 MiB takes 5 to 9 s, because each group waits behind its own blocking kernel,
    and a larger one 3 to 5 s; graphs and stress should take about one. So the other operations run in float32 at both
    ends and at 128 MiB, those that sum in bfloat16 too; all-reduce in the other types at two sizes, the small one in a
    graph; loops, for those who compare with nccl-tests, in float32. What only moves bytes takes the same time in every
    type: there the types are checked under stress, and not timed. tests/benches/test_plan_time.py adds all of it up.
    """
    by_8 = list(sizes(LARGEST if device.kind == "cuda" else LARGEST_ON_CPU, 8))
    for dtype in ("fp32", "bf16"):
        yield from (case_of("all_reduce", size, dtype, device) for size in by_8)
    for dtype in OTHER_DTYPES:
        yield case_of("all_reduce", MEDIUM, dtype, device, launch="graph")
        yield case_of("all_reduce", by_8[-3], dtype, device)
    for op in BUS_FACTORS:
        yield from other_cases(op, by_8, device)
    yield from (case_of("all_reduce", size, "fp32", device, launch="loop") for size in by_8)
    yield from (case_of("all_reduce", size, "bf16", device, launch="loop") for size in by_8[-2:])
    for dtype in ("fp32", "bf16"):
        replayed = sorted({*GRAPH_SIZES, *(size for size in by_8 if size <= GRAPH_LARGEST)})
        yield from (case_of("all_reduce", size, dtype, device, launch="graph") for size in replayed)
    yield from (case_of("all_reduce", size, "fp32", device, launch="eager") for size in (SMALL, MEDIUM, MIB))
    yield from symmetric_cases(device, by_8)


def few_symmetric_cases(device: DeviceFacts) -> Iterator[Case]:
    """Our own kernels where latency counts and where they share the work, and whether they are right back to back."""
    for size in (SMALL, MEDIUM):
        yield symmetric_case("triton", "one_shot", size, "fp32", device)
    yield symmetric_case("triton", "two_shot", 2 * MIB, "fp32", device)
    yield symmetric_case("triton", "one_shot", STRESS_SIZES[0], "bf16", device, launch="queued", check="stress")


def symmetric_cases(device: DeviceFacts, by_8: Iterable[int]) -> Iterator[Case]:
    """torch's kernels over symmetric memory and ours at the sizes at which NCCL is replayed in a graph, and stress."""
    for impl in ("symm_mem", "triton"):
        for dtype in ("bf16", "fp32"):
            for size in sorted({*GRAPH_SIZES, *(size for size in by_8 if size <= GRAPH_LARGEST)}):
                yield symmetric_case(impl, "one_shot", size, dtype, device)
                if size >= MEDIUM:
                    yield symmetric_case(impl, "two_shot", size, dtype, device)
        for shots in ("one_shot", "two_shot"):
            for size in STRESS_SIZES:
                yield symmetric_case(impl, shots, size, "bf16", device, launch="queued", check="stress")


def other_cases(op: str, by_8: Sequence[int], device: DeviceFacts) -> Iterator[Case]:
    """One operation in every place and type: timed where that can differ, checked under stress everywhere."""
    places = PLACES.get(op, ("in_place",))
    if op != "all_reduce":
        yield from (case_of(op, size, "fp32", device, buffers=places[-1]) for size in (by_8[0], by_8[-1]))
        yield from (case_of(op, by_8[-3], "fp32", device, buffers=buffers) for buffers in places)
        if op in SUMS:
            yield case_of(op, by_8[-3], "bf16", device, buffers=places[-1])
        for dtype in ("bf16", *OTHER_DTYPES):
            yield case_of(op, STRESS_SIZES[0], dtype, device, buffers=places[-1], check="stress")
    stressed = [size for size in STRESS_SIZES if size <= by_8[-1]]
    for buffers in places:
        yield from (case_of(op, size, "fp32", device, buffers=buffers, check="stress") for size in stressed)


def distinct(cases: Iterable[Case]) -> Iterator[Case]:
    """Each key once: a case may belong to several lists, and with many ranks small sizes are rounded to the same."""
    yield from {case.key: case for case in cases}.values()


def ranks_of(device: DeviceFacts) -> int:
    """One rank a GPU; two on a CPU; under torchrun those that it started."""
    if device.party is not None:
        return device.party.ranks
    return device.gpu_count if device.kind == "cuda" else 2


def hosts_of(device: DeviceFacts) -> int:
    """On how many hosts the ranks are."""
    return 1 if device.party is None else device.party.hosts


def case_of(
    op: str,
    size_bytes: int,
    dtype: str,
    device: DeviceFacts,
    buffers: str = "in_place",
    launch: str = "queued",
    check: str = "once",
) -> Case:
    """An operation on data. Where each rank has a part of its own, the size is rounded down to whole parts."""
    ranks = ranks_of(device)
    if op in OF_PARTS and ranks > 1:
        whole = ranks * DTYPES[dtype].itemsize
        size_bytes = max(whole, size_bytes // whole * whole)
    stress = "every result of many in a row on new data is checked: right or wrong, but not timed"
    return Case(
        op,
        {
            "bytes": size_bytes,
            "dtype": dtype,
            "impl": "nccl" if device.kind == "cuda" else "gloo",
            "ranks": ranks,
            "launch": launch,
            "buffers": buffers,
            "check": check,
            "hosts": hosts_of(device),
        },
        works(op, size_bytes, ranks, device),
        defaults=DEFAULTS,
        memory_bytes=2 * size_bytes + 2**30 if device.kind == "cuda" else 0,
        not_applicable=why_not(op, dtype, launch, device),
        checked_only=stress if check == "stress" else "",
    )


def works(op: str, size_bytes: int, ranks: int, device: DeviceFacts) -> tuple[Work, Work]:
    """Bus bytes, which each rank's link carries if the algorithm is a ring or a tree, and the algorithm's own.

    Between hosts it is a host's network that carries them, all its ports together: a ring enters and leaves each host
    once, whatever the number of GPUs in it.
    """
    bus_bytes = BUS_FACTORS[op](ranks) * size_bytes if ranks > 1 else size_bytes
    is_nccl = device.kind == "cuda"
    no_peak = "NCCL does not tell how it sends between pairs" if is_nccl else NO_ALGORITHM
    has_peak = is_nccl and op not in BETWEEN_PAIRS
    link = "network" if hosts_of(device) > 1 else "nvlink"
    if has_peak and link == "network" and device.party is not None and device.party.network_bytes_per_s is None:
        has_peak, no_peak = False, f"the hosts' line rate is unknown: {device.party.no_network}"
    return (
        Work(bus_bytes, "B", link if has_peak else None, "bus", no_peak="" if has_peak else no_peak),
        Work(size_bytes, "B", None, "algorithm", no_peak="no link carries the algorithm's bytes"),
    )


def symmetric_case(
    impl: str,
    shots: str,
    size_bytes: int,
    dtype: str,
    device: DeviceFacts,
    launch: str = "graph",
    check: str = "once",
) -> Case:
    """An all-reduce over symmetric memory by torch or by us; one-shot moves whole buffers, so more than bus bytes."""
    buffers = "out_of_place" if shots == "one_shot" else "in_place"
    case = case_of("all_reduce", size_bytes, dtype, device, buffers, launch, check)
    no_peak = f"the bus bytes are a ring's, {shots.replace('_', '-')} moves its own"
    return replace(
        case,
        params={**case.params, "impl": impl, "algorithm": shots},
        work=(replace(case.work[0], peak=None, no_peak=no_peak), *case.work[1:]),
        not_applicable=why_not_symmetric(impl, device) or case.not_applicable,
    )


def why_not_symmetric(impl: str, device: DeviceFacts) -> str:
    """What this machine lacks for kernels over symmetric memory."""
    if device.kind != "cuda":
        return "symmetric memory is that of NVIDIA GPUs"
    if hosts_of(device) > 1:
        return "symmetric memory ends with the host"
    return device.no_triton if impl == "triton" else ""


def barrier_case(device: DeviceFacts) -> Case:
    """A barrier as a program sees it. torch lets the host wait in it, so it runs in a loop and cannot be queued."""
    impl = "nccl" if device.kind == "cuda" else "gloo"
    return Case(
        "barrier",
        {"impl": impl, "ranks": ranks_of(device), "launch": "loop", "hosts": hosts_of(device)},
        (),
        kind="latency",
        defaults={"launch": "loop", "hosts": 1},
        memory_bytes=2**30 if device.kind == "cuda" else 0,
        not_applicable=why_not("barrier", "", "loop", device),
    )


def why_not(op: str, dtype: str, launch: str, device: DeviceFacts) -> str:
    """What this machine, its backend or the type cannot do."""
    ranks = ranks_of(device)
    if ranks < 2:
        return f"needs two GPUs, this machine has {ranks}"
    if launch == "graph" and device.kind != "cuda":
        return "CUDA graphs need a GPU"
    if dtype.startswith("fp8") and device.kind != "cuda":
        return "gloo has no 8-bit floats ('Invalid scalar type', torch 2.13)"
    if op in SUMS and not largest_value(dtype, ranks):
        return f"a sum over {ranks} ranks is not exact in {dtype}, so that it could not be checked"
    if op in SUMS and dtype.startswith("fp8") and not device.at_least(9):
        # NCCL 2.24's release notes: FP8 reductions on Hopper and newer.
        return f"NCCL sums 8-bit floats from compute capability 9.0 on, {device.name} lacks it"
    return ""


def bench_collectives(case, device, measure):
    if case.op == "barrier":
        measure("kernels.collectives.barrier")
        return
    how: dict[str, Any] = {"size_bytes": case.params["bytes"], "dtype": case.params["dtype"]}
    if case.params["impl"] in SYMMETRIC:
        measure(SYMMETRIC[case.params["impl"]], algorithm=case.params["algorithm"], **how)
        return
    measure("kernels.collectives.collective", op=case.op, buffers=case.params["buffers"], **how)
