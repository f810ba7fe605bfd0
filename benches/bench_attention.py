"""Attention: decode over a key-value cache and prefill, with 64 query heads over 8 key-value heads of 128.

One layer of a 70B transformer on one GPU. Decode counts the bytes of cache, queries and results once; prefill counts
4·d FLOP for each pair of query and key that it must look at. Tokens are those that pass this one layer's attention.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product

import torch

from harness.model import Case, DeviceFacts, Work
from harness.units import GIB, KIB
from kernels import attention, attention_torch
from kernels.launches import captured, until_done

# Calls that the host waits for leave the card to rest: what must find it warm runs before.
LAST = True

HEADS, KV_HEADS, HEAD_DIM = 64, 8, 128
CONTEXTS = (KIB, 8 * KIB, 32 * KIB, 128 * KIB)
BATCHES = (1, 8, 64, 128)
# What half of a card of 80 GB holds beside the rest.
LARGEST_CACHE = 32 * GIB
PREFILLS = ((8, 2 * KIB), (4, 4 * KIB), (1, 16 * KIB))
DTYPES = {"bf16": torch.bfloat16, "fp8_e4m3": torch.float8_e4m3fn}
# Eight bits are multiplied as fp16, into which they fit.
PEAKS = {"bf16": "bf16", "fp8_e4m3": "fp16"}
LEAST_CAPABILITY = {"bf16": (8, 0), "fp8_e4m3": (8, 9)}
L2_MULTIPLES = 64
# Rounding weights and the result to bf16 leaves 54 dB.
LEAST_SQNR_DB = 45.0
COMPARED = 8
COMPARED_QUERIES = 64
SHOTS, SMOKE_SHOTS = 1000, 100
# Graphs of so many buffers: by then L2 has forgotten the first.
LATENCY_L2_MULTIPLES = 4
DEFAULTS = {"heads": HEADS, "kv_heads": KV_HEADS, "d": HEAD_DIM, "data": "normal"}
SMALL = {"heads": 8, "kv_heads": 2, "d": 64, "data": "normal"}
SMALL_CONTEXT = 256


@dataclass(frozen=True)
class Cache:
    """How a cache lies in memory, and what reads it."""

    dtype: str
    layout: str
    impl: str


CACHES = (
    Cache("bf16", "contiguous", "triton"),
    Cache("bf16", "contiguous", "torch"),
    Cache("bf16", "paged", "triton"),
    Cache("fp8_e4m3", "contiguous", "triton"),
    Cache("fp8_e4m3", "paged", "triton"),
)


def cases(profile: str, device: DeviceFacts) -> Iterator[Case]:
    """All of it is `full`; on the CPU each kind of cache is checked once. What the host waits for comes last."""
    if device.kind != "cuda":
        yield from smoke_cases(device)
    elif profile == "full":
        yield from decode_cases(device)
        yield from prefill_cases(device)
        yield from latency_cases(device)


def smoke_cases(device: DeviceFacts) -> Iterator[Case]:
    """Small ones, with fewer heads."""
    for cache in CACHES:
        yield decode_case("decode_attention", cache, 2, SMALL_CONTEXT, device)
    for impl in ("triton", "torch"):
        yield prefill_case(impl, 1, SMALL_CONTEXT, 1, device)
    yield decode_case("decode_latency", CACHES[1], 1, SMALL_CONTEXT, device)


def decode_cases(device: DeviceFacts) -> Iterator[Case]:
    """Every context with every batch that fits, each kind of cache next to the others."""
    for context, batch, cache in product(CONTEXTS, BATCHES, CACHES):
        if cache_bytes(cache, batch, context, DEFAULTS) <= LARGEST_CACHE:
            yield decode_case("decode_attention", cache, batch, context, device)


def prefill_cases(device: DeviceFacts) -> Iterator[Case]:
    """As many tokens in prompts of three lengths."""
    for (batch, length), causal, impl in product(PREFILLS, (1, 0), ("triton", "torch")):
        yield prefill_case(impl, batch, length, causal, device)


def latency_cases(device: DeviceFacts) -> Iterator[Case]:
    """One sequence alone."""
    for context, cache in product(CONTEXTS, CACHES):
        yield decode_case("decode_latency", cache, 1, context, device)


def cache_bytes(cache: Cache, batch: int, context: int, shape: dict) -> int:
    """Keys and values of one layer."""
    return 2 * batch * context * shape["kv_heads"] * shape["d"] * DTYPES[cache.dtype].itemsize


def decode_case(op: str, cache: Cache, batch: int, context: int, device: DeviceFacts) -> Case:
    """One new token for each sequence of a batch. `decode_latency` is one launch by the host's clock, until it is done.

    A latency declares no work; its footprint is what its launches rotate through all the same.
    """
    shape = DEFAULTS if device.kind == "cuda" else SMALL
    read = cache_bytes(cache, batch, context, shape)
    heads_of_batch = batch * shape["heads"] * shape["d"]
    table = 4 * batch * context // attention.PAGE if cache.layout == "paged" else 0
    moved = read + table + 2 * heads_of_batch * 2
    is_latency = op == "decode_latency"
    sets = device.sets(read, LATENCY_L2_MULTIPLES if is_latency else L2_MULTIPLES)
    params = {"batch": batch, "context": context, "dtype": cache.dtype, "layout": cache.layout, "impl": cache.impl}
    launch = {"launch": "graph" if device.kind == "cuda" else "eager"} if is_latency else {}
    works = (
        Work(moved, "B", "memory", "cache, queries and results once"),
        Work(4 * heads_of_batch * context, "FLOP", PEAKS[cache.dtype], "4·batch·heads·context·d"),
    )
    return Case(
        op,
        {**params, **shape, **launch},
        () if is_latency else works,
        "latency" if is_latency else "throughput",
        defaults=DEFAULTS,
        # The reference holds one sequence in 64 bits, and its transposes.
        memory_bytes=sets * moved + 16 * read // batch + 2 * GIB,
        footprint_bytes=sets * read,
        deterministic=cache.impl == "triton",
        checked_only=device.no_triton_figures if cache.impl == "triton" else "",
        not_applicable=missing(cache.dtype, cache.impl, device),
    )


def prefill_case(impl: str, batch: int, length: int, causal: int, device: DeviceFacts) -> Case:
    """All tokens of a prompt at once; with `causal` each looks at those before it and at itself."""
    shape = DEFAULTS if device.kind == "cuda" else SMALL
    pairs = length * (length + 1) // 2 if causal else length * length
    bytes_of_one = batch * length * shape["d"] * 2
    moved = 2 * (shape["heads"] + shape["kv_heads"]) * bytes_of_one
    sets = max(2, device.sets(moved))
    return Case(
        "prefill_attention",
        {"batch": batch, "context": length, "causal": causal, "dtype": "bf16", "impl": impl, **shape},
        (
            Work(4 * batch * shape["heads"] * shape["d"] * pairs, "FLOP", "bf16", "4·d a pair of query and key"),
            Work(moved, "B", "memory", "queries, keys, values and results once"),
        ),
        defaults=DEFAULTS,
        memory_bytes=sets * moved + 4 * GIB,
        footprint_bytes=sets * moved,
        deterministic=impl == "triton",
        checked_only=device.no_triton_figures if impl == "triton" else "",
        not_applicable=missing("bf16", impl, device),
    )


def missing(dtype: str, impl: str, device: DeviceFacts) -> str:
    """What this device or machine lacks for that cache."""
    return (device.no_triton if impl == "triton" else "") or device.lacks(dtype, *LEAST_CAPABILITY[dtype])


def bench_attention(case, device, measure):
    if case.op == "prefill_attention":
        measure_prefill(case, device, measure)
    else:
        measure_decode(case, device, measure)


def measure_decode(case, device, measure):
    buffers = DecodeBuffers(case, device)
    launches = [buffers.plan(i) for i in range(buffers.sets)]
    shots = {}
    if case.op == "decode_latency":
        shots = {"shots": SHOTS if device.kind == "cuda" else SMOKE_SHOTS}
        if device.kind == "cuda":
            launches = [until_done(captured(launch)) for launch in launches]
    measure(
        lambda i: launches[i % buffers.sets](),
        inputs=[buffers.q, buffers.keys, buffers.values],
        outputs=buffers.results,
        reference=buffers.reference,
        sets=buffers.sets,
        least_sqnr_db=LEAST_SQNR_DB,
        **shots,
    )


class DecodeBuffers:
    """Caches of all buffer sets in one tensor of keys and one of values; a paged set's pages are its own, shuffled."""

    def __init__(self, case, device):
        p = case.params
        self.params, self.sm_count = p, device.sm_count or 1
        self.batch, self.context = p["batch"], p["context"]
        place, dtype = device.torch_device, DTYPES[p["dtype"]]
        one = 2 * self.batch * self.context * p["kv_heads"] * p["d"] * dtype.itemsize
        self.sets = case.footprint_bytes // one
        self.is_paged = p["layout"] == "paged"
        rows = self.sets * self.batch
        if self.is_paged:
            self.pages_each = self.context // attention.PAGE
            shape = (rows * self.pages_each, p["kv_heads"], attention.PAGE, p["d"])
            generator = torch.Generator(device=place).manual_seed(1)
            tables = [
                torch.randperm(self.batch * self.pages_each, generator=generator, device=place)
                for _ in range(self.sets)
            ]
            self.tables = torch.stack(tables).to(torch.int32).view(self.sets, self.batch, self.pages_each)
        else:
            shape = (rows, p["kv_heads"], self.context, p["d"])
        self.keys, self.values = (torch.empty(shape, dtype=dtype, device=place) for _ in range(2))
        self.q = torch.empty(rows, p["heads"], p["d"], dtype=torch.bfloat16, device=place)
        # What is stored as bfloat16 in the interpreter is not rounded to nearest.
        stored = torch.float32 if attention.INTERPRETED and p["impl"] == "triton" else torch.bfloat16
        self.results = [
            torch.zeros(self.batch, p["heads"], p["d"], dtype=stored, device=place) for _ in range(self.sets)
        ]
        numbers = attention.scratch_numbers(self.batch, p["heads"], p["kv_heads"], p["d"], self.context, self.sm_count)
        self.scratch = torch.empty(numbers, device=place)

    def operands(self, i):
        """Queries, keys and values of one buffer set."""
        each = self.batch * (self.pages_each if self.is_paged else 1)
        first = i * self.batch
        return self.q[first : first + self.batch], *(t[i * each : (i + 1) * each] for t in (self.keys, self.values))

    def plan(self, i):
        """The launch on one buffer set."""
        if self.params["impl"] == "torch":
            return attention_torch.plan_decode(*self.operands(i), self.results, i)
        table = self.tables[i] if self.is_paged else None
        how = {"table": table, "sm_count": self.sm_count, "scratch": self.scratch}
        return attention.plan_decode(*self.operands(i), self.results[i], **how)

    def reference(self, i):
        """Some sequences, equally spaced over all buffer sets, and of all others that they were written."""
        place = self.q.device
        yield self.results[i].isfinite().all(), torch.ones((), dtype=torch.bool, device=place)
        count = min(COMPARED, self.sets * self.batch)
        chosen = torch.linspace(0, self.sets * self.batch - 1, count).long().tolist()
        for number in chosen:
            if number // self.batch == i:
                sequence = number % self.batch
                yield self.results[i][sequence], self.expected(i, sequence)

    def expected(self, i, sequence):
        """One sequence in float64."""
        q, keys, values = self.operands(i)
        if self.is_paged:
            k, v = (attention.gathered(pool, self.tables[i], sequence) for pool in (keys, values))
        else:
            k, v = keys[sequence], values[sequence]
        return attention.reference(q[sequence, :, None], k, v)[:, 0]


def measure_prefill(case, device, measure):
    p, place = case.params, device.torch_device
    sets = case.footprint_bytes // case.work[1].amount
    shapes = [(p["batch"], heads, p["context"], p["d"]) for heads in (p["heads"], p["kv_heads"], p["kv_heads"])]
    operands = [[torch.empty(s, dtype=torch.bfloat16, device=place) for s in shapes] for _ in range(sets)]
    stored = torch.float32 if attention.INTERPRETED and p["impl"] == "triton" else torch.bfloat16
    results = [torch.zeros(shapes[0], dtype=stored, device=place) for _ in range(sets)]
    is_causal = bool(p["causal"])
    if p["impl"] == "torch":
        launches = [attention_torch.plan_prefill(*o, results, i, causal=is_causal) for i, o in enumerate(operands)]
    else:
        launches = [attention.plan_prefill(*o, out, causal=is_causal) for o, out in zip(operands, results, strict=True)]
    group = p["heads"] // p["kv_heads"]

    def reference(i):
        yield results[i].isfinite().all(), torch.ones((), dtype=torch.bool, device=place)
        q, keys, values = operands[i]
        for sequence, kv_head in ((0, 0), (p["batch"] - 1, p["kv_heads"] - 1)):
            heads = slice(kv_head * group, (kv_head + 1) * group)
            for first in (0, p["context"] // 2 - 1, p["context"] - COMPARED_QUERIES):
                rows = slice(first, first + COMPARED_QUERIES)
                k, v = (t[sequence, kv_head : kv_head + 1] for t in (keys, values))
                expected = attention.reference(q[sequence, heads, rows], k, v, first=first if is_causal else None)
                yield results[i][sequence, heads, rows], expected

    measure(
        lambda i: launches[i % sets](),
        inputs=[tensor for o in operands for tensor in o],
        outputs=results,
        reference=reference,
        sets=sets,
        least_sqnr_db=LEAST_SQNR_DB,
    )
