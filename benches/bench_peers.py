"""Pairs of GPUs of one host: copies one way and both, loads, stores, and the time of one load from the other's memory.

Bytes are counted as nvbandwidth counts them: once for each direction in which they cross the link, not as read and
written. GPUs are numbered as CUDA numbers them; data go `from` one `to` the other. `access` says which of the two
works: the one that has the data writes them (`write`), the one that gets them reads (`read`).
"""

from collections.abc import Iterator
from itertools import combinations, permutations

import pytest
import torch

from benches.bench_collectives import distinct
from harness.model import Case, DeviceFacts, Work
from harness.units import GIB, MIB
from kernels import peers

# It opens every GPU in this process and lets them reach each other, which makes a driver's own calls take longer: what
# times those runs before.
LAST = True

SIZE = 512 * MIB  # nvbandwidth's default
SIZES = (16 * MIB, 64 * MIB, 2 * GIB)
CHAIN = 2 * MIB  # as nvbandwidth's latency test
# Copies each way between two meetings: at 400 GB/s a meeting of two streams is a thousandth of them.
COPIES = 8
DEFAULTS = {"ways": "one"}

Pair = tuple[int, int]


def cases(profile: str, device: DeviceFacts) -> Iterator[Case]:
    """Standard: two GPUs in everything that is compared, each GPU with the next by copy engine. Full: every pair."""
    if profile in ("smoke", "quick") and device.kind == "cuda":
        return
    standard = [*first_pair(device), *ring(device)]
    yield from distinct([*standard, *every_pair(device)] if profile == "full" else standard)


def first_pair(device: DeviceFacts) -> Iterator[Case]:
    """GPUs 0 and 1: engine and kernel, write and read, each direction, latency beside that of one's own memory."""
    for pair in ((0, 1), (1, 0)):
        for impl in ("ce", "triton"):
            for access in ("write", "read"):
                yield copy_case(pair, impl, access, device)
        yield latency_case(pair, device)
    yield latency_case((0, 0), device)
    for impl in ("ce", "triton"):
        yield copy_case((0, 1), impl, "write", device, ways="both")


def ring(device: DeviceFacts) -> Iterator[Case]:
    """Each GPU with the next one, the last with the first: every GPU once at each end, however many there are."""
    count = max(2, device.gpu_count)
    for here in range(count):
        there = (here + 1) % count
        yield copy_case((here, there), "ce", "write", device)
        yield copy_case((min(here, there), max(here, there)), "ce", "write", device, ways="both")


def every_pair(device: DeviceFacts) -> Iterator[Case]:
    """Every pair in everything, and the copy engine over sizes between the first two."""
    gpus = range(max(2, device.gpu_count))
    for pair in permutations(gpus, 2):
        for impl in ("ce", "triton"):
            for access in ("write", "read"):
                yield copy_case(pair, impl, access, device)
        yield copy_case(pair, "torch", "write", device)
        yield kernel_case("peer_load", pair, "loaded, one way", device)
        yield kernel_case("peer_store", pair, "stored, one way", device)
        yield latency_case(pair, device)
    for here, there in combinations(gpus, 2):
        for impl in ("ce", "triton"):
            for access in ("write", "read"):
                yield copy_case((here, there), impl, access, device, ways="both")
    for gpu in gpus:
        yield latency_case((gpu, gpu), device)
    for size in SIZES:
        yield copy_case((0, 1), "ce", "write", device, size_bytes=size)


def copy_case(
    pair: Pair, impl: str, access: str, device: DeviceFacts, ways: str = "one", size_bytes: int = SIZE
) -> Case:
    """A copy by copy engine (`ce`), kernel (`triton`) or torch; `both` copies one each way at the same time.

    Both ways, the rate is the bytes of both directions over the time until the slower one is done.
    """
    is_both = ways == "both"
    work = (
        Work(2 * size_bytes, "B", "peer_link_both", "both ways together")
        if is_both
        else Work(size_bytes, "B", "peer_link", "one way")
    )
    return Case(
        "peer_copy",
        {"bytes": size_bytes, "from": pair[0], "to": pair[1], "impl": impl, "access": access, "ways": ways},
        (work,),
        defaults=DEFAULTS,
        memory_bytes=(4 if is_both else 3) * size_bytes,
        deterministic=True,
        not_applicable=why_not(device),
    )


def kernel_case(op: str, pair: Pair, label: str, device: DeviceFacts) -> Case:
    """Loads or stores of a kernel alone, without a copy's other half in its own memory."""
    return Case(
        op,
        {"bytes": SIZE, "from": pair[0], "to": pair[1], "impl": "triton"},
        (Work(SIZE, "B", "peer_link", label),),
        memory_bytes=3 * SIZE,
        deterministic=True,
        not_applicable=why_not(device),
    )


def latency_case(pair: Pair, device: DeviceFacts) -> Case:
    """The time of one load: of GPU `to`, from the memory of `from`, which may be its own."""
    return Case(
        "peer_latency",
        {"bytes": CHAIN, "from": pair[0], "to": pair[1]},
        (),
        kind="latency",
        memory_bytes=2 * CHAIN,
        deterministic=True,
        not_applicable=why_not(device),
    )


def why_not(device: DeviceFacts) -> str:
    """What this machine lacks."""
    count = device.gpu_count if device.kind == "cuda" else 0
    return "" if count >= 2 else f"needs two GPUs, this machine has {count or 'none'}"


def bench_peers(case, device, measure):
    source, destination = case.params["from"], case.params["to"]
    if source != destination:
        reason = peers.why_no_access(source, destination)
        if reason:
            pytest.skip(reason)
        peers.allow_access(source, destination)
    places = f"cuda:{source}", f"cuda:{destination}"
    if case.op == "peer_latency":
        measure_latency(case.params["bytes"], places, device, measure)
    elif case.params.get("ways") == "both":
        measure_both(case, places, measure)
    else:
        measure_one(case, places, device, measure)


def measure_latency(size, places, device, measure):
    chase = peers.Chase(*places, size, device.sm_count)

    def before(i):
        if i == 0:
            chase.lay()

    measure(
        chase.launch,
        inputs=[chase.keys],
        outputs=[chase.ends],
        reference=lambda _: [(chase.ends, chase.expected)],
        sets=device.sm_count,
        exact=True,
        operations=peers.CHAIN_STEPS,
        before=before,
        gpus=gpus_of(chase.ends.device, places),
    )


def measure_one(case, places, device, measure):
    given, out, way, expected = one_direction(case, places, device)
    measure(
        peers.one_way(way),
        inputs=[given],
        outputs=[out],
        reference=lambda _: [(out, expected())],
        exact=True,
        gpus=gpus_of(way.by, places),
    )


def one_direction(case, places, device):
    """What is given, what comes out, which GPU does it how, and what must come out."""
    size = case.params["bytes"] // 4
    if case.op == "peer_store":
        given, out = torch.empty(peers.STORE_BLOCK, device=places[0]), torch.empty(size, device=places[1])
        return given, out, peers.plan_store(given, out), lambda: through_host(given, out).repeat(size // len(given))
    given = torch.empty(size, device=places[0])
    if case.op == "peer_load":
        words, out = given.view(torch.int32), peers.allocate_sums(places[1], device.sm_count)
        return given, out, peers.plan_load(words, out), lambda: through_host(peers.expected_sums(words, len(out)), out)
    out = torch.empty(size, device=places[1])
    return given, out, copy_way(case, given, out), lambda: through_host(given, out)


def measure_both(case, places, measure):
    """Both directions at the same time; each one's result is compared."""
    size = case.params["bytes"] // 4
    pairs = [(torch.empty(size, device=a), torch.empty(size, device=b)) for a, b in (places, places[::-1])]
    first, second = (copy_way(case, given, out) for given, out in pairs)
    measure(
        peers.both_ways(first, second, COPIES),
        inputs=[given for given, _ in pairs],
        outputs=[out for _, out in pairs],
        reference=lambda _: ((out, through_host(given, out)) for given, out in pairs),
        exact=True,
        operations=COPIES,
        gpus=gpus_of(first.by, places),
    )


def copy_way(case, given, out):
    """The direction by what the case says does it."""
    access = case.params["access"]
    if case.params["impl"] == "ce":
        return peers.plan_engine_copy(given, out, access)
    return peers.plan_torch_copy(given, out) if case.params["impl"] == "torch" else peers.plan_copy(given, out, access)


def gpus_of(by, places):
    """The numbers of the GPUs at work, that which launches first."""
    return tuple(dict.fromkeys((by.index, *(torch.device(place).index for place in places))))


def through_host(tensor, out):
    """The tensor beside `out`, but not over the link that is measured."""
    return tensor.cpu().to(out.device)
