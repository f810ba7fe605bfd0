"""A transformer's block against a second writing of it, torch's own count of FLOP, and memory counted by hand."""

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from kernels import transformer
from kernels.reference import sqnr_db
from kernels.transformer import Shape, Step

SHAPE = Shape(hidden=64, heads=4, kv_heads=2, inner=96)
ALL_HEADS = Shape(hidden=64, heads=4, kv_heads=4, inner=96)
BATCH, CONTEXT = 2, 32
MODES = ("none", "mlp", "block")


def operands(shape=SHAPE, dtype=torch.float32, seed=1):
    generator = torch.Generator().manual_seed(seed)
    x, gradient = (torch.randn(BATCH, CONTEXT, shape.hidden, generator=generator).to(dtype) for _ in range(2))
    return x, transformer.random_weights(shape, dtype, "cpu"), gradient


def step_of(checkpointing, dtype=torch.float32, shape=SHAPE):
    return Step(*operands(shape, dtype), shape, checkpointing)


def by_hand(x, weights, shape):
    """The block written anew: positions turn complex numbers, every head has a mask and a loop of its own."""
    norm_1, wq, wk, wv, wo, norm_2, gate, up, down = weights

    def normed(values, weight):
        return values / (values.square().mean(dim=-1, keepdim=True) + 1e-5).sqrt() * weight

    def turned(heads):
        half = shape.head_dim // 2
        frequencies = 500_000.0 ** (-torch.arange(half, dtype=torch.float64) / half)
        angles = torch.arange(heads.shape[1], dtype=torch.float64)[:, None, None] * frequencies
        complex_heads = torch.complex(heads[..., :half], heads[..., half:]) * torch.polar(
            torch.ones_like(angles), angles
        )
        return torch.cat([complex_heads.real, complex_heads.imag], dim=-1)

    a = normed(x, norm_1)
    q, k, v = ((a @ w.t()).view(*x.shape[:2], -1, shape.head_dim) for w in (wq, wk, wv))
    q, k = turned(q), turned(k)
    found = torch.zeros_like(q)
    for head in range(shape.heads):
        shared = head // (shape.heads // shape.kv_heads)
        for position in range(x.shape[1]):
            scores = (k[:, : position + 1, shared] * q[:, position, None, head]).sum(dim=-1) / shape.head_dim**0.5
            found[:, position, head] = (scores.softmax(dim=-1)[..., None] * v[:, : position + 1, shared]).sum(dim=1)
    x = x + found.flatten(2) @ wo.t()
    a = normed(x, norm_2)
    gated = a @ gate.t()
    return x + (gated * torch.sigmoid(gated) * (a @ up.t())) @ down.t()


@pytest.mark.parametrize("shape", [SHAPE, ALL_HEADS], ids=["grouped queries", "a key for each query"])
def test_block_and_its_reference_are_what_was_written_anew(shape):
    x, weights, _ = operands(shape, torch.float64)
    expected = by_hand(x, weights, shape)
    (out,), (reference,) = (
        plan(x, weights, shape)
        for plan in (lambda *given: transformer.plan_forward(*given)(), transformer.expected_forward)
    )
    assert sqnr_db(out, expected) > 250
    assert sqnr_db(reference, expected) > 250


def test_gradients_of_the_reference_are_those_of_differences():
    """Along a random direction in x and all weights: central differences err by the square of their width."""
    x, weights, gradient = operands(dtype=torch.float64)
    found = transformer.expected_step(x, weights, gradient, SHAPE)[1:]
    generator = torch.Generator().manual_seed(2)
    along = [torch.randn(t.shape, generator=generator, dtype=torch.float64) for t in (x, *weights)]
    width = 1e-5

    def moved(by):
        values = [t + by * d for t, d in zip((x, *weights), along, strict=True)]
        (out,) = transformer.expected_forward(values[0], transformer.Weights(*values[1:]), SHAPE)
        return (out * gradient).sum()

    expected = (moved(width) - moved(-width)) / (2 * width)
    slope = sum((g * d).sum() for g, d in zip(found, along, strict=True))
    assert slope.item() == pytest.approx(expected.item(), rel=1e-6)


@pytest.mark.parametrize("checkpointing", MODES)
@pytest.mark.parametrize(("dtype", "least_db"), [(torch.float32, 110), (torch.bfloat16, 33)])
def test_output_and_gradients_are_right(checkpointing, dtype, least_db):
    x, weights, gradient = operands(dtype=dtype)
    found = Step(x, weights, gradient, SHAPE, checkpointing)()
    expected = transformer.expected_step(x, weights, gradient, SHAPE)
    assert len(found) == len(expected) == 2 + len(weights)
    assert min(map(sqnr_db, found, expected)) > least_db


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_checkpointing_changes_no_bit(dtype):
    plain, *others = (step_of(checkpointing, dtype)() for checkpointing in MODES)
    for other in others:
        assert all(torch.equal(a, b) for a, b in zip(plain, other, strict=True))


def test_what_attention_finds_shows_in_the_output():
    """With logits of variance 1 attention would be a mean over hundreds, which no bound in bfloat16 could miss."""
    x, weights, _ = operands()
    (out,) = transformer.expected_forward(x, weights, SHAPE)
    (without,) = transformer.expected_forward(x, weights._replace(output=torch.zeros_like(weights.output)), SHAPE)
    assert sqnr_db(without, out) < 10
    assert 0.5 < out.std() < 3


def test_a_block_of_llama_3_8b_has_its_parameters():
    """32 of them, embeddings going in and out, and a last norm are 8,030,261,248."""
    shape = Shape(hidden=4096, heads=32, kv_heads=8, inner=14336)
    block = shape.matrix_parameters + 2 * shape.hidden
    assert 32 * block + 2 * 128_256 * shape.hidden + shape.hidden == 8_030_261_248
    small = transformer.random_weights(SHAPE, torch.float32, "cpu")
    assert sum(weight.numel() for weight in small) == SHAPE.matrix_parameters + 2 * SHAPE.hidden


@pytest.mark.parametrize("shape", [SHAPE, ALL_HEADS], ids=["grouped queries", "a key for each query"])
@pytest.mark.parametrize("checkpointing", MODES)
def test_flop_are_those_that_torch_counts(checkpointing, shape):
    """torch counts all pairs of attention, we those that causality leaves: once a forward pass, thrice a step."""
    step = step_of(checkpointing, shape=shape)
    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
        step()
    later = BATCH * 4 * shape.hidden * (CONTEXT**2 - CONTEXT * (CONTEXT + 1) // 2)
    expected = 3 * transformer.forward_flop(shape, BATCH, CONTEXT)
    expected += transformer.recomputed_flop(shape, BATCH, CONTEXT, checkpointing)
    assert counter.get_total_flops() == expected + (4 if checkpointing == "block" else 3) * later


def test_held_bytes_of_a_layer_are_those_counted_by_hand():
    """relu(x w) keeps x for w's gradient, w for x's, and its own result: 8, 6 and 12 numbers of 4 bytes."""
    x, w = torch.ones(4, 2, requires_grad=True), torch.ones(2, 3, requires_grad=True)

    def forward():
        return (x @ w).relu()

    assert transformer.held_bytes(forward, ()) == 4 * (8 + 6 + 12)
    assert transformer.held_bytes(forward, (w,)) == 4 * (8 + 12)


def test_a_storage_that_several_operations_keep_is_held_once():
    x = torch.ones(8, requires_grad=True)
    assert transformer.held_bytes(lambda: (x[:4] * x[4:]).sum() + x.exp().sum(), ()) == 4 * (8 + 8)


def test_checkpointed_a_block_keeps_its_input_alone_and_an_mlp_its_own():
    x, *_ = operands()
    held = {checkpointing: step_of(checkpointing).held_bytes() for checkpointing in MODES}
    assert held["block"] == x.nbytes
    # Without a backward pass through the MLP: the input of the block, q, k, v, and what attention found, at least.
    assert x.nbytes * 4 < held["mlp"] < held["none"]
    # Of the MLP: gate, up, their activation and product, each 1.5 times as wide, at least.
    assert held["none"] - held["mlp"] >= 4 * 1.5 * x.nbytes


def test_counting_leaves_results_and_gradients_as_they_are():
    step = step_of("block")
    first = step()
    step.held_bytes()
    assert all(torch.equal(a, b) for a, b in zip(first, step(), strict=True))


def test_peak_is_what_a_launch_adds_to_what_is_there(monkeypatch):
    allocated = {"now": 1000, "most": 5000}
    cuda = transformer.torch.cuda
    monkeypatch.setattr(cuda, "synchronize", lambda: None)
    monkeypatch.setattr(cuda, "memory_allocated", lambda: allocated["now"])
    monkeypatch.setattr(cuda, "reset_peak_memory_stats", lambda: allocated.update(most=allocated["now"]))
    monkeypatch.setattr(cuda, "max_memory_allocated", lambda: allocated["most"])
    assert transformer.peak_bytes(lambda: allocated.update(most=1700)) == 700
