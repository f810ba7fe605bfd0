"""Attention forward with grouped-query heads: decode over a key-value cache, contiguous or paged, and causal prefill.

Shapes: q [batch, heads, d] in decode and [batch, heads, length, d] in prefill; keys and values of a contiguous cache
[batch, kv_heads, length, d], of a paged one [pages, kv_heads, PAGE, d] with a table [batch, pages of a sequence]. Query
head h reads from key-value head h // (heads // kv_heads). Scores are scaled by d ** -0.5, and by what keys and values
of 8 bits were divided by.

Decode is bound by the memory: a sequence's cache is split between programs, so that all SMs read, and a second kernel
combines what they found, always in the same order. Tensor cores multiply, with the queries of one key-value head padded
to 16 rows, because CUDA cores would not keep up with the memory.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
import triton
import triton.language as tl

Launch = Callable[[], object]

PAGE = 64
# tl.dot takes no fewer rows.
LEAST_ROWS = 16
LOG2_E = 1.4426950408889634
CACHE_DTYPES = (torch.bfloat16, torch.float16, torch.float8_e4m3fn)
# Programs of decode that an SM holds.
PROGRAMS_PER_SM = 2
# A program of a single block would have nothing to load while it computes.
LEAST_BLOCKS = 2
MOST_SPLITS = 128  # a power of two
# A split more is worth it for so much less time: every one is written, read again and added.
WORTH_RATIO = 0.95


# --- decode ------------------------------------------------------------------------------------------------------


# How many splits there are is no constant: a kernel for each number would take longer to compile than to measure.
@triton.jit(do_not_specialize=["blocks_each", "splits"])
def decode_kernel(
    q: tl.tensor,
    keys: tl.tensor,
    values: tl.tensor,
    table: tl.tensor,
    out: tl.tensor,
    maxima: tl.tensor,
    sums: tl.tensor,
    scale: tl.tensor,
    value_scale: tl.tensor,
    length: tl.tensor,
    blocks_each: tl.tensor,
    splits: tl.tensor,
    KV_HEADS: tl.constexpr,
    GROUP: tl.constexpr,
    ROWS: tl.constexpr,
    D: tl.constexpr,
    BLOCK: tl.constexpr,
    IS_SPLIT: tl.constexpr,
    PAGED: tl.constexpr,
    MULTIPLY: tl.constexpr,
    STAGES: tl.constexpr,
) -> None:
    """One split of one sequence's cache for all query heads of one key-value head.

    Without IS_SPLIT `out` is the result; else it holds each one's weighted sum, unscaled, in float32, beside the
    largest score and the sum of weights. Scores are in powers of two: `scale` contains log2(e). `blocks_each` blocks
    are a split's; the last may have fewer. MULTIPLY is the type in which tensor cores multiply.
    """
    split = tl.program_id(0)
    sequence_head = tl.program_id(1).to(tl.int64)
    sequence = sequence_head // KV_HEADS
    row = tl.arange(0, ROWS)
    lane = tl.arange(0, D)
    column = tl.arange(0, BLOCK)
    is_query = row < GROUP
    first_head = sequence_head * GROUP
    queries = tl.load(q + (first_head + row[:, None]) * D + lane[None, :], mask=is_query[:, None], other=0.0)
    queries = queries.to(MULTIPLY)
    largest = tl.full((ROWS,), float("-inf"), dtype=tl.float32)
    total = tl.zeros((ROWS,), dtype=tl.float32)
    weighted = tl.zeros((ROWS, D), dtype=tl.float32)
    blocks = tl.cdiv(length, BLOCK)
    first = split * blocks_each
    for block in tl.range(first, tl.minimum(first + blocks_each, blocks), num_stages=STAGES):
        if PAGED:
            page = tl.load(table + sequence * blocks + block).to(tl.int64)
            start = (page * KV_HEADS + sequence_head % KV_HEADS) * BLOCK
        else:
            start = sequence_head * length + block * BLOCK
        place = (start + column)[:, None] * D + lane[None, :]
        is_inside = block * BLOCK + column < length
        if PAGED:
            k = tl.load(keys + place)
            v = tl.load(values + place)
        else:
            k = tl.load(keys + place, mask=is_inside[:, None], other=0.0)
            v = tl.load(values + place, mask=is_inside[:, None], other=0.0)
        scores = tl.dot(queries, tl.trans(k.to(MULTIPLY)), out_dtype=tl.float32) * scale
        scores = tl.where(is_inside[None, :], scores, float("-inf"))
        new_largest = tl.maximum(largest, tl.max(scores, axis=1))
        weights = tl.exp2(scores - new_largest[:, None])
        shrink = tl.exp2(largest - new_largest)
        total = total * shrink + tl.sum(weights, axis=1)
        weighted = tl.dot(weights.to(MULTIPLY), v.to(MULTIPLY), weighted * shrink[:, None], out_dtype=tl.float32)
        largest = new_largest
    head = first_head + row
    if not IS_SPLIT:
        result = weighted / total[:, None] * value_scale
        tl.store(out + head[:, None] * D + lane[None, :], result.to(out.dtype.element_ty), mask=is_query[:, None])
    else:
        place_of_split = head * splits + split
        tl.store(out + place_of_split[:, None] * D + lane[None, :], weighted, mask=is_query[:, None])
        tl.store(maxima + place_of_split, largest, mask=is_query)
        tl.store(sums + place_of_split, total, mask=is_query)


@triton.jit(do_not_specialize=["splits"])
def combine_kernel(
    parts: tl.tensor,
    maxima: tl.tensor,
    sums: tl.tensor,
    out: tl.tensor,
    value_scale: tl.tensor,
    splits: tl.tensor,
    D: tl.constexpr,
    MOST: tl.constexpr,
) -> None:
    """out = what the splits of one query head found together, added one after the other: the same bits every time."""
    head = tl.program_id(0).to(tl.int64)
    lane = tl.arange(0, D)
    split = tl.arange(0, MOST)
    all_maxima = tl.load(maxima + head * splits + split, mask=split < splits, other=float("-inf"))
    largest = tl.max(all_maxima, axis=0)
    total = 0.0
    weighted = tl.zeros((D,), dtype=tl.float32)
    for part in range(splits):
        place = head * splits + part
        weight = tl.exp2(tl.load(maxima + place) - largest)
        total += weight * tl.load(sums + place)
        weighted += weight * tl.load(parts + place * D + lane)
    tl.store(out + head * D + lane, (weighted / total * value_scale).to(out.dtype.element_ty))


# --- prefill -----------------------------------------------------------------------------------------------------


@triton.jit
def prefill_kernel(
    q: tl.tensor,
    keys: tl.tensor,
    values: tl.tensor,
    out: tl.tensor,
    scale: tl.tensor,
    length: tl.tensor,
    HEADS: tl.constexpr,
    KV_HEADS: tl.constexpr,
    D: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    CAUSAL: tl.constexpr,
    MULTIPLY: tl.constexpr,
    STAGES: tl.constexpr,
) -> None:
    """Flash attention of one block of queries of one head over the keys, which pass by once; length is of whole blocks.

    Blocks that see the most keys start first, so that none of them is left for the end.
    """
    block_m = tl.num_programs(0) - 1 - tl.program_id(0)
    sequence_head = tl.program_id(1).to(tl.int64)
    kv_head = sequence_head // HEADS * KV_HEADS + sequence_head % HEADS // (HEADS // KV_HEADS)
    row = block_m * BLOCK_M + tl.arange(0, BLOCK_M)
    column = tl.arange(0, BLOCK_N)
    lane = tl.arange(0, D)
    of_queries = (sequence_head * length + row)[:, None] * D + lane[None, :]
    keys += kv_head * length * D
    values += kv_head * length * D
    queries = tl.load(q + of_queries).to(MULTIPLY)
    largest = tl.full((BLOCK_M,), float("-inf"), dtype=tl.float32)
    total = tl.zeros((BLOCK_M,), dtype=tl.float32)
    weighted = tl.zeros((BLOCK_M, D), dtype=tl.float32)
    # Up to the diagonal nothing is masked; the blocks on it are the rest of the same loop's work.
    whole = block_m * BLOCK_M if CAUSAL else length
    for start in tl.range(0, whole, BLOCK_N, num_stages=STAGES):
        place = (start + column)[:, None] * D + lane[None, :]
        k = tl.load(keys + place).to(MULTIPLY)
        v = tl.load(values + place).to(MULTIPLY)
        scores = tl.dot(queries, tl.trans(k), out_dtype=tl.float32) * scale
        new_largest = tl.maximum(largest, tl.max(scores, axis=1))
        weights = tl.exp2(scores - new_largest[:, None])
        shrink = tl.exp2(largest - new_largest)
        total = total * shrink + tl.sum(weights, axis=1)
        weighted = tl.dot(weights.to(MULTIPLY), v, weighted * shrink[:, None], out_dtype=tl.float32)
        largest = new_largest
    if CAUSAL:
        for start in tl.range(whole, whole + BLOCK_M, BLOCK_N, num_stages=1):
            place = (start + column)[:, None] * D + lane[None, :]
            k = tl.load(keys + place).to(MULTIPLY)
            v = tl.load(values + place).to(MULTIPLY)
            scores = tl.dot(queries, tl.trans(k), out_dtype=tl.float32) * scale
            scores = tl.where(row[:, None] >= start + column[None, :], scores, float("-inf"))
            new_largest = tl.maximum(largest, tl.max(scores, axis=1))
            weights = tl.exp2(scores - new_largest[:, None])
            shrink = tl.exp2(largest - new_largest)
            total = total * shrink + tl.sum(weights, axis=1)
            weighted = tl.dot(weights.to(MULTIPLY), v, weighted * shrink[:, None], out_dtype=tl.float32)
            largest = new_largest
    tl.store(out + of_queries, (weighted / total[:, None]).to(out.dtype.element_ty))


INTERPRETED = not isinstance(decode_kernel, triton.runtime.JITFunction)


# --- plans -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class PrefillConfig:
    """Tiles and pipeline of `prefill_kernel`."""

    block_m: int = 128
    block_n: int = 128
    warps: int = 8
    stages: int = 2


PREFILL = PrefillConfig()
# Other tensor cores than those of Hopper and data-centre Blackwell take operands from registers, which then do not hold
# 128 keys as well: a thread spilled 584 bytes. Never run.
PREFILL_FROM_REGISTERS = PrefillConfig(block_n=64, stages=3)
DECODE_WARPS = 4
# Blocks of keys and values under way: 3 of 64 by 128 in 2 B are 96 KiB of the 227 of an SM of Hopper.
MOST_BUFFERS = 3
# Shared memory of a program beside them: queries and weights of 16 rows, and what CUDA keeps for itself.
BESIDE_BUFFERS, RESERVED = 6 * 1024 + 64, 1024


def decode_stages(block_bytes: int, shared_bytes: int, *, is_paged: bool) -> int:
    """Stages for as many buffers of keys and values, of so many bytes a block, as let PROGRAMS_PER_SM programs fit.

    `shared_bytes` is what one program may ask for, which is all that an SM has. The compiler spreads stages over loads
    that wait for one another: pages whose number is loaded first need seven for the three buffers that four give
    without.
    """
    of_one = (shared_bytes + RESERVED) // PROGRAMS_PER_SM - RESERVED - BESIDE_BUFFERS
    buffers = max(1, min(MOST_BUFFERS, of_one // block_bytes))
    return 2 * buffers + 1 if is_paged else buffers + 1


def shared_bytes_of(device: torch.device) -> int:
    """Shared memory that one program may ask for; an H200's where there is no GPU."""
    if device.type != "cuda":
        return 232448
    properties = torch.cuda.get_device_properties(device)
    return int(properties.shared_memory_per_block_optin)  # type: ignore[attr-defined]  # missing in torch's stub


def prefill_config(device: torch.device) -> PrefillConfig:
    """The tiles for a GPU; Hopper's where there is none."""
    major = torch.cuda.get_device_capability(device)[0] if device.type == "cuda" else 9
    return PREFILL if major in (9, 10) else PREFILL_FROM_REGISTERS


def choose_splits(sequence_heads: int, blocks: int, slots: int) -> int:
    """Into how many parts each sequence's cache is split, where so many programs run at once.

    Time is the waves of programs times the blocks that each reads. Of all numbers of parts, the smallest whose time is
    within 5 % of the least.
    """
    most = max(1, min(MOST_SPLITS, blocks // LEAST_BLOCKS))
    times = {
        splits: triton.cdiv(sequence_heads * splits, slots) * triton.cdiv(blocks, splits)
        for splits in range(1, most + 1)
        if triton.cdiv(blocks, triton.cdiv(blocks, splits)) == splits  # no split without a block
    }
    least = min(times.values())
    return next(splits for splits, time in times.items() if least >= WORTH_RATIO * time)


def plan_decode(
    q: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    out: torch.Tensor,
    *,
    sm_count: int,
    table: torch.Tensor | None = None,
    key_scale: float = 1.0,
    value_scale: float = 1.0,
    scratch: torch.Tensor | None = None,
) -> Launch:
    """A launch of out = attention of one query a head over the cache; the cache is paged where there is a table.

    A paged cache is as long as its pages, a contiguous one as long as its tensor. Launches that follow one another may
    share the float32 `scratch` for what splits find, of `scratch_numbers` at least.
    """
    batch, heads, d, kv_heads, length = _decode_shape(q, keys, values, out, table)
    blocks = triton.cdiv(length, PAGE)
    splits = choose_splits(batch * kv_heads, blocks, PROGRAMS_PER_SM * sm_count)
    group = heads // kv_heads
    found = batch * heads * splits
    if scratch is None:
        scratch = torch.empty(found * (d + 2), device=q.device)
    parts, maxima, sums = scratch[: found * (d + 2)].split((found * d, found, found))
    # The interpreter multiplies bfloat16 wrongly; fp8 fits into float16 and is one instruction away from it.
    multiply = tl.float32 if INTERPRETED else tl.bfloat16 if keys.dtype == torch.bfloat16 else tl.float16
    decode = partial(
        decode_kernel[(splits, batch * kv_heads)],
        q,
        keys,
        values,
        q if table is None else table,
        out if splits == 1 else parts,
        maxima,
        sums,
        d**-0.5 * LOG2_E * key_scale,
        value_scale,
        length,
        triton.cdiv(blocks, splits),
        splits,
        KV_HEADS=kv_heads,
        GROUP=group,
        ROWS=max(LEAST_ROWS, triton.next_power_of_2(group)),
        D=d,
        BLOCK=PAGE,
        IS_SPLIT=splits > 1,
        PAGED=table is not None,
        MULTIPLY=multiply,
        STAGES=decode_stages(2 * PAGE * d * keys.element_size(), shared_bytes_of(q.device), is_paged=table is not None),
        num_warps=DECODE_WARPS,
    )
    if splits == 1:
        return decode
    combine = partial(
        combine_kernel[(batch * heads,)],
        parts,
        maxima,
        sums,
        out,
        value_scale,
        splits,
        D=d,
        MOST=MOST_SPLITS,
        num_warps=4,
    )

    def launch() -> None:
        decode()
        combine()

    return launch


def scratch_numbers(batch: int, heads: int, kv_heads: int, d: int, length: int, sm_count: int) -> int:
    """How much `scratch` a plan of that shape needs."""
    splits = choose_splits(batch * kv_heads, triton.cdiv(length, PAGE), PROGRAMS_PER_SM * sm_count)
    return batch * heads * splits * (d + 2)


def plan_prefill(
    q: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    out: torch.Tensor,
    *,
    causal: bool,
    config: PrefillConfig | None = None,
) -> Launch:
    """A launch of out = attention of every query over the keys, or with `causal` over those up to its own place."""
    config = config or prefill_config(q.device)
    batch, heads, length, d = q.shape
    kv_heads = keys.shape[1]
    if out.shape != q.shape or keys.shape != (batch, kv_heads, length, d) or values.shape != keys.shape:
        raise ValueError(f"q {_describe(q)}, out {_describe(out)}, keys {_describe(keys)}, values {_describe(values)}")
    if heads % kv_heads or length % config.block_m or d not in (64, 128):
        raise ValueError(
            f"{heads} heads over {kv_heads}, length {length}, d {d}: whole groups, whole blocks of {config.block_m},"
            f" and 64 or 128 are needed"
        )
    return partial(
        prefill_kernel[(length // config.block_m, batch * heads)],
        q,
        keys,
        values,
        out,
        d**-0.5 * LOG2_E,
        length,
        HEADS=heads,
        KV_HEADS=kv_heads,
        D=d,
        BLOCK_M=config.block_m,
        BLOCK_N=config.block_n,
        CAUSAL=causal,
        MULTIPLY=tl.float32 if INTERPRETED else tl.bfloat16 if q.dtype == torch.bfloat16 else tl.float16,
        STAGES=config.stages,
        num_warps=config.warps,
    )


def gathered(cache: torch.Tensor, table: torch.Tensor, sequence: int) -> torch.Tensor:
    """One sequence of a paged cache as [kv_heads, length, d]; fp8 is picked as bytes, as torch asks on some devices."""
    pages = table[sequence].long()
    picked = cache.view(torch.uint8)[pages].view(cache.dtype) if cache.element_size() == 1 else cache[pages]
    return picked.transpose(0, 1).reshape(cache.shape[1], -1, cache.shape[3])


def reference(
    q: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, *, first: int | None = None, value_scale: float = 1.0
) -> torch.Tensor:
    """Attention in float64 from exactly what the operands hold: q [heads, queries, d], keys [kv_heads, length, d].

    Where `first` is given, query i sees the keys up to place first + i.
    """
    heads, queries, d = q.shape
    kv_heads, length, _ = keys.shape
    grouped = q.double().reshape(kv_heads, heads // kv_heads * queries, d)
    scores = grouped @ keys.double().transpose(1, 2) * d**-0.5
    if first is not None:
        last_seen = (first + torch.arange(queries, device=q.device)).repeat(heads // kv_heads)
        scores.masked_fill_(torch.arange(length, device=q.device) > last_seen[:, None], float("-inf"))
    return (scores.softmax(dim=-1) @ values.double()).reshape(heads, queries, d) * value_scale


def _decode_shape(
    q: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, out: torch.Tensor, table: torch.Tensor | None
) -> tuple[int, int, int, int, int]:
    batch, heads, d = q.shape
    kv_heads = keys.shape[1]
    if table is None:
        length = keys.shape[2]
        needed: tuple[int, ...] = (batch, kv_heads, length, d)
    else:
        length = table.shape[1] * PAGE
        needed = (keys.shape[0], kv_heads, PAGE, d)
        if table.dtype != torch.int32 or table.shape[0] != batch:
            raise ValueError(f"table is {_describe(table)}; a row of int32 for each of {batch} sequences is needed")
    if keys.shape != needed or values.shape != needed or keys.dtype != values.dtype or keys.dtype not in CACHE_DTYPES:
        raise ValueError(f"keys {_describe(keys)}, values {_describe(values)}: {needed} of one type are needed")
    if out.shape != q.shape or heads % kv_heads or d not in (64, 128):
        raise ValueError(
            f"q {_describe(q)}, out {_describe(out)}, {kv_heads} key-value heads:"
            " whole groups and d 64 or 128 are needed"
        )
    if not all(t.is_contiguous() for t in (q, keys, values, out)):
        raise ValueError("q, keys, values and out must be contiguous")
    return batch, heads, d, kv_heads, length


def _describe(tensor: torch.Tensor) -> str:
    return f"{tensor.dtype} {tuple(tensor.shape)}"
