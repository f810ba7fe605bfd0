"""Alignment: what a GEMM loses where m, n or k is one off a multiple of 8, 16 or 64. bf16, by the vendor's library.

Rates count the FLOP that the shape has, not those of a padded one. `harness.cliffs` sets each beside its aligned
neighbour.
"""

from collections.abc import Iterator

from harness.model import Case, DeviceFacts, Work
from kernels import gemm_data
from kernels.gemm_torch import OUT_DTYPES

DIMENSIONS = ("m", "n", "k")
# Multiples of 64, of 16 and no more, of 8 and no more, all within half a percent of one size.
SIZE = 4096
SIZES = {64: SIZE, 16: SIZE + 16, 8: SIZE + 8}
SMALL = 64
BF16 = OUT_DTYPES[0]
# bf16 output alone leaves 55.7 dB.
LEAST_SQNR_DB = 50.0


def cases(profile: str, device: DeviceFacts) -> Iterator[Case]:
    """All of it is `full`: each dimension alone at three sizes and one off them, then all three one off together."""
    if device.kind != "cuda":
        for k in (SMALL, SMALL - 1):
            yield alignment_case((SMALL, SMALL, k), device)
    elif profile == "full":
        yield alignment_case((SIZE, SIZE, SIZE), device)
        for number in range(len(DIMENSIONS)):
            for size in SIZES.values():
                for off in (0, -1, 1):
                    if (size, off) != (SIZE, 0):
                        shape = [SIZE] * len(DIMENSIONS)
                        shape[number] = size + off
                        yield alignment_case(tuple(shape), device)
        for off in (-1, 1):
            yield alignment_case((SIZE + off,) * len(DIMENSIONS), device)


def alignment_case(shape: tuple[int, ...], device: DeviceFacts) -> Case:
    """2·m·n·k FLOP, and the bytes that each operand and the result move once."""
    m, n, k = shape
    per_set = 2 * (m * k + n * k + m * n)
    sets = max(2, device.sets(per_set))
    return Case(
        "gemm_alignment",
        {"dtype": "bf16", "impl": "torch", "m": m, "n": n, "k": k, "layout": "tn", "data": "normal"},
        (
            Work(2 * m * n * k, "FLOP", "bf16", "2·m·n·k"),
            Work(per_set, "B", "memory", "operands and result once"),
        ),
        defaults={"layout": "tn", "data": "normal"},
        memory_bytes=sets * per_set + 2**30,
        footprint_bytes=sets * per_set,
        not_applicable=device.lacks("bf16", 8),
    )


def bench_alignment(case, device, measure):
    p = case.params
    sets = case.footprint_bytes // case.work[1].amount
    operands = gemm_data.Operands((p["m"], p["n"], p["k"]), BF16, sets, device.torch_device)
    launches = operands.plans()
    measure(
        lambda i: launches[i % sets](),
        inputs=operands.draws,
        outputs=operands.out,
        reference=operands.reference,
        sets=sets,
        least_sqnr_db=LEAST_SQNR_DB,
        before=operands.lay,
    )
