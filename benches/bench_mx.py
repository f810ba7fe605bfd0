"""Block-scaled formats: what packing costs, how many bits a value takes, what it loses, and GEMM where hardware has it.

`full` alone. The error of a format is a number of kind `quality`: the kernel packs, and what it unpacks is held against
tables in which every code's value is written down.
"""

from collections.abc import Iterator

import torch

from harness.model import Case, DeviceFacts, Metric, Work
from kernels import mx, mx_gemm, mx_reference
from kernels.mx import FORMATS
from kernels.reference import shaped, sqnr_db

VALUES, SMALL_VALUES = 2**29, 2**13  # 1 GiB of bfloat16
ERROR_VALUES, SMALL_ERROR_VALUES = 2**20, 2**14
ROW = 2048
# The tables compare on the host: enough blocks to meet every code, few enough to take a moment.
COMPARED_VALUES = 2**16
# Of all others each row is decoded by the other kernel: four bits leave 14 dB and more of it, and a row not packed 0.
LEAST_ROW_DB = 10.0
STRIP_ROWS = 2**13
L2_MULTIPLES = 64
DATA = ("normal", "heavy", "outlier")
GEMM = (8192, 8192, 8192)
PEAKS = {"mxfp8_e4m3": "fp8", "nvfp4_e2m1": "fp4"}
# Decoded by tables on the host as well: rows of both operands, and where they meet in the product.
SAMPLED_ROWS, SAMPLED_COLUMNS = 64, 256
# What rounding to bfloat16 leaves; the sums are those of float32.
GEMM_SQNR_DB = 50.0
FLOAT32_SQNR_DB = 120.0


def cases(profile: str, device: DeviceFacts) -> Iterator[Case]:
    """Each format packed, unpacked, judged on three kinds of data, and multiplied."""
    if profile != "full":
        return
    for name in FORMATS:
        for op in ("pack", "unpack"):
            yield stream_case(op, name, device)
    for data in DATA:
        for name in FORMATS:
            values = ERROR_VALUES if device.kind == "cuda" else SMALL_ERROR_VALUES
            params = {"format": name, "data": data, "values": values, "impl": "triton"}
            yield Case("format_error", params, (), "quality", not_applicable=device.no_triton)
    for name in FORMATS:
        yield gemm_case(name, device)


def stream_case(op: str, name: str, device: DeviceFacts) -> Case:
    """Bytes of the bfloat16 values, codes and scales; NVFP4 reads its values twice, once for the scale of the whole."""
    form = FORMATS[name]
    values = VALUES if device.kind == "cuda" else SMALL_VALUES
    packed = form.packed_bytes(values) + values // form.block
    reads = 2 if op == "pack" and form.has_e4m3_scales else 1
    sets = device.sets(2 * values + packed, L2_MULTIPLES)
    return Case(
        op,
        {"format": name, "values": values, "dtype": "bf16", "impl": "triton"},
        (Work(reads * 2 * values + packed, "B", "memory", "read + written"),),
        # What is decoded to check it, or packed to be decoded, and temporaries.
        memory_bytes=sets * (2 * values + packed) + 8 * values + 2**29,
        footprint_bytes=sets * (2 * values + packed),
        deterministic=True,
        checked_only=device.no_triton_figures,
        not_applicable=device.no_triton,
    )


def gemm_case(name: str, device: DeviceFacts) -> Case:
    """2·m·n·k FLOP of operands that are packed before."""
    m, n, k = GEMM
    form = FORMATS[name]
    per_set = int((m * k + n * k) * form.bits_per_value / 8) + 2 * m * n
    sets = max(2, device.sets(per_set))
    return Case(
        "mx_gemm",
        {"format": name, "m": m, "n": n, "k": k, "impl": "torch"},
        (Work(2 * m * n * k, "FLOP", PEAKS.get(name), "2·m·n·k", no_peak="no data sheet states one"),),
        memory_bytes=sets * (per_set + 2 * (m * k + n * k)) + 2**32,
        footprint_bytes=sets * per_set,
        not_applicable=missing_gemm(name, device),
    )


def missing_gemm(name: str, device: DeviceFacts) -> str:
    """Why this device or this suite multiplies no such operands, or nothing."""
    if not device.at_least(10):
        return f"{name} operands need compute capability 10.0, {device.name} lacks it: see format_error for its numbers"
    if name not in mx_gemm.FORMATS:
        return f"of the block-scaled formats {' and '.join(mx_gemm.FORMATS)} are multiplied here"
    return device.no_triton


def bench_mx(case, device, measure):
    if case.op == "format_error":
        measure_error(case, device, measure)
    elif case.op == "mx_gemm":
        measure_gemm(case, device, measure)
    else:
        measure_stream(case, device, measure)


def measure_stream(case, device, measure):
    p = case.params
    form, values, place = FORMATS[p["format"]], p["values"], device.torch_device
    packed_bytes = form.packed_bytes(values) + values // form.block
    sets = case.footprint_bytes // (2 * values + packed_bytes)
    wide = [torch.empty(values // ROW, ROW, dtype=torch.bfloat16, device=place) for _ in range(sets)]
    packed = [mx.allocate(values, form, place) for _ in range(sets)]
    if case.op == "pack":
        measure_packing(sets, wide, packed, form, measure)
    else:
        measure_unpacking(sets, wide, packed, device, measure)


def measure_packing(sets, wide, packed, form, measure):
    launches = [mx.plan_quantise(*pair) for pair in zip(wide, packed, strict=True)]

    def reference(i):
        # The first and the last blocks: the scale of the whole that NVFP4 needs is the kernel's own.
        for part in (slice(0, COMPARED_VALUES), slice(-COMPARED_VALUES, None)):
            values = wide[i].view(-1)[part].cpu()
            largest = packed[i].tensor_scale.cpu() if form.has_e4m3_scales else None
            codes, scales, _ = mx_reference.quantised(values, form, outer=largest)
            piece = piece_of(packed[i], part)
            yield piece.scales.cpu().long(), scales
            yield mx_reference.unpack_codes(piece), codes
        if form.has_e4m3_scales:
            amax = wide[i].abs().max().float().cpu()
            yield packed[i].tensor_scale.cpu(), (amax / torch.tensor(448 * form.largest)).reshape(1)
        decoded = torch.empty_like(wide[i])
        mx.plan_dequantise(packed[i], decoded)()
        is_near = worst_row_ratio(wide[i], decoded) >= 10 ** (LEAST_ROW_DB / 10)
        yield is_near, torch.ones_like(is_near)

    measure(
        lambda i: launches[i % sets](),
        inputs=wide,
        outputs=[t for one in packed for t in (one.codes, one.scales)],
        reference=reference,
        sets=sets,
        exact=True,
    )


def worst_row_ratio(values, decoded):
    """The least signal over noise of any row, some rows at a time."""
    worst = []
    for before, after in zip(values.split(STRIP_ROWS), decoded.split(STRIP_ROWS), strict=True):
        signal = before.float()
        worst.append((signal.square().sum(dim=1) / (after.float() - signal).square().sum(dim=1)).min())
    return torch.stack(worst).min()


def measure_unpacking(sets, wide, packed, device, measure):
    sources = [torch.empty_like(w) for w in wide[:1]]
    launches = [mx.plan_dequantise(*pair) for pair in zip(packed, wide, strict=True)]

    def before(i):
        # Whatever the inputs are, these bytes stand for them.
        mx.plan_quantise(sources[0], packed[i % sets])()

    def reference(i):
        for part in (slice(0, COMPARED_VALUES), slice(-COMPARED_VALUES, None)):
            yield wide[i].view(-1)[part].cpu(), mx_reference.dequantised(piece_of(packed[i], part))
        yield wide[i].isfinite().all(), torch.ones((), dtype=torch.bool, device=device.torch_device)

    measure(
        lambda i: launches[i % sets](),
        inputs=sources,
        outputs=wide,
        reference=reference,
        sets=sets,
        before=before,
        least_sqnr_db=50.0,
    )


def piece_of(packed, part):
    """Some of the values, from the start or to the end."""
    form = packed.format
    count = abs(part.start or part.stop)

    def of(tensor, size):
        return tensor[:size] if part.start == 0 else tensor[-size:]

    codes, scales = of(packed.codes, form.packed_bytes(count)), of(packed.scales, count // form.block)
    return mx.Packed(form, codes, scales, packed.tensor_scale, count)


def rows_of(packed, k, rows):
    """Those rows of a packed matrix of k columns."""
    codes, scales = (kept.view(packed.values // k, -1)[rows].flatten() for kept in (packed.codes, packed.scales))
    return mx.Packed(packed.format, codes, scales, packed.tensor_scale, len(rows) * k)


def measure_error(case, device, measure):
    """SQNR of a format, the same without the largest values, and the bits that it takes."""
    p = case.params
    form, place = FORMATS[p["format"]], device.torch_device
    drawn = torch.empty(p["values"] // ROW, ROW, device=place)
    packed = mx.allocate(p["values"], form, place)
    out = torch.empty(p["values"], device=place)

    def launch(_):
        values = shaped(drawn, p["data"])
        mx.plan_quantise(values, packed)()
        mx.plan_dequantise(packed, out)()
        out.sum().item()  # by the host's clock it must be over

    def figures():
        values = shaped(drawn, p["data"]).view(-1)
        yield Metric("quality", sqnr_db(out, values), "dB", "higher", label="SQNR of all values")
        small = values.abs() <= values.abs().quantile(0.99)
        error = sqnr_db(out[small], values[small])
        yield Metric("quality.small", error, "dB", "higher", label="SQNR of the smallest 99 %")
        lost = ((out == 0) & (values != 0)).float().mean().item()
        yield Metric("quality.flushed", lost, "ratio", "lower", label="values that became zero")
        bits = packed.stored_bits_per_value
        yield Metric("quality.bits", bits, "bit/value", "lower", label="stored, scales included")

    measure(
        launch,
        [drawn],
        [out],
        lambda _: [(out.cpu(), mx_reference.dequantised(packed))],
        shots=1,
        least_sqnr_db=FLOAT32_SQNR_DB,
        figures=figures,
    )


def measure_gemm(case, device, measure):
    p = case.params
    m, n, k, form, place = p["m"], p["n"], p["k"], FORMATS[p["format"]], device.torch_device
    per_set = int((m * k + n * k) * form.bits_per_value / 8) + 2 * m * n
    sets = case.footprint_bytes // per_set
    wide = [[torch.empty(rows, k, dtype=torch.bfloat16, device=place) for rows in (m, n)] for _ in range(sets)]
    packed = [[mx.allocate(rows * k, form, place) for rows in (m, n)] for _ in range(sets)]
    plans, outs = [None] * sets, [None] * sets

    def before(i):
        for pair in zip(wide[i], packed[i], strict=True):
            mx.plan_quantise(*pair)()
        plans[i] = mx_gemm.plan(*packed[i], k)

    def launch(i):
        outs[i % sets] = plans[i % sets]()

    def reference(i):
        rows = torch.linspace(0, m - 1, SAMPLED_ROWS, device=place).long()
        columns = torch.linspace(0, n - 1, SAMPLED_COLUMNS, device=place).long()
        a, b = (
            mx_reference.dequantised(rows_of(side, k, chosen)).view(-1, k)
            for side, chosen in zip(packed[i], (rows, columns), strict=True)
        )
        yield outs[i][rows][:, columns].cpu(), a @ b.t()
        yield outs[i].isfinite().all(), torch.ones((), dtype=torch.bool, device=place)

    measure(
        launch,
        inputs=[side for pair in wide for side in pair],
        outputs=[],
        reference=reference,
        sets=sets,
        before=before,
        least_sqnr_db=GEMM_SQNR_DB,
    )
