"""Memory: what device memory moves, and what the link to the host moves.

Device bytes are counted as read + written, as the data sheet's bandwidth is; host copies are counted one way.
"""

from collections.abc import Iterator

import torch

from harness.model import Case, DeviceFacts, Work
from harness.units import GIB, KIB, MIB
from kernels import memory, memory_torch

IMPLEMENTATIONS = {"triton": memory, "torch": memory_torch}
# op: arrays read, arrays written
TRAFFIC = {"copy": (1, 1), "read": (1, 0), "write": (0, 1), "scale": (1, 1), "add": (2, 1), "triad": (2, 1)}
FACTOR = 0.5
# L2 may serve at most 1/64 of a rotation, so that a share of the memory's peak means memory.
L2_MULTIPLES = 64
CHUNK = 2**26
HOST_OPS = {"h2d": "host_link", "d2h": "host_link", "both": "host_link_both"}


def cases(profile: str, device: DeviceFacts) -> Iterator[Case]:
    """Quick: copy, read, triad and both directions of memcpy; standard: every operation, and copy by size."""
    size = 4 * GIB if device.kind == "cuda" else 16 * MIB
    is_quick = profile in ("smoke", "quick") and device.kind == "cuda"
    for op in TRAFFIC:
        if op in ("copy", "read", "triad") or not is_quick:
            for impl in ("torch", "triton") if op == "copy" or profile == "full" else ("triton",):
                yield stream_case(op, impl, size, device)
    if profile in ("standard", "full") and device.kind == "cuda":
        for smaller in (256 * MIB, GIB):
            for impl in ("torch", "triton"):
                yield stream_case("copy", impl, smaller, device)
    for direction in HOST_OPS:
        if direction != "both" or not is_quick:
            yield memcpy_case(direction, "pinned", device)
    if profile == "full":
        if device.kind == "cuda":
            # More than 2**31 elements: every offset must be 64 bits wide.
            yield from (stream_case(op, "triton", 12 * GIB, device) for op in ("copy", "triad"))
        for direction in ("h2d", "d2h"):
            yield memcpy_case(direction, "pageable", device)


def stream_case(op: str, impl: str, size_bytes: int, device: DeviceFacts) -> Case:
    """One streaming operation over float32 arrays of `size_bytes` each."""
    if impl == "triton" and device.triton == "interpreted":
        size_bytes = 256 * KIB  # Python runs every block
    traffic = sum(TRAFFIC[op]) * size_bytes
    # Storing one value costs fewer joules than random data would: the pins toggle less.
    fill = "constant" if op == "write" else "normal"
    sets = device.sets(traffic, L2_MULTIPLES)
    return Case(
        op,
        {"bytes": size_bytes, "dtype": "fp32", "impl": impl, "cache": "rotate", "data": fill},
        (Work(traffic, "B", "memory", label_of(op)),),
        defaults={"dtype": "fp32", "cache": "rotate", "data": fill},
        memory_bytes=sets * traffic + 8 * CHUNK * 4,
        footprint_bytes=sets * traffic,
        deterministic=True,
        checked_only=device.no_triton_figures if impl == "triton" else "",
        not_applicable=device.no_triton if impl == "triton" else "",
    )


def label_of(op: str) -> str:
    """Which bytes an operation counts."""
    return {"read": "read", "write": "written, one value"}.get(op, "read + written")


def memcpy_case(direction: str, host: str, device: DeviceFacts) -> Case:
    """A copy between host and device by the copy engine; `both` runs one each way at the same time."""
    size = 512 * MIB  # as nvbandwidth's default
    ways = 2 if direction == "both" else 1
    label = "both ways together" if direction == "both" else "one way"
    return Case(
        "memcpy",
        {"bytes": size, "direction": direction, "host": host, "numa": device.numa},
        (Work(ways * size, "B", HOST_OPS[direction], label),),
        defaults={"host": "pinned", "numa": "local"},
        memory_bytes=3 * ways * size,
        deterministic=True,
        not_applicable="" if device.kind == "cuda" else "there is no device beside the host",
    )


def bench_memory(case, device, measure):
    if case.op == "memcpy":
        measure_memcpy(case, device, measure)
        return
    reads, writes = TRAFFIC[case.op]
    size, impl = case.params["bytes"] // 4, IMPLEMENTATIONS[case.params["impl"]]
    sets = case.footprint_bytes // case.work[0].amount
    sources = [[torch.empty(size, device=device.torch_device) for _ in range(reads)] for _ in range(sets)]
    outs = [torch.empty(size, device=device.torch_device) for _ in range(sets)] if writes else []
    if case.op == "read":
        outs = [impl.allocate_partials(source) for (source,) in sources]
    extra = {"write": [FACTOR], "scale": [FACTOR], "triad": [FACTOR]}.get(case.op, [])
    make = getattr(impl, f"plan_{case.op}")
    launches = [make(*source, out, *extra) for source, out in zip(sources, outs, strict=True)]

    def reference(i):
        if case.op == "read":
            yield outs[i], impl.partial_reference(sources[i][0], outs[i])
            return
        pieces = [source.split(CHUNK) for source in sources[i]]
        for number, written in enumerate(outs[i].split(CHUNK)):
            yield written, expected(case.op, [piece[number].double() for piece in pieces], written)

    measure(
        lambda i: launches[i % sets](),
        inputs=[source for group in sources for source in group],
        outputs=outs,
        reference=reference,
        sets=sets,
        exact=case.op in ("copy", "write"),
        least_sqnr_db=100.0,
    )


def expected(op, operands, written):
    """The operation in float64."""
    if op == "write":
        return torch.full_like(written, FACTOR)
    a, b = (*operands, None)[:2]
    return {
        "copy": lambda: a,
        "scale": lambda: FACTOR * a,
        "add": lambda: a + b,
        "triad": lambda: a + FACTOR * b,
    }[op]()


def measure_memcpy(case, device, measure):
    """Copies between host and device on their own streams, joined by the stream that is timed."""
    size, pinned, place = case.params["bytes"] // 4, case.params["host"] == "pinned", device.torch_device
    directions = ("h2d", "d2h") if case.params["direction"] == "both" else (case.params["direction"],)
    pairs = {}
    for direction in directions:
        host = torch.empty(size, pin_memory=pinned)
        on_device = torch.empty(size, device=place)
        pairs[direction] = (host, on_device) if direction == "h2d" else (on_device, host)
    streams = [torch.cuda.Stream() for _ in directions[1:]]

    def launch(_):
        current = torch.cuda.current_stream()
        # Before the first copy is enqueued: waiting after it would put one behind the other.
        for stream in streams:
            stream.wait_stream(current)
        for stream, direction in zip([current, *streams], directions, strict=True):
            with torch.cuda.stream(stream):
                source, out = pairs[direction]
                out.copy_(source, non_blocking=pinned)
        for stream in streams:
            current.wait_stream(stream)

    measure(
        launch,
        inputs=[source for source, _ in pairs.values()],
        outputs=[out for _, out in pairs.values()],
        reference=lambda i: [(out.to(place), source.to(place)) for source, out in pairs.values()],
        exact=True,
    )
