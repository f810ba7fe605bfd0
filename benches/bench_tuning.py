"""Each row of the kernels' tables beside rows that differ from it in one thing: what this card wants.

A case is one such row, `config`, against the table's own, both on the same data. Nothing here changes a table: whoever
reads the ratios does, and says in the table on what they were measured. On a card at its power limit the cycles that
short blocks count are half of it: hold the few that win against the table in blocks A B B A before changing a row.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields, replace
from functools import partial
from typing import Any

import torch

from benches import bench_memory
from benches.bench_gemm import DTYPES, LEAST_CAPABILITY, OUTPUT, PEAKS, SQUARE
from benches.bench_kernels_ab import ARRAY_BYTES, CHUNK, FACTOR, measure_gemms
from harness.model import Case, DeviceFacts, Work
from kernels import gemm, gemm_promoted, gemm_skinny, memory
from kernels.gemm_configs import CONFIGS, Config, DeviceLimits
from kernels.gemm_promoted_hopper import PipelinedConfig

ASKED = True

PROTOCOLS = ("short_blocks", "abba")
# What each field of a row is tried at; several fields at once where one alone would make no sense.
LARGE: tuple[Mapping[str, Any], ...] = (
    *({"stages": stages} for stages in (2, 3, 4, 5)),
    *({"group_m": rows} for rows in (4, 8, 16, 32)),
    *({"block_k": width} for width in (32, 64, 128)),
    # Registers: 8 warps hold a tile of 128 x 256 or 256 x 128, 4 warps half of it.
    *({"block_m": m, "block_n": n} for m, n in ((128, 128), (256, 128), (256, 64))),
    *({"block_m": m, "block_n": n, "warps": 4} for m, n in ((128, 128), (64, 256))),
    {"split_epilogue": False},
    {"flatten": False},
    {"alternate_k": True},
)
PROMOTED: tuple[Mapping[str, Any], ...] = (
    *({"stages": stages} for stages in (2, 3, 4, 5)),
    *({"group_m": rows} for rows in (4, 8, 16, 32)),
    {"block_m": 64, "half_n": 128},
    {"half_n": 128},
    {"block_m": 64},
)
PIPELINED: tuple[Mapping[str, Any], ...] = (
    *({"stages": stages} for stages in (4, 5, 6)),
    *({"group_m": rows} for rows in (4, 8, 16, 32)),
    {"turn": 2},
)
SKINNY: tuple[Mapping[str, Any], ...] = (
    *({"block_n": columns} for columns in (32, 64, 128, 256)),
    *({"block_k": width} for width in (64, 128, 256)),
    *({"stages": stages} for stages in (3, 4, 5, 6)),
    *({"warps": warps} for warps in (4, 8)),
    *({"programs_per_sm": programs} for programs in (1, 2, 3, 4)),
    *({"splits": splits} for splits in (1, 2, 4, 8)),
)
STREAMS: tuple[Mapping[str, Any], ...] = (
    *({"block": size} for size in (512, 1024, 2048, 4096, 8192, 16384)),
    *({"warps": warps} for warps in (2, 4, 8)),
    # One access of 16 bytes a thread and array.
    *({"block": 128 * warps, "warps": warps} for warps in (4, 8, 16, 32)),
    *({"programs_per_sm": programs, "stages": 3} for programs in (1, 2, 4, 8)),
    # A load or a store takes one hint alone.
    *({"load_cache": hint, "load_policy": ""} for hint in ("", ".cg")),
    *({"load_cache": "", "load_policy": hint} for hint in ("evict_first", "evict_last")),
    *({"store_cache": hint, "store_policy": ""} for hint in ("", ".cs", ".wt")),
    {"store_cache": "", "store_policy": "evict_first"},
)
# What a kernel that reads alone, or writes alone, has no use for; reading needs programs that stay.
UNUSED = {"read": ("store_cache", "store_policy"), "write": ("load_cache", "load_policy")}
# What the kernel that loads through pointers does not heed.
OF_DESCRIPTORS = {"split_epilogue", "flatten", "alternate_k"}
# A weight of 8192 x 8192 read by so many rows.
SKINNY_ROWS = (1, 16, 64, 128)
L2_MULTIPLES = 64

Row = Config | gemm_promoted.PromotedConfig | PipelinedConfig | gemm_skinny.SkinnyConfig | memory.Config
CHANGES: Mapping[type, Sequence[Mapping[str, Any]]] = {
    Config: LARGE,
    gemm_promoted.PromotedConfig: PROMOTED,
    PipelinedConfig: PIPELINED,
    gemm_skinny.SkinnyConfig: SKINNY,
}


def cases(profile: str, device: DeviceFacts) -> Iterator[Case]:
    """Short blocks; in full, blocks at each one's own equilibrium as well."""
    for protocol in PROTOCOLS if profile == "full" else PROTOCOLS[:1]:
        for dtype, accumulation, shape in products():
            row = gemm_row(dtype, accumulation, shape, device)
            for other in neighbours(row, CHANGES[type(row)]):
                yield gemm_case(protocol, dtype, accumulation, shape, other, row, device)
        for op in bench_memory.TRAFFIC:
            row = memory_row(op, device)
            for other in neighbours(row, [change for change in STREAMS if not change.keys() & set(UNUSED.get(op, ()))]):
                if op != "read" or other.programs_per_sm:
                    yield stream_case(protocol, op, other, row, device)


def products() -> Iterator[tuple[str, str, tuple[int, int, int]]]:
    """Type, accumulation and shape of the products whose rows are tried; fp16 has bf16's."""
    for dtype, accumulation in (("bf16", ""), ("fp8_e4m3", "fast"), ("fp8_e4m3", "slow")):
        yield dtype, accumulation, SQUARE
    for rows in SKINNY_ROWS:
        for dtype, accumulation in (("bf16", ""), ("fp8_e4m3", "fast")):
            yield dtype, accumulation, (rows, *SQUARE[1:])


def gemm_row(dtype: str, accumulation: str, shape: tuple[int, int, int], device: DeviceFacts) -> Row:
    """What the tables choose for a product."""
    limits = limits_of(device)
    has_descriptors = limits.architecture != "pointers"
    in_bytes, (m, n, _) = DTYPES[dtype].itemsize, shape
    if m <= gemm_skinny.MOST_ROWS:
        rows = gemm_skinny.CONFIGS["descriptors" if has_descriptors else "pointers", in_bytes]
        block_m = gemm_skinny.block_m_of(m)
        return next(row for most_rows, row in rows if block_m <= most_rows and not too_large(row, dtype, m, limits))
    if accumulation == "slow" and has_descriptors:
        return gemm_promoted.rows_for(limits.capability)[0]
    kind = "half" if in_bytes == 2 else "fp8"
    rows = CONFIGS[limits.architecture, kind, accumulation or "fast"]
    fitting = [row for row in rows if not too_large(row, dtype, m, limits)]
    return min(fitting, key=lambda row: row.relative_time(m, n, limits.sm_count))


def limits_of(device: DeviceFacts) -> DeviceLimits:
    """What rows depend on; a device of which too little is known counts as an H200."""
    return DeviceLimits(
        device.compute_capability or (9, 0), device.sm_count or 132, device.shared_memory_bytes or 232448
    )


def memory_row(op: str, device: DeviceFacts) -> memory.Config:
    """What the table of the memory kernels chooses."""
    major = (device.compute_capability or (memory.HOPPER, 0))[0]
    return memory.CONFIGS.get((major, op), memory.CONFIGS[memory.HOPPER, op])


def neighbours(row: Row, changes: Sequence[Mapping[str, Any]]) -> list[Row]:
    """Rows that differ from this one by one of the changes that its kernel heeds, each once."""
    is_pointers = isinstance(row, Config) and not row.descriptors
    others = [replace(row, **change) for change in changes if not (is_pointers and change.keys() & OF_DESCRIPTORS)]
    return [other for other in dict.fromkeys(others) if other != row]


def name_of(row: Row) -> str:
    """A row as a parameter of a key: each field that is not left at its default, as `block_m.128+stages.3`."""
    told = {field.name: getattr(row, field.name) for field in fields(row) if getattr(row, field.name) != field.default}
    return "+".join(f"{name}.{str(value).lstrip('.').lower()}" for name, value in told.items())


def gemm_case(
    protocol: str,
    dtype: str,
    accumulation: str,
    shape: tuple[int, int, int],
    other: Row,
    row: Row,
    device: DeviceFacts,
) -> Case:
    """A product by a row that is tried and by the table's."""
    m, n, k = shape
    per_set = (m * k + n * k) * DTYPES[dtype].itemsize + m * n * DTYPES[OUTPUT[dtype]].itemsize
    sets = max(2, device.sets(per_set, L2_MULTIPLES if m <= gemm_skinny.MOST_ROWS else 20))
    params = {"dtype": dtype, "impl": "triton", "m": m, "n": n, "k": k, "protocol": protocol}
    params |= {"config": name_of(other), "against": name_of(row)}
    return Case(
        "gemm",
        params | ({"accumulation": accumulation} if accumulation else {}),
        (
            Work(2 * m * n * k, "FLOP", PEAKS[dtype], "2·m·n·k"),
            Work(per_set, "B", "memory", "operands and result once"),
        ),
        memory_bytes=sets * (per_set + m * n * DTYPES[OUTPUT[dtype]].itemsize) + 2**30,
        footprint_bytes=sets * per_set,
        not_applicable=missing(device, dtype) or too_large(other, dtype, m, limits_of(device)),
    )


def too_large(row: Row, dtype: str, m: int, limits: DeviceLimits) -> str:
    """Why shared memory cannot hold what a row of a GEMM's table needs, or nothing; results are 2 bytes wide."""
    in_bytes = DTYPES[dtype].itemsize
    if isinstance(row, Config):
        needed = row.shared_bytes(in_bytes, 2, limits.capability)
    elif isinstance(row, gemm_promoted.PromotedConfig | PipelinedConfig):
        needed = row.shared_bytes(2, limits.capability)
    else:
        needed = row.shared_bytes(gemm_skinny.block_m_of(m), in_bytes)
    if needed <= limits.shared_bytes:
        return ""
    return f"needs {needed} bytes of shared memory, the device has {limits.shared_bytes}"


def stream_case(protocol: str, op: str, other: Row, row: Row, device: DeviceFacts) -> Case:
    """A pass through memory by a row that is tried and by the table's."""
    reads, writes = bench_memory.TRAFFIC[op]
    params = {"bytes": ARRAY_BYTES, "impl": "triton", "protocol": protocol}
    return Case(
        op,
        params | {"config": name_of(other), "against": name_of(row)},
        (Work((reads + writes) * ARRAY_BYTES, "B", "memory", bench_memory.label_of(op)),),
        memory_bytes=(reads + 2 * writes) * ARRAY_BYTES + 8 * CHUNK * 4,
        footprint_bytes=(reads + writes) * ARRAY_BYTES,
        not_applicable=missing(device),
    )


def missing(device: DeviceFacts, dtype: str = "fp16") -> str:
    """Why nothing can be tried here, or nothing."""
    if device.triton != "compiled":
        return "there is no compiled Triton kernel whose rows could be tried"
    return device.lacks(dtype, *LEAST_CAPABILITY[dtype])


def bench_tuning(case, device, measure):
    if case.op == "gemm":
        tune_gemm(case, device, measure)
    else:
        tune_stream(case, device, measure)


def tune_gemm(case, device, measure):
    p = case.params
    row = gemm_row(p["dtype"], p.get("accumulation", ""), (p["m"], p["n"], p["k"]), device)
    this, other = (partial(gemm.plan, config=config) for config in (named(p["config"], row), row))
    measure_gemms(case, device, measure, this, other)


def tune_stream(case, device, measure):
    op, place = case.op, device.torch_device
    row = memory_row(op, device)
    reads, writes = bench_memory.TRAFFIC[op]
    size, configs = case.params["bytes"] // 4, (named(case.params["config"], row), row)
    sources = [torch.empty(size, device=place) for _ in range(reads)]
    outs = [
        torch.empty(size, device=place) if writes else memory.allocate_partials(sources[0], config)
        for config in configs
    ]
    extra = [FACTOR] if op in ("write", "scale", "triad") else []
    make = getattr(memory, f"plan_{op}")
    launch, against = (make(*sources, out, *extra, config=config) for out, config in zip(outs, configs, strict=True))

    def reference(_):
        if op == "read":
            for out, config in zip(outs, configs, strict=True):
                yield out, memory.partial_reference(sources[0], out, config)
            return
        pieces = [source.split(CHUNK) for source in sources]
        for number, written in enumerate(zip(*(out.split(CHUNK) for out in outs), strict=True)):
            wanted = bench_memory.expected(op, [piece[number].double() for piece in pieces], written[0])
            yield from ((one, wanted) for one in written)

    measure(
        lambda _: launch(),
        inputs=sources,
        outputs=outs,
        reference=reference,
        exact=op in ("copy", "write"),
        least_sqnr_db=100.0,
        against=lambda _: against(),
    )


def named(name: str, row: Row) -> Row:
    """The row of that name beside the table's."""
    changes = STREAMS if isinstance(row, memory.Config) else CHANGES[type(row)]
    return next(other for other in neighbours(row, changes) if name_of(other) == name)
