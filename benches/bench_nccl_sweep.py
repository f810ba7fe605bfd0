"""NCCL's settings beside its own choice: one all-reduce in fresh ranks for each setting, in `full` alone.

Algorithm and protocol are swept as pairs: NCCL_ALGO or NCCL_PROTO alone leaves the other to the very choice that is in
question. Of the P2P levels one host has two that differ: NCCL's own, and LOC, which sends through shared memory;
NCCL_P2P_DISABLE=1 is the same. What concerns the network is swept where ranks span several hosts. Values are those of
NCCL's documentation, "Environment Variables".

Launches are replays of a graph: the device's own time, and NCCL writes its debug file while the graph is made, not in
the window.
"""

from collections.abc import Iterator, Mapping
from dataclasses import replace

from benches.bench_collectives import case_of, hosts_of
from harness.model import Case, DeviceFacts
from harness.units import GIB, KIB, MIB

SIZES = (8, 64 * KIB, 4 * MIB, GIB)
ALGORITHMS = ("Ring", "Tree")
PROTOCOLS = ("Simple", "LL", "LL128")
NCCLS_OWN = dict.fromkeys(
    ("nccl_algo", "nccl_proto", "nccl_p2p_level", "nccl_net_gdr_level", "nccl_ib_disable"), "default"
)


def cases(profile: str, device: DeviceFacts) -> Iterator[Case]:
    """Every setting at every size; those of one setting follow one another, so that they share its ranks."""
    if profile != "full":
        return
    for setting in settings(hosts_of(device)):
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


def sweep_case(size_bytes: int, setting: Mapping[str, str], device: DeviceFacts) -> Case:
    """A sum in place of float32 as the other collectives have it, in ranks of its own."""
    case = case_of("all_reduce", size_bytes, "fp32", device, launch="graph")
    needs_nccl = "gloo has no such settings: they are NCCL's" if device.kind != "cuda" else ""
    return replace(
        case,
        params={**case.params, **NCCLS_OWN, **setting, "world": "own"},
        defaults={**case.defaults, **NCCLS_OWN, "world": "family"},
        not_applicable=needs_nccl or case.not_applicable,
    )


def bench_nccl_sweep(case, device, measure):
    measure(
        "kernels.collectives.collective",
        op=case.op,
        buffers=case.params["buffers"],
        size_bytes=case.params["bytes"],
        dtype=case.params["dtype"],
    )
