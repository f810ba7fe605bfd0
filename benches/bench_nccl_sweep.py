"""NCCL's settings beside its own choice: one all-reduce in fresh ranks for each setting, in `full` alone.

Algorithm and protocol are swept as pairs: NCCL_ALGO or NCCL_PROTO alone leaves the other to the very choice that is in
question. Of the P2P levels one host has two that differ: NCCL's own, and LOC, which sends through shared memory;
NCCL_P2P_DISABLE=1 is the same. What concerns the network is swept where ranks span several hosts. Values are those of
NCCL's documentation, "Environment Variables".

Launches are replays of a graph: the device's own time, and NCCL writes its debug file while the graph is made, not in
the window.
"""

from collections.abc import Iterator, Mapping

from harness.model import Case, DeviceFacts, Work
from harness.units import GIB, KIB, MIB

SIZES = (8, 64 * KIB, 4 * MIB, GIB)
ALGORITHMS = ("Ring", "Tree")
PROTOCOLS = ("Simple", "LL", "LL128")
NCCLS_OWN = dict.fromkeys(
    ("nccl_algo", "nccl_proto", "nccl_p2p_level", "nccl_net_gdr_level", "nccl_ib_disable"), "default"
)
DEFAULTS = {"launch": "queued", "buffers": "in_place", "world": "family", **NCCLS_OWN}


def cases(profile: str, device: DeviceFacts) -> Iterator[Case]:
    """Every setting at every size; those of one setting follow one another, so that they share its ranks."""
    if profile != "full":
        return
    for setting in settings(host_count(device)):
        for size in SIZES:
            yield sweep_case(size, setting, device)


def settings(hosts: int) -> Iterator[Mapping[str, str]]:
    """What is set, NCCL's own choice first."""
    yield {}
    for algorithm in ALGORITHMS:
        yield from ({"nccl_algo": algorithm, "nccl_proto": protocol} for protocol in PROTOCOLS)
    yield {"nccl_p2p_level": "LOC"}
    if hosts > 1:
        yield from ({"nccl_net_gdr_level": level} for level in ("LOC", "SYS"))
        yield {"nccl_ib_disable": "1"}


def host_count(device: DeviceFacts) -> int:
    """How many hosts the ranks span; one, where the device's facts do not tell."""
    return int(getattr(device, "hosts", 1))


def sweep_case(size_bytes: int, setting: Mapping[str, str], device: DeviceFacts) -> Case:
    """A sum in place of float32 in ranks of its own; bus bytes are nccl-tests' 2(n-1)/n of the size."""
    is_nccl = device.kind == "cuda"
    ranks = device.gpu_count if is_nccl else 2
    bus_bytes = 2 * (ranks - 1) / ranks * size_bytes if ranks > 1 else size_bytes
    is_linked = is_nccl and host_count(device) == 1
    no_peak = "the ranks span several hosts" if is_nccl else "gloo is no link"
    return Case(
        "all_reduce",
        {
            "bytes": size_bytes,
            "dtype": "fp32",
            "impl": "nccl" if is_nccl else "gloo",
            "ranks": ranks,
            "launch": "graph",
            "buffers": "in_place",
            "world": "own",
            **NCCLS_OWN,
            **setting,
        },
        (
            Work(bus_bytes, "B", "nvlink" if is_linked else None, "bus", no_peak="" if is_linked else no_peak),
            Work(size_bytes, "B", None, "algorithm", no_peak="no link carries the algorithm's bytes"),
        ),
        defaults=DEFAULTS,
        memory_bytes=2 * size_bytes + GIB if is_nccl else 0,
        not_applicable=why_not(device),
    )


def why_not(device: DeviceFacts) -> str:
    """What is lacking: NCCL, or a second GPU."""
    if device.kind != "cuda":
        return "gloo has no such settings: they are NCCL's"
    return "" if device.gpu_count > 1 else f"needs two GPUs, this machine has {device.gpu_count}"


def bench_nccl_sweep(case, device, measure):
    measure(
        "kernels.collectives.collective",
        op=case.op,
        buffers=case.params["buffers"],
        size_bytes=case.params["bytes"],
        dtype=case.params["dtype"],
    )
