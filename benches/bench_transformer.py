"""A transformer's block forward and backward: its share of the peak, and what activation checkpointing costs and saves.

`full` alone. The rate counts model FLOP, the same with and without checkpointing, so that recomputing shows as a lower
rate; what the hardware multiplies stands beside it. `harness.checkpointing` pairs the cases.
"""

from collections.abc import Iterator
from functools import partial

import torch

from harness.model import Case, DeviceFacts, Metric, Work
from harness.units import GIB
from kernels import transformer
from kernels.transformer import Shape

# config.json of meta-llama/Meta-Llama-3-8B on Hugging Face.
MODELS = {"llama-3-8b": Shape(hidden=4096, heads=32, kv_heads=8, inner=14336)}
SMALL = Shape(hidden=64, heads=4, kv_heads=2, inner=96)
# Batch and context.
SIZES = ((1, 2048), (4, 2048), (2, 4096), (1, 8192))
SMALL_SIZE = (2, 32)
# On a CPU bfloat16 leaves the output 44 dB and the gradients, which pass through a second such chain, 35 to 45.
LEAST_SQNR_DB = 30.0


def cases(profile: str, device: DeviceFacts) -> Iterator[Case]:
    """Every size forward alone, with its backward pass, and with half or all of it checkpointed."""
    if profile != "full":
        return
    models, sizes = (MODELS, SIZES) if device.kind == "cuda" else ({"small": SMALL}, (SMALL_SIZE,))
    for name in models:
        for batch, context in sizes:
            yield block_case(name, batch, context, "forward", "none", device)
            for checkpointing in ("none", "mlp", "block"):
                yield block_case(name, batch, context, "both", checkpointing, device)


def shape_of(name: str) -> Shape:
    """The shape of the block that a case names."""
    return SMALL if name == "small" else MODELS[name]


def block_case(name: str, batch: int, context: int, passes: str, checkpointing: str, device: DeviceFacts) -> Case:
    """Model FLOP: the backward pass is two forward passes, one for each gradient of every product."""
    shape = shape_of(name)
    forward = transformer.forward_flop(shape, batch, context)
    params = {"model": name, "batch": batch, "context": context, "passes": passes, "checkpointing": checkpointing}
    work = [Work(forward if passes == "forward" else 3 * forward, "FLOP", "bf16", "model FLOP")]
    if checkpointing != "none":
        done = 3 * forward + transformer.recomputed_flop(shape, batch, context, checkpointing)
        work.append(Work(done, "FLOP", None, "hardware FLOP", "recomputing is no part of the model"))
    return Case(
        "transformer_block",
        params | {"dtype": "bf16", "impl": "torch"},
        tuple(work),
        defaults={"checkpointing": "none"},
        memory_bytes=memory_bytes(shape, batch, context),
        not_applicable=device.lacks("bf16", 8),
    )


def memory_bytes(shape: Shape, batch: int, context: int) -> int:
    """What the step holds in bfloat16, and beside it the reference: in float64, one sequence and one head's scores."""
    numbers_a_token = 20 * shape.hidden + 8 * shape.inner
    scores = 6 * context**2 * shape.heads // shape.kv_heads
    weights = 3 * shape.matrix_parameters
    in_half = batch * context * numbers_a_token + weights
    in_double = context * numbers_a_token + scores + weights + 6 * batch * context * shape.hidden
    return 2 * in_half + 8 * in_double + 2 * GIB


def bench_transformer(case, device, measure):
    p, shape = case.params, shape_of(case.params["model"])
    half = {"dtype": torch.bfloat16, "device": device.torch_device}
    x, gradient = (torch.empty(p["batch"], p["context"], shape.hidden, **half) for _ in range(2))
    weights = transformer.random_weights(shape, **half)
    if p["passes"] == "forward":
        run, figures = transformer.plan_forward(x, weights, shape), None
        expected = partial(transformer.expected_forward, x, weights, shape)
    else:
        run = transformer.Step(x, weights, gradient, shape, p["checkpointing"])
        figures = partial(memory_figures, run, device)
        expected = partial(transformer.expected_step, x, weights, gradient, shape)
    results = list(run())

    def launch(_):
        results[:] = run()  # every launch allocates its results, as training does

    measure(
        launch,
        inputs=[x, gradient],
        outputs=results,
        reference=lambda _: zip(results, expected(), strict=True),
        least_sqnr_db=LEAST_SQNR_DB,
        figures=figures,
    )


def memory_figures(step: transformer.Step, device: DeviceFacts) -> Iterator[Metric]:
    """What autograd keeps, counted alike everywhere, and what a step allocates, which a GPU's allocator alone tells."""
    held = float(step.held_bytes())
    yield Metric("memory.held", held, "B", "lower", label="kept from the forward to the backward pass")
    label = "allocated at most in a step, gradients included"
    if device.kind == "cuda":
        yield Metric("memory.peak", float(transformer.peak_bytes(step)), "B", "lower", label=label)
    else:
        yield Metric("memory.peak", None, "B", "lower", label=label, reason="torch counts what a GPU allocates alone")
