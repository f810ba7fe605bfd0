"""Caches and access: rate and latency over the working set, words apart, rows at random, latency by SM.

A working set is one array, read over and over by all SMs (`cache_read`) or by one thread (`load_latency`): what L1 and
L2 keep of it is what is asked. Where L2 could serve a part, no share of the memory's peak is given.
"""

from collections.abc import Iterator

import torch

from harness.model import Case, DeviceFacts, Work
from harness.units import GIB, KIB, MIB
from kernels import cache

# One thread at a time leaves the card to rest: what must find it warm runs before.
LAST = True

SMALLEST, LARGEST = 64 * KIB, 8 * GIB
# A device of which L2 could serve less than 1/64: a share of the memory's peak then means memory.
L2_MULTIPLES = 64
# A launch leaves L1 empty. So many loads make the first ones, from L2, less than a hundredth of all that L1 serves.
STEPS_IN_L1, STEPS = 2**20, 2**14
IN_L1_BYTES = 512 * KIB
# Odd, so that a walk inside one line ends elsewhere than it began.
STEPS_BY_SM = 2**15 + 5
# Enough walks to see that each goes on where the one before came to.
WALKS = 4
LINE_BYTES = 128
# A power of two apart would put all lines into few slices of L2.
LINES_APART_WORDS = 1_000_003 // 16 * 16
LINES = 4
SECTOR_BYTES = 32
WORD_BYTES = 4
STRIDES = (1, 2, 4, 8, 16, 32, 64)
ROW_WORDS = (1, 2, 4, 8, 16, 32, 64, 128)
SMOKE_SIZES = (64 * KIB, 96 * KIB)


def cases(profile: str, device: DeviceFacts) -> Iterator[Case]:
    """All of it is `full`; on the CPU a few small ones are checked. What leaves the card to rest comes last."""
    if device.kind != "cuda":
        yield from smoke_cases(device)
    elif profile == "full":
        for size in sizes():
            yield read_case(size, device)
        for stride in STRIDES:
            yield stride_case(stride, device)
        for words in ROW_WORDS:
            yield gather_case(words, device)
        for size in sizes():
            yield latency_case(size, device)
        yield from sm_cases(device)


def smoke_cases(device: DeviceFacts) -> Iterator[Case]:
    """One or two of each operation."""
    for size in SMOKE_SIZES:
        yield read_case(size, device)
        yield latency_case(size, device)
    yield stride_case(8, device)
    yield gather_case(8, device)
    yield sm_case(LINE_BYTES, 1, device)


def sm_cases(device: DeviceFacts) -> Iterator[Case]:
    """Single lines, each at its own distance from every SM, and a chain all over L2, on which distances even out."""
    for line in range(LINES):
        yield sm_case(LINE_BYTES, line, device)
    yield sm_case(2 * MIB, 0, device)


def sizes() -> Iterator[int]:
    """Powers of two, and between each two the half more of the smaller."""
    size = SMALLEST
    while size < LARGEST:
        yield size
        yield size // 2 * 3
        size *= 2
    yield LARGEST


def read_case(size: int, device: DeviceFacts) -> Case:
    """All SMs read a working set in whole, time after time: 4 MiB and more a program, each beginning elsewhere."""
    programs = programs_of(device)
    amount = programs * rounds_of(size, device) * cache.SWEEP_BLOCK * WORD_BYTES
    return Case(
        "cache_read",
        {"bytes": size, "impl": "triton"},
        (memory_work(amount, size, "read", device),),
        memory_bytes=size + GIB,
        footprint_bytes=size,
        deterministic=True,
        **common(device),
    )


def memory_work(amount: int, footprint: int, label: str, device: DeviceFacts) -> Work:
    """Bytes, held against the memory's peak where caches serve next to none of them."""
    if device.l2_bytes is not None and footprint >= L2_MULTIPLES * device.l2_bytes:
        return Work(amount, "B", "memory", label)
    return Work(amount, "B", None, label, "caches serve a part of it, and no data sheet gives their peak")


def stride_case(stride: int, device: DeviceFacts) -> Case:
    """Words of 4 B so many apart. Memory moves whole sectors of 32 B, as many as hold a word."""
    block = cache.APART_BLOCK * stride * WORD_BYTES
    apart = stride * WORD_BYTES
    span = 4 * GIB * max(1, apart // SECTOR_BYTES) if device.kind == "cuda" else 2 * block
    useful, moved = span // stride, span * SECTOR_BYTES // max(SECTOR_BYTES, apart)
    return access_case("strided_read", {"bytes": span, "stride": apart}, useful, moved, span, device)


def gather_case(words: int, device: DeviceFacts) -> Case:
    """Rows at random out of 4 GiB, with the index that names them. A row moves whole sectors; what it shares, twice."""
    table = 4 * GIB if device.kind == "cuda" else 64 * KIB
    row = words * WORD_BYTES
    of_row = max(row, SECTOR_BYTES)
    rows = table // of_row
    index = rows * WORD_BYTES
    params = {"bytes": table, "row": row}
    return access_case("gather_read", params, rows * row, rows * of_row + index, table + index, device)


def access_case(op: str, params: dict, useful: int, moved: int, resident: int, device: DeviceFacts) -> Case:
    """Bytes moved in whole sectors, which the memory's peak bounds, and those of them that were asked for."""
    touched = moved if op == "strided_read" else params["bytes"]
    return Case(
        op,
        {**params, "impl": "triton"},
        (
            memory_work(moved, touched, "moved, in sectors of 32 B", device),
            Work(useful, "B", None, "useful", "the bytes moved are what a peak bounds"),
        ),
        memory_bytes=resident + GIB,
        footprint_bytes=touched,
        deterministic=True,
        **common(device),
    )


def latency_case(size: int, device: DeviceFacts) -> Case:
    """One thread follows a chain through all lines of a working set in random order: seconds a load, L1 allowed."""
    return Case(
        "load_latency",
        {"bytes": size, "impl": "triton"},
        (),
        "latency",
        memory_bytes=2 * size + GIB,
        footprint_bytes=size,
        deterministic=True,
        **common(device),
    )


def sm_case(size: int, line: int, device: DeviceFacts) -> Case:
    """The same in L2 and from each SM in turn, by the host's clock: sample i is that of the i-th SM by its number.

    A working set of one line is walked inside that line: how far it lies from the SM is all that differs.
    """
    return Case(
        "sm_latency",
        {"bytes": size, "line": line, "impl": "triton"},
        (),
        "latency",
        defaults={"line": 0},
        memory_bytes=GIB,
        deterministic=True,
        **common(device),
    )


def common(device: DeviceFacts) -> dict[str, str]:
    """What holds for every case: they are Triton's."""
    return {"checked_only": device.no_triton_figures, "not_applicable": device.no_triton}


def programs_of(device: DeviceFacts) -> int:
    """Programs that read a working set together."""
    return cache.SWEEP_PROGRAMS_PER_SM * device.sm_count if device.sm_count else 3


def rounds_of(size: int, device: DeviceFacts) -> int:
    """Blocks that each of them reads; few where Python runs every one."""
    return cache.sweep_rounds(size, programs_of(device)) if device.kind == "cuda" else 5


def steps_of(size: int, device: DeviceFacts) -> int:
    """Loads of one launch."""
    if device.triton == "interpreted":
        return 100
    return STEPS_IN_L1 if size <= IN_L1_BYTES else STEPS


def bench_cache(case, device, measure):
    {
        "cache_read": measure_read,
        "strided_read": measure_stride,
        "gather_read": measure_gather,
        "load_latency": measure_latency,
        "sm_latency": measure_by_sm,
    }[case.op](case, device, measure)


def words_of(size, device):
    """An array to be filled with random numbers, and its words."""
    source = torch.empty(size // WORD_BYTES, device=device.torch_device)
    return source, source.view(torch.int32)


def sums_for(programs, device):
    """A place for each program's sum."""
    return torch.zeros(programs, dtype=torch.int64, device=device.torch_device)


def measure_read(case, device, measure):
    source, words = words_of(case.params["bytes"], device)
    programs, rounds = programs_of(device), rounds_of(case.params["bytes"], device)
    sums = sums_for(programs, device)
    launch = cache.plan_sweep(words, sums, rounds)
    measure(
        lambda _: launch(),
        inputs=[source],
        outputs=[sums],
        reference=lambda _: [(sums % cache.MODULUS, cache.expected_sweep(words, programs, rounds))],
        exact=True,
    )


def measure_stride(case, device, measure):
    source, words = words_of(case.params["bytes"], device)
    stride = case.params["stride"] // WORD_BYTES
    sums = sums_for(len(words) // (cache.APART_BLOCK * stride), device)
    launch = cache.plan_apart(words, sums, stride)
    measure(
        lambda _: launch(),
        inputs=[source],
        outputs=[sums],
        reference=lambda _: [(sums, cache.expected_apart(words, stride))],
        exact=True,
    )


def measure_gather(case, device, measure):
    source, words = words_of(case.params["bytes"], device)
    row_words = case.params["row"] // WORD_BYTES
    named = case.params["bytes"] // max(case.params["row"], SECTOR_BYTES)
    index = torch.zeros(named, dtype=torch.int32, device=device.torch_device)
    sums = sums_for(named * row_words // cache.GATHER_WORDS, device)
    launch = cache.plan_gather(words, index, sums, row_words)
    measure(
        lambda _: launch(),
        inputs=[source],
        outputs=[sums],
        reference=lambda _: [(sums, cache.expected_gather(words, index, row_words))],
        exact=True,
        before=lambda _: cache.lay_index(index, words, len(words) // row_words),
    )


def measure_latency(case, device, measure):
    nodes = case.params["bytes"] // LINE_BYTES
    walk = cache.Walk(
        cache.Chain(device.torch_device, nodes, cache.LINE_WORDS), steps_of(case.params["bytes"], device), WALKS
    )

    def before(i):
        if i == 0:
            walk.begin()

    measure(
        walk.launch,
        inputs=[walk.chain.keys],
        outputs=[walk.ends],
        reference=lambda _: [(walk.ends, walk.expected())],
        sets=WALKS,
        exact=True,
        operations=walk.steps,
        before=before,
    )


def measure_by_sm(case, device, measure):
    place, size = device.torch_device, case.params["bytes"]
    if size == LINE_BYTES:
        chain = cache.Chain(place, cache.LINE_WORDS, 1, first_word=LINES_APART_WORDS * case.params["line"])
    else:
        chain = cache.Chain(place, size // LINE_BYTES, cache.LINE_WORDS)
    sms = device.sm_count or 3
    walk = cache.WalkBySm(chain, STEPS_BY_SM if device.kind == "cuda" else 101, sms)

    def before(i):
        if i == 0:
            walk.begin()

    def launch(i):
        walk.launch(i)
        if device.kind == "cuda":
            torch.cuda.synchronize()

    measure(
        launch,
        inputs=[chain.keys],
        outputs=[walk.ends],
        reference=lambda _: [(walk.ends, walk.expected()), walk.walked()],
        sets=sms,
        exact=True,
        shots=sms,
        operations=walk.steps,
        before=before,
    )
