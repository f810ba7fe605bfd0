"""Mixture of experts: one layer's up projection as a grouped GEMM, its tokens spread evenly over the experts or not.

`full` alone. FLOP are those of all rows, so that what skew costs is the ratio of two rates; the weights of every expert
that has a row move once.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import torch

from harness.model import Case, DeviceFacts, Work
from kernels import grouped_gemm


@dataclass(frozen=True)
class Mixture:
    """Experts of a model, how many of them a token has, and the sizes of their up projection."""

    experts: int
    per_token: int
    hidden: int
    inner: int


# config.json of each model on Hugging Face: mistralai/Mixtral-8x7B-v0.1, deepseek-ai/DeepSeek-V3.
MODELS = {"mixtral-8x7b": Mixture(8, 2, 4096, 14336), "deepseek-v3": Mixture(256, 8, 7168, 2048)}
SMALL = Mixture(4, 2, 64, 96)
TOKENS, SMALL_TOKENS = 8192, 24
ROUTINGS = {"balanced": grouped_gemm.balanced, "skewed": grouped_gemm.skewed}
# torch 2.10 and later (ATen/native/cuda/GroupedBlas.cpp): elsewhere it reads the offsets on the host and loops.
GROUPED_ON = (9, 10)
SAMPLED_ROWS = 16
SQNR_DB = 50.0


def cases(profile: str, device: DeviceFacts) -> Iterator[Case]:
    """Two models, balanced and skewed, grouped and one expert after another."""
    if profile != "full":
        return
    models = MODELS if device.kind == "cuda" else {"small": SMALL}
    for name in models:
        for routing in ROUTINGS:
            for how in ("grouped", "loop"):
                yield moe_case(name, routing, how, device)


def mixture_of(name: str) -> tuple[Mixture, int]:
    """The experts that a case names, and its tokens."""
    return (SMALL, SMALL_TOKENS) if name == "small" else (MODELS[name], TOKENS)


def moe_case(name: str, routing: str, how: str, device: DeviceFacts) -> Case:
    """2·rows·inner·hidden FLOP; a row is a token at one of its experts."""
    mixture, tokens = mixture_of(name)
    rows = tokens * mixture.per_token
    busy = sum(count > 0 for count in ROUTINGS[routing](rows, mixture.experts))
    moved = 2 * (busy * mixture.hidden * mixture.inner + rows * (mixture.hidden + mixture.inner))
    held = 2 * (mixture.experts * mixture.hidden * mixture.inner + rows * (mixture.hidden + mixture.inner))
    sets = max(1, device.sets(moved))
    return Case(
        "moe_gemm",
        {"model": name, "routing": routing, "launches": how, "tokens": tokens, "dtype": "bf16", "impl": "torch"},
        (
            Work(2 * rows * mixture.inner * mixture.hidden, "FLOP", "bf16", "2·rows·inner·hidden"),
            Work(moved, "B", "memory", "weights in use, rows in and out"),
        ),
        memory_bytes=sets * held + 2 * rows * mixture.inner + 2**32,
        footprint_bytes=sets * held,
        not_applicable=missing(how, device),
    )


def missing(how: str, device: DeviceFacts) -> str:
    """Why this device does not multiply so, or nothing."""
    if how == "grouped" and device.kind == "cuda" and (device.compute_capability or (0, 0))[0] not in GROUPED_ON:
        return f"torch groups on compute capability 9 and 10 alone; on {device.name} it loops over the experts"
    return device.lacks("bf16", 8)


def bench_moe(case, device, measure):
    p, place = case.params, device.torch_device
    mixture, tokens = mixture_of(p["model"])
    rows = tokens * mixture.per_token
    counts = ROUTINGS[p["routing"]](rows, mixture.experts)
    held = 2 * (mixture.experts * mixture.hidden * mixture.inner + rows * (mixture.hidden + mixture.inner))
    sets = case.footprint_bytes // held
    half = {"dtype": torch.bfloat16, "device": place}
    a = [torch.empty(rows, mixture.hidden, **half) for _ in range(sets)]
    b = [torch.empty(mixture.experts, mixture.inner, mixture.hidden, **half) for _ in range(sets)]
    outs = [torch.empty(rows, mixture.inner, **half) for _ in range(sets)]
    sampled = torch.linspace(0, rows - 1, min(rows, SAMPLED_ROWS)).long()

    if p["launches"] == "loop":
        plans = [grouped_gemm.plan_loop(*group, counts) for group in zip(a, b, outs, strict=True)]

        def launch(i):
            plans[i % sets]()
    else:
        plans = [grouped_gemm.plan_grouped(*pair, counts) for pair in zip(a, b, strict=True)]

        def launch(i):
            outs[i % sets] = plans[i % sets]()  # torch's grouped product allocates its result

    def reference(i):
        yield outs[i][sampled.to(place)], grouped_gemm.expected_rows(a[i], b[i], counts, sampled.tolist())
        yield outs[i].isfinite().all(), torch.ones((), dtype=torch.bool, device=place)

    measure(launch, inputs=a + b, outputs=outs, reference=reference, sets=sets, least_sqnr_db=SQNR_DB)
