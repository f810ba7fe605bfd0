"""Compute beside communication: a GEMM and a collective on every rank, alone, in turn, and at once on two streams.

A step is out[m, n] = a[m, k] @ b[n, k]^T and a collective of m·n elements, so that k alone sets how much there is to
compute for each byte: k FLOP a byte of the result. With an all-reduce that is a layer of a tensor-parallel MLP; with an
all-to-all the down projection of a mixture's experts, whose results go back to where their tokens came from.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from benches.bench_collectives import BUS_FACTORS, hosts_of, ranks_of
from benches.bench_gemm import LEAST_CAPABILITY
from harness.model import Case, DeviceFacts, Work
from kernels.collectives import DTYPES
from kernels.overlap import MODES

ALL_REDUCE, ALL_TO_ALL = "all_reduce", "all_to_all"
# Times alone and together stand beside one another; every other step runs them backwards, so that what drifts over a
# run is not always on the same side.
ORDER = ("compute", "overlap", "serial", "communicate")
assert set(ORDER) == set(MODES)


@dataclass(frozen=True)
class Shape:
    """A step of `m` rows on each rank, an output `n` wide and `k` products a result."""

    op: str
    m: int
    n: int
    k: int
    is_standard: bool = False
    launch: str = "queued"


# One layer over 8192 tokens of a model 8192 wide; the inner width is what each of the ranks has of it.
DENSE = tuple(Shape(ALL_REDUCE, 8192, 8192, k, k in (2048, 4096)) for k in (1024, 2048, 3072, 4096, 8192))
# (hidden size, an expert's inner size) of each model's config.json on Hugging Face, and how many experts a token has:
# Qwen/Qwen3-30B-A3B 8, Qwen/Qwen3-235B-A22B 8, deepseek-ai/DeepSeek-V3 8, meta-llama/Llama-4-Scout-17B-16E 1,
# mistralai/Mixtral-8x7B-v0.1 2.
QWEN_SMALL, QWEN, DEEPSEEK, LLAMA, MIXTRAL = (2048, 768), (4096, 1536), (7168, 2048), (5120, 8192), (4096, 14336)
# A row is one token at one of its experts: 4096 tokens with 8 experts each.
ROWS = 32768
OTHER_ROWS = (8192, 131072)
DEFAULTS = {"launch": "queued", "hosts": 1}
MIXTURES = (
    *(
        Shape(ALL_TO_ALL, ROWS, n, k, (n, k) in (QWEN_SMALL, DEEPSEEK))
        for n, k in (QWEN_SMALL, QWEN, DEEPSEEK, LLAMA, MIXTRAL)
    ),
    *(Shape(ALL_TO_ALL, rows, *DEEPSEEK) for rows in OTHER_ROWS),
)
# Both streams of a step in one CUDA graph: whether a step that a graph holds overlaps as well.
IN_GRAPHS = (Shape(ALL_REDUCE, 8192, 8192, 2048, launch="graph"), Shape(ALL_TO_ALL, ROWS, *DEEPSEEK, launch="graph"))
ON_CPU = tuple(Shape(op, 256, 256, k, is_standard=True) for op in (ALL_REDUCE, ALL_TO_ALL) for k in (128, 1024))


def cases(profile: str, device: DeviceFacts) -> Iterator[Case]:
    """Two ratios of compute to bytes with each collective in `standard`; five, other rows and graphs in `full`."""
    is_gpu = device.kind == "cuda"
    if is_gpu and profile in ("smoke", "quick"):
        return
    shapes = (*DENSE, *MIXTURES, *IN_GRAPHS) if is_gpu else ON_CPU
    for number, shape in enumerate(shape for shape in shapes if shape.is_standard or profile == "full"):
        for mode in ORDER if number % 2 == 0 else reversed(ORDER):
            yield case_of(shape, mode, device)


def case_of(shape: Shape, mode: str, device: DeviceFacts, dtype: str = "bf16") -> Case:
    """One mode of a step; `bytes` is nccl-tests' size of its collective, rounded down to whole parts."""
    is_gpu = device.kind == "cuda"
    ranks = ranks_of(device)
    item_bytes = DTYPES[dtype].itemsize
    whole = max(1, ranks) * item_bytes
    size_bytes = shape.m * shape.n * item_bytes // whole * whole
    operand_bytes = (shape.m * shape.k + shape.n * shape.k) * item_bytes
    return Case(
        f"gemm_{shape.op}",
        {
            "bytes": size_bytes,
            "dtype": dtype,
            "hosts": hosts_of(device),
            "impl": "nccl" if is_gpu else "gloo",
            "k": shape.k,
            "launch": shape.launch,
            "m": shape.m,
            "mode": mode,
            "n": shape.n,
            "ranks": ranks,
        },
        works(shape, size_bytes, ranks, mode),
        defaults=DEFAULTS,
        # Two sets of the GEMM's buffers, two of the collective, and pieces in float64 while they are compared.
        memory_bytes=2 * operand_bytes + 4 * size_bytes + 4 * 2**30 if is_gpu else 0,
        not_applicable=why_not(ranks, dtype, device),
    )


def works(shape: Shape, size_bytes: int, ranks: int, mode: str) -> tuple[Work, ...]:
    """2·m·n·k FLOP on each GPU, counted together as their power is, and the bus bytes of each GPU's link."""
    no_peak = "a step is held against its GEMM and its collective alone"
    flop = Work(2 * shape.m * shape.n * shape.k * max(1, ranks), "FLOP", None, "2·m·n·k on all ranks", no_peak)
    bus_bytes = BUS_FACTORS[shape.op](ranks) * size_bytes if ranks > 1 else size_bytes
    bus = Work(bus_bytes, "B", None, "bus bytes", no_peak)
    return {"compute": (flop,), "communicate": (bus,)}.get(mode, (flop, bus))


def why_not(ranks: int, dtype: str, device: DeviceFacts) -> str:
    """What this machine cannot do."""
    if ranks < 2:
        return f"needs two GPUs, this machine has {ranks}"
    return device.lacks(dtype, *LEAST_CAPABILITY[dtype])


def bench_overlap(case, device, measure):
    p = case.params
    measure(
        "kernels.overlap.step",
        op=case.op.removeprefix("gemm_"),
        shape=(p["m"], p["n"], p["k"]),
        size_bytes=p["bytes"],
        dtype=p["dtype"],
        mode=p["mode"],
    )
