"""Collectives: all-reduce between the GPUs of one host, one rank a GPU; on a CPU gloo with two ranks for real."""

from collections.abc import Iterator

from harness.model import Case, DeviceFacts, Work
from harness.units import GIB

LARGEST = 8 * GIB
LARGEST_ON_CPU = 2**20
FACTOR = {"smoke": 64, "quick": 64, "standard": 64, "full": 8}


def cases(profile: str, device: DeviceFacts) -> Iterator[Case]:
    """From 8 B to 8 GiB by factors of 64 (full: 8), always with the largest; none of them is gated in quick."""
    if profile in ("smoke", "quick") and device.kind == "cuda":
        return
    ranks = device.gpu_count if device.kind == "cuda" else 2
    for dtype in ("fp32", "bf16"):
        for size in sizes(LARGEST if device.kind == "cuda" else LARGEST_ON_CPU, FACTOR[profile]):
            yield all_reduce_case(size, dtype, ranks, device)


def sizes(largest: int, factor: int) -> Iterator[int]:
    """8, 8·factor, ... up to `largest`, which is always there."""
    size = 8
    while size < largest:
        yield size
        size *= factor
    yield largest


def all_reduce_case(size_bytes: int, dtype: str, ranks: int, device: DeviceFacts) -> Case:
    """An in-place sum. Bus bytes are what each link must carry at least: 2(n-1)/n of the buffer, ring or tree alike.

    `queued`: plain launches that wait in the device's queue when their turn comes, so the host's cost of launching is
    not in the time. Launching in a loop with the host in the way, as nccl-tests does, takes 3 times as long for 8 B.
    """
    bus_bytes = 2 * (ranks - 1) / ranks * size_bytes if ranks > 1 else size_bytes
    return Case(
        "all_reduce",
        {
            "bytes": size_bytes,
            "dtype": dtype,
            "impl": "nccl" if device.kind == "cuda" else "gloo",
            "ranks": ranks,
            "launch": "queued",
        },
        (
            Work(bus_bytes, "B", None, "bus", no_peak="the algorithm that the library chose is not known"),
            Work(size_bytes, "B", None, "algorithm", no_peak="no link carries the algorithm's bytes"),
        ),
        defaults={"launch": "queued"},
        memory_bytes=2 * size_bytes + 2**30 if device.kind == "cuda" else 0,
        not_applicable="" if ranks > 1 else f"needs two GPUs, this machine has {ranks}",
    )


def bench_collectives(case, device, measure):
    measure("kernels.collectives.all_reduce", size_bytes=case.params["bytes"], dtype=case.params["dtype"])
