"""Quantisation to fp8 as Triton kernels: amax, scale, clamp, cast, in one or both layouts of a matrix at once.

A linear layer's backward pass contracts over other dimensions than its forward pass, and fp8 tensor cores take K-major
operands only, so that each operand is needed as it is and transposed: `plan_quantise` writes both in one pass. Scaling:

- `tensor`: one scale, from the amax of this tensor (current scaling: read twice) or from a history of earlier ones
  (delayed scaling: read once; what exceeds the old amax is clamped).
- `row`: one scale for each row of each layout, since a row is what a product contracts.
- `block`: one for each 128 values of a row; `square`: one for each 128 x 128 tile, the same for both layouts.

Scales are decode scales: value = code * scale. Values are clamped to the type's largest finite value before the cast:
torch 2.11 turns what overflows e4m3 into NaN, later releases saturate, and e5m2 overflows to infinity; NaN stays NaN.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
import triton
import triton.language as tl

Launch = Callable[[], None]

TILE = 128
# An all-zero row has no amax: a scale of nothing would divide by zero, one of a subnormal would overflow.
LEAST_AMAX = 2.0**-100
SPLITS = 16
AMAX_BLOCK = 8192
HISTORY = 16
MODES = ("tensor", "row", "block", "square")
# Where no block of values sets the tile, a smaller one leaves room for several programs on an SM.
CAST_TILES = {"tensor": 64, "row": 64, "block": TILE, "square": TILE}
CAST_WARPS = {64: 4, TILE: 8}
_TENSOR, _ROW, _BLOCK, _SQUARE = (tl.constexpr(number) for number in range(4))


# --- kernels -----------------------------------------------------------------------------------------------------


@triton.jit
def amax_kernel(
    source: tl.tensor, partials: tl.tensor, size: tl.tensor, BLOCK: tl.constexpr, STAGES: tl.constexpr
) -> None:
    """partials[p] = largest magnitude in the blocks p, p + P, p + 2P, ... of source; size is whole blocks."""
    largest = tl.zeros((BLOCK,), dtype=tl.float32)
    lane = tl.arange(0, BLOCK)
    first = tl.program_id(0).to(tl.int64) * BLOCK
    for start in tl.range(first, size, tl.num_programs(0) * BLOCK, num_stages=STAGES):
        largest = tl.maximum(largest, tl.abs(tl.load(source + start + lane).to(tl.float32)))
    tl.store(partials + tl.program_id(0), tl.max(largest, axis=0))


@triton.jit
def panel_amax_kernel(
    source: tl.tensor,
    row_partials: tl.tensor,
    column_partials: tl.tensor,
    rows: tl.tensor,
    columns: tl.tensor,
    TILE: tl.constexpr,
    SPLITS: tl.constexpr,
    BY_ROW: tl.constexpr,
) -> None:
    """Partials[split, line] = largest magnitude of each row (or column) in every SPLITS-th tile along it."""
    strip, split = tl.program_id(0), tl.program_id(1)
    lane = tl.arange(0, TILE)
    largest = tl.zeros((TILE,), dtype=tl.float32)
    for tile in range(split, (columns if BY_ROW else rows) // TILE, SPLITS):
        row = (strip if BY_ROW else tile) * TILE + lane
        column = (tile if BY_ROW else strip) * TILE + lane
        values = tl.load(source + row.to(tl.int64)[:, None] * columns + column[None, :]).to(tl.float32)
        largest = tl.maximum(largest, tl.max(tl.abs(values), axis=1 if BY_ROW else 0))
    if BY_ROW:
        tl.store(row_partials + split * rows + strip * TILE + lane, largest)
    else:
        tl.store(column_partials + split * columns + strip * TILE + lane, largest)


@triton.jit
def lines_amax(
    values: tl.tensor,
    row_amax: tl.tensor,
    column_amax: tl.tensor,
    row: tl.tensor,
    column: tl.tensor,
    rows: tl.tensor,
    columns: tl.tensor,
    MODE: tl.constexpr,
    COUNT: tl.constexpr,
    LANES: tl.constexpr,
    BOTH: tl.constexpr,
) -> tuple[tl.tensor, tl.tensor]:
    """What each row and each column of a tile is scaled by."""
    nothing = tl.zeros_like(row).to(tl.float32)
    if MODE == _TENSOR:
        known = tl.arange(0, LANES)
        of_rows = nothing + tl.max(tl.load(row_amax + known, mask=known < COUNT, other=0.0), axis=0)
        of_columns = of_rows
    elif MODE == _ROW:
        split = tl.arange(0, COUNT)
        of_rows = tl.max(tl.load(row_amax + split[:, None] * rows + row[None, :]), axis=0)
        of_columns = of_rows
        if BOTH:
            of_columns = tl.max(tl.load(column_amax + split[:, None] * columns + column[None, :]), axis=0)
    elif MODE == _SQUARE:
        of_rows = nothing + tl.max(tl.max(tl.abs(values), axis=1), axis=0)
        of_columns = of_rows
    else:
        of_rows = tl.max(tl.abs(values), axis=1)
        of_columns = tl.max(tl.abs(values), axis=0)
    return of_rows, of_columns


@triton.jit
def store_scales(
    scales: tl.tensor,
    line_scales: tl.tensor,
    line: tl.tensor,
    strip: tl.tensor,
    tile: tl.tensor,
    lines: tl.tensor,
    tiles: tl.tensor,
    MODE: tl.constexpr,
) -> None:
    """A tile's scales where `Quantised` holds them: tile number `tile` of `tiles` along strip number `strip`."""
    if MODE == _BLOCK:
        tl.store(scales + tile * lines + line, line_scales)
    elif MODE == _SQUARE:
        tl.store(scales + strip * tiles + tile, tl.max(line_scales, axis=0))
    elif MODE == _ROW:
        if tile == 0:
            tl.store(scales + line, line_scales)
    elif strip == 0 and tile == 0:
        tl.store(scales, tl.max(line_scales, axis=0))


@triton.jit
def made_odd(values: tl.tensor) -> tl.tensor:
    """Values whose last bit that float16 keeps is set where it would drop others: none becomes a tie that was not one.

    For compute capability 8.9 Triton cuts float32 to float16 before it rounds to fp8. What lies just above the middle
    of two codes was in the middle then, and one code in some hundreds came out as its neighbour.
    """
    bits = values.to(tl.int32, bitcast=True)
    bits |= ((bits & 0x1FFF) != 0).to(tl.int32) << 13
    return bits.to(tl.float32, bitcast=True)


@triton.jit
def cast_kernel(
    source: tl.tensor,
    row_amax: tl.tensor,
    column_amax: tl.tensor,
    out: tl.tensor,
    out_t: tl.tensor,
    scales: tl.tensor,
    scales_t: tl.tensor,
    seen: tl.tensor,
    rows: tl.tensor,
    columns: tl.tensor,
    limit: tl.tensor,
    MODE: tl.constexpr,
    COUNT: tl.constexpr,
    LANES: tl.constexpr,
    BOTH: tl.constexpr,
    REMEMBERS: tl.constexpr,
    TILE: tl.constexpr,
    LEAST: tl.constexpr,
    CUTS: tl.constexpr,
) -> None:
    """One tile of out = clamp(source / scale) and, with BOTH, of its transpose; `seen` gets the tile's own amax."""
    tile_row, tile_column = tl.program_id(0), tl.program_id(1)
    lane = tl.arange(0, TILE)
    row, column = tile_row * TILE + lane, tile_column * TILE + lane
    values = tl.load(source + row.to(tl.int64)[:, None] * columns + column[None, :]).to(tl.float32)

    of_rows, of_columns = lines_amax(
        values, row_amax, column_amax, row, column, rows, columns, MODE, COUNT, LANES, BOTH
    )
    of_rows = tl.maximum(of_rows, LEAST)
    of_columns = tl.maximum(of_columns, LEAST)

    # Rounded to nearest, both of them: the approximate division would put one code in thousands on its neighbour.
    whole = tl.zeros((TILE,), dtype=tl.float32) + limit
    codes = values * tl.div_rn(whole, of_rows)[:, None]
    codes = tl.clamp(codes, -limit, limit, propagate_nan=tl.PropagateNan.ALL)
    if CUTS:
        codes = made_odd(codes)
    place = row.to(tl.int64)[:, None] * columns + column[None, :]
    tl.store(out + place, codes.to(out.dtype.element_ty))
    if BOTH:
        codes_t = tl.trans(values * tl.div_rn(whole, of_columns)[None, :])
        codes_t = tl.clamp(codes_t, -limit, limit, propagate_nan=tl.PropagateNan.ALL)
        if CUTS:
            codes_t = made_odd(codes_t)
        place_t = column.to(tl.int64)[:, None] * rows + row[None, :]
        tl.store(out_t + place_t, codes_t.to(out_t.dtype.element_ty))

    tiles, tiles_t = columns // TILE, rows // TILE
    store_scales(scales, tl.div_rn(of_rows, whole), row, tile_row, tile_column, rows, tiles, MODE)
    # One scale of all is the same tensor for both layouts.
    if BOTH and MODE != _TENSOR:
        store_scales(scales_t, tl.div_rn(of_columns, whole), column, tile_column, tile_row, columns, tiles_t, MODE)
    if REMEMBERS:
        tl.store(seen + tile_row * tiles + tile_column, tl.max(tl.max(tl.abs(values), axis=1), axis=0))


@triton.jit
def remember_kernel(
    seen: tl.tensor,
    history: tl.tensor,
    amax: tl.tensor,
    used: tl.tensor,
    tiles: tl.tensor,
    BLOCK: tl.constexpr,
    HISTORY: tl.constexpr,
) -> None:
    """Put the amax of this step's tiles first in the history, and the largest of the history into amax."""
    tl.store(used, tl.load(amax))
    lane = tl.arange(0, BLOCK)
    largest = tl.zeros((BLOCK,), dtype=tl.float32)
    for start in range(0, tiles, BLOCK):
        largest = tl.maximum(largest, tl.load(seen + start + lane, mask=start + lane < tiles, other=0.0))
    step = tl.arange(0, HISTORY)
    older = tl.load(history + step - 1, mask=step > 0, other=0.0)
    kept = tl.where(step == 0, tl.max(largest, axis=0), older)
    tl.debug_barrier()  # every thread has read its neighbour's entry, and amax, before any is overwritten
    tl.store(history + step, kept)
    tl.store(amax, tl.max(kept, axis=0))


# --- what is quantised -------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Quantised:
    """A matrix [rows, columns] in fp8 with its scales, and its transpose [columns, rows] where that was asked for.

    `scales` is (1,) for `tensor`, [rows, 1] for `row`, [rows, columns/128] with rows adjacent for `block` and
    [rows/128, columns/128] for `square`: the layouts that `torch._scaled_mm` takes. `state` is what delayed scaling
    keeps: `history` of the last amaxes, newest first, their largest, `amax`, which scales the next step, and `used`,
    which scaled the last one.
    """

    codes: torch.Tensor
    scales: torch.Tensor
    codes_t: torch.Tensor | None
    scales_t: torch.Tensor | None
    mode: str
    state: dict[str, torch.Tensor] = field(default_factory=dict)

    @property
    def is_delayed(self) -> bool:
        """Whether the scale comes from earlier steps."""
        return bool(self.state)


def allocate(
    rows: int,
    columns: int,
    dtype: torch.dtype,
    mode: str,
    device: str | torch.device,
    *,
    both: bool = False,
    delayed_from: float | None = None,
) -> Quantised:
    """Room for a matrix and its scales; `delayed_from` is the amax that delayed scaling assumes for its first step."""
    if mode not in MODES or rows % TILE or columns % TILE:
        raise ValueError(f"mode {mode!r} of {rows} x {columns}: one of {MODES} and multiples of {TILE} are needed")
    if delayed_from is not None and mode != "tensor":
        raise ValueError(f"scaling by {mode} is never delayed: its scales are found in the pass that uses them")

    def made(height: int, width: int) -> tuple[torch.Tensor, torch.Tensor]:
        codes = torch.empty(height, width, dtype=dtype, device=device)
        shapes = {
            "tensor": (1,),
            "row": (height, 1),
            "block": (width // TILE, height),
            "square": (height // TILE, width // TILE),
        }
        scales = torch.empty(shapes[mode], dtype=torch.float32, device=device)
        return codes, scales.t() if mode == "block" else scales

    codes, scales = made(rows, columns)
    codes_t, scales_t = made(columns, rows) if both else (None, None)
    if both and mode == "tensor":
        scales_t = scales
    state = {}
    if delayed_from is not None:
        state = {
            "history": torch.full((HISTORY,), delayed_from, dtype=torch.float32, device=device),
            "amax": torch.full((1,), delayed_from, dtype=torch.float32, device=device),
            "used": torch.full((1,), delayed_from, dtype=torch.float32, device=device),
            "seen": torch.empty(rows * columns // CAST_TILES[mode] ** 2, dtype=torch.float32, device=device),
        }
    return Quantised(codes, scales, codes_t, scales_t, mode, state)


def bytes_moved(rows: int, columns: int, mode: str, *, source_bytes: int, both: bool, delayed: bool) -> int:
    """What one quantisation reads and writes at least: the source once, or twice where scales are of more than a tile.

    Rows and columns can be looked at in one pass. This file's kernels take one for each, which is their own loss.
    """
    reads = 2 if mode == "row" or (mode == "tensor" and not delayed) else 1
    return rows * columns * (reads * source_bytes + (2 if both else 1))


def plan_quantise(source: torch.Tensor, into: Quantised) -> Launch:
    """A launch that fills `into` from source [rows, columns], a contiguous matrix of bfloat16, float16 or float32."""
    rows, columns = into.codes.shape
    if source.shape != into.codes.shape or not source.is_contiguous() or not source.is_floating_point():
        raise ValueError(f"source is {source.dtype} {tuple(source.shape)}; a contiguous {rows} x {columns} is needed")
    amaxes, launches = _amax_launches(source, into)
    # The interpreter does not round to fp8 as a GPU does: there the kernel stores float32 and torch casts.
    is_interpreted = not isinstance(cast_kernel, triton.JITFunction)
    out, out_t = (
        torch.empty_like(codes, dtype=torch.float32) if is_interpreted and codes is not None else codes
        for codes in (into.codes, into.codes_t)
    )
    row_amax, column_amax = amaxes
    count, tile = row_amax.shape[0], CAST_TILES[into.mode]
    nothing = into.scales  # never touched: the kernel is compiled without the branch
    arguments: dict[str, Any] = {
        "MODE": MODES.index(into.mode),
        "COUNT": count,
        "LANES": triton.next_power_of_2(count),
        "BOTH": into.codes_t is not None,
        "REMEMBERS": into.is_delayed,
        "TILE": tile,
        "LEAST": LEAST_AMAX,
        "CUTS": cuts_to_half(source.device),
        "num_warps": CAST_WARPS[tile],
    }

    def launch() -> None:
        for amax_launch in launches:
            amax_launch()
        cast_kernel[(rows // tile, columns // tile)](
            source,
            row_amax,
            column_amax,
            out,
            nothing if out_t is None else out_t,
            into.scales,
            nothing if into.scales_t is None else into.scales_t,
            into.state.get("seen", nothing),
            rows,
            columns,
            torch.finfo(into.codes.dtype).max,
            **arguments,
        )
        if is_interpreted:
            for codes, stored in ((into.codes, out), (into.codes_t, out_t)):
                if codes is not None and stored is not None:
                    codes.copy_(stored)
        if into.is_delayed:
            seen, history, amax, used = (into.state[name] for name in ("seen", "history", "amax", "used"))
            remember_kernel[(1,)](seen, history, amax, used, seen.numel(), BLOCK=1024, HISTORY=HISTORY, num_warps=4)

    return launch


def _amax_launches(
    source: torch.Tensor, into: Quantised
) -> tuple[tuple[torch.Tensor, torch.Tensor], list[Callable[[], Any]]]:
    """Where the cast finds the amax of rows and of columns, and what must run before it to put them there."""
    rows, columns = source.shape
    make = {"dtype": torch.float32, "device": source.device}
    if into.is_delayed:
        return (into.state["amax"], into.state["amax"]), []
    if into.mode == "tensor":
        programs = 2 * sm_count(source.device)
        partials = torch.empty(programs, **make)  # type: ignore[call-overload]  # keywords of a dictionary
        # Tiles are whole, so that a block of fewer elements divides every size.
        block = AMAX_BLOCK if source.numel() % AMAX_BLOCK == 0 else TILE * TILE // 2
        run = amax_kernel[(programs,)]
        return (partials, partials), [lambda: run(source, partials, source.numel(), BLOCK=block, STAGES=3, num_warps=8)]
    if into.mode != "row":
        return (into.scales, into.scales), []
    of_rows = torch.empty(SPLITS, rows, **make)  # type: ignore[call-overload]  # keywords of a dictionary
    of_columns = torch.empty(SPLITS, columns, **make)  # type: ignore[call-overload]  # keywords of a dictionary

    def panels(lines: int, by_row: bool) -> Callable[[], Any]:
        run = panel_amax_kernel[(lines // TILE, SPLITS)]
        sizes = {"TILE": TILE, "SPLITS": SPLITS, "BY_ROW": by_row}
        return lambda: run(source, of_rows, of_columns, rows, columns, **sizes, num_warps=8)

    launches = [panels(rows, True)]
    return (of_rows, of_columns), launches + ([panels(columns, False)] if into.codes_t is not None else [])


def cuts_to_half(device: torch.device) -> bool:
    """Whether Triton brings float32 to fp8 through float16 there."""
    return device.type == "cuda" and torch.cuda.get_device_capability(device) == (8, 9)


def sm_count(device: torch.device) -> int:
    """SMs of a GPU; two programs stand for them where there is none."""
    return torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 2


# --- the same in torch: what the kernels are held against ------------------------------------------------------------


def amax_of(source: torch.Tensor, mode: str) -> torch.Tensor:
    """The amax that each value is scaled by, in float32 and broadcast over source [rows, columns]."""
    magnitude = source.float().abs()
    if mode == "tensor":
        return magnitude.max().expand_as(source)
    if mode == "row":
        return magnitude.amax(dim=1, keepdim=True).expand_as(source)
    height = 1 if mode == "block" else TILE
    blocks = magnitude.unflatten(1, (-1, TILE)).unflatten(0, (-1, height))
    return blocks.amax(dim=(1, 3), keepdim=True).expand_as(blocks).flatten(2, 3).flatten(0, 1)


def emulate(
    source: torch.Tensor, dtype: torch.dtype, mode: str, *, amax: torch.Tensor | None = None, clamps: bool = True
) -> tuple[torch.Tensor, torch.Tensor]:
    """Codes and decode scales, both [rows, columns]; with an `amax` of earlier data, delayed scaling."""
    largest = (amax_of(source, mode) if amax is None else amax.expand_as(source)).clamp(min=LEAST_AMAX)
    limit = torch.full_like(largest, torch.finfo(dtype).max)
    scaled = source.float() * (limit / largest)
    if clamps:
        scaled = scaled.clamp(-torch.finfo(dtype).max, torch.finfo(dtype).max)
    return scaled.to(dtype), largest / limit


def spread(scales: torch.Tensor, rows: int, columns: int) -> torch.Tensor:
    """Scales as `Quantised` holds them, repeated to one a value."""
    if scales.numel() == 1:
        return scales.reshape(1, 1).expand(rows, columns)
    height, width = rows // scales.shape[0], columns // scales.shape[1]
    return scales.repeat_interleave(height, dim=0).repeat_interleave(width, dim=1)
