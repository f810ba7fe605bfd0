"""Data dependence: the same GEMM by the vendor's library on other numbers. Rate, true clock and watts tell them apart.

Power limits a large GEMM, and power is paid for bits that change: zeros clock higher than random numbers.
"""

from collections.abc import Iterator

from benches.bench_gemm import DTYPES, LEAST_CAPABILITY, PEAKS
from harness.model import Case, DeviceFacts, Work
from kernels import gemm_data

SHAPE = (8192, 8192, 8192)
SMALL = (128, 128, 128)
# bf16 output alone leaves 55.7 dB; Hopper's fast fp8 accumulation keeps 14 bits, which leave 51.6 of random numbers.
LEAST_SQNR_DB = {"bf16": 50.0, "fp8_e4m3": 35.0}
# Rows of nearly one number: a sum that only grows cuts off what its next products have below its own 14 bits.
SORTED_FP8_SQNR_DB = 10.0


def cases(profile: str, device: DeviceFacts) -> Iterator[Case]:
    """All of it is `full`; on the CPU two kinds of data are tried."""
    if device.kind != "cuda":
        for data in ("normal", "sorted"):
            yield data_case("bf16", data, device)
    elif profile == "full":
        for dtype in LEAST_SQNR_DB:
            for data in gemm_data.DATA:
                yield data_case(dtype, data, device)


def data_case(dtype: str, data: str, device: DeviceFacts) -> Case:
    """2·m·n·k FLOP, whatever is multiplied, and the bytes that each operand and the result move once."""
    m, n, k = SHAPE if device.kind == "cuda" else SMALL
    per_set = (m * k + n * k) * DTYPES[dtype].itemsize + m * n * 2
    sets = max(2, device.sets(per_set))
    params = {"dtype": dtype, "impl": "torch", "m": m, "n": n, "k": k, "layout": "tn", "data": data}
    return Case(
        "gemm_data",
        params | ({"accumulation": "fast"} if dtype == "fp8_e4m3" else {}),
        (
            Work(2 * m * n * k, "FLOP", PEAKS[dtype], "2·m·n·k"),
            Work(per_set, "B", "memory", "operands and result once"),
        ),
        defaults={"layout": "tn"},
        # Draws in 32 bits, and what sorting takes.
        memory_bytes=sets * per_set + 24 * (m + n) * k + 2**30,
        footprint_bytes=sets * per_set,
        not_applicable=device.lacks(dtype, *LEAST_CAPABILITY[dtype]),
    )


def bench_data(case, device, measure):
    p = case.params
    sets = case.footprint_bytes // case.work[1].amount
    shape = (p["m"], p["n"], p["k"])
    operands = gemm_data.Operands(shape, DTYPES[p["dtype"]], sets, device.torch_device, p["data"])
    launches = operands.plans()
    measure(
        lambda i: launches[i % sets](),
        inputs=operands.draws,
        outputs=operands.out,
        reference=operands.reference,
        sets=sets,
        least_sqnr_db=least_sqnr_db(p["dtype"], p["data"]),
        before=operands.lay,
    )


def least_sqnr_db(dtype, data):
    return SORTED_FP8_SQNR_DB if (dtype, data) == ("fp8_e4m3", "sorted") else LEAST_SQNR_DB[dtype]
