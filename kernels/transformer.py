"""One block of a Llama-like transformer in torch, forward and backward, with activation checkpointing or without.

RMSNorm, grouped-query attention with rotary positions, RMSNorm, SwiGLU, each half added to its input: Dubey et al.,
"The Llama 3 Herd of Models" (arXiv 2407.21783), section 3.2. No biases, no dropout.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Literal, NamedTuple

import torch
from torch.nn.functional import linear, rms_norm, scaled_dot_product_attention, silu
from torch.utils.checkpoint import checkpoint

Checkpointing = Literal["none", "mlp", "block"]
Attention = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]
Launch = Callable[[], tuple[torch.Tensor, ...]]

NORM_EPSILON = 1e-5
ROTARY_BASE = 500_000.0
SEED = 20250605
# Queries and keys this much larger than their fan-in asks for: each position looks at few others, so that the result
# shows at which. At 1 attention would be a mean over all, a few hundredths of what it is added to.
LOGIT_GAIN = 2.0
NORM_SPREAD = 0.1


@dataclass(frozen=True)
class Shape:
    """Widths of a block: of the model, of the SwiGLU, and how many heads share the model's."""

    hidden: int
    heads: int
    kv_heads: int
    inner: int

    @property
    def head_dim(self) -> int:
        """Numbers a head."""
        return self.hidden // self.heads

    @property
    def matrix_parameters(self) -> int:
        """Numbers in all matrices; the two norms have 2·hidden more."""
        kv_width = self.kv_heads * self.head_dim
        return self.hidden * (2 * self.hidden + 2 * kv_width + 3 * self.inner)


class Weights(NamedTuple):
    """What a block learns; matrices are [outputs, inputs]."""

    attention_norm: torch.Tensor
    query: torch.Tensor
    key: torch.Tensor
    value: torch.Tensor
    output: torch.Tensor
    mlp_norm: torch.Tensor
    gate: torch.Tensor
    up: torch.Tensor
    down: torch.Tensor


class Rotation(NamedTuple):
    """Cosines and sines by which positions turn pairs of a head's numbers: [context, head_dim / 2]."""

    cos: torch.Tensor
    sin: torch.Tensor


def random_weights(shape: Shape, dtype: torch.dtype, device: str | torch.device) -> Weights:
    """Weights that keep what passes through them near a variance of 1, of a seed of their own."""
    generator = torch.Generator(device=device).manual_seed(SEED)

    def matrix(outputs: int, inputs: int, gain: float = 1.0) -> torch.Tensor:
        drawn = torch.randn(outputs, inputs, generator=generator, device=device)
        return (drawn * (gain * inputs**-0.5)).to(dtype)

    def norm() -> torch.Tensor:
        return (1 + NORM_SPREAD * torch.randn(shape.hidden, generator=generator, device=device)).to(dtype)

    hidden, kv_width = shape.hidden, shape.kv_heads * shape.head_dim
    return Weights(
        attention_norm=norm(),
        query=matrix(hidden, hidden, LOGIT_GAIN),
        key=matrix(kv_width, hidden, LOGIT_GAIN),
        value=matrix(kv_width, hidden),
        output=matrix(hidden, hidden),
        mlp_norm=norm(),
        gate=matrix(shape.inner, hidden),
        up=matrix(shape.inner, hidden),
        down=matrix(hidden, shape.inner),
    )


def rotation_of(context: int, head_dim: int, dtype: torch.dtype, device: str | torch.device) -> Rotation:
    """The turn of pair j at position p: p / base^(2j / head_dim)."""
    pairs = torch.arange(0, head_dim, 2, dtype=torch.float64, device=device)
    positions = torch.arange(context, dtype=torch.float64, device=device)
    angles = torch.outer(positions, ROTARY_BASE ** (-pairs / head_dim))
    return Rotation(angles.cos().to(dtype), angles.sin().to(dtype))


def fused_attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """Causal attention over [batch, heads, context, head_dim], with the backend that torch chooses."""
    return scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)


def exact_attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """The same by its formula, one key-value head after the other, of which only one's weights are held at a time."""
    groups = q.split(q.shape[1] // k.shape[1], dim=1)
    heads = zip(groups, k.split(1, dim=1), v.split(1, dim=1), strict=True)
    return torch.cat([checkpoint(_attend_by_formula, *head, use_reentrant=False) for head in heads], dim=1)


def _attend_by_formula(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    is_later = torch.ones(q.shape[2], k.shape[2], dtype=torch.bool, device=q.device).triu(1)
    scores = (q @ k.mT * q.shape[3] ** -0.5).masked_fill_(is_later, -torch.inf)
    return scores.softmax(dim=-1) @ v


def attention_half(
    x: torch.Tensor, weights: Weights, shape: Shape, rotation: Rotation, attention: Attention
) -> torch.Tensor:
    """x + attention of its norm: [batch, context, hidden]."""
    normed = rms_norm(x, (shape.hidden,), weights.attention_norm, NORM_EPSILON)

    def heads_of(matrix: torch.Tensor) -> torch.Tensor:
        return linear(normed, matrix).unflatten(-1, (-1, shape.head_dim)).transpose(1, 2)

    q, k = (_rotated(heads_of(matrix), rotation) for matrix in (weights.query, weights.key))
    found = attention(q, k, heads_of(weights.value))
    return x + linear(found.transpose(1, 2).flatten(2), weights.output)


def _rotated(heads: torch.Tensor, rotation: Rotation) -> torch.Tensor:
    first, second = heads.chunk(2, dim=-1)
    cos, sin = rotation
    return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1)


def mlp_half(x: torch.Tensor, weights: Weights) -> torch.Tensor:
    """x + SwiGLU of its norm."""
    normed = rms_norm(x, weights.mlp_norm.shape, weights.mlp_norm, NORM_EPSILON)
    return x + linear(silu(linear(normed, weights.gate)) * linear(normed, weights.up), weights.down)


def block(
    x: torch.Tensor,
    weights: Weights,
    shape: Shape,
    rotation: Rotation,
    checkpointing: Checkpointing = "none",
    attention: Attention = fused_attention,
) -> torch.Tensor:
    """The block's output: [batch, context, hidden].

    What is checkpointed keeps its input alone and is computed again in the backward pass. There is no dropout, so the
    state of random numbers, which a CUDA graph could not read, is not kept.
    """
    if checkpointing == "block":
        again = partial(block, weights=weights, shape=shape, rotation=rotation, attention=attention)
        return _checkpointed(again, x)
    x = attention_half(x, weights, shape, rotation, attention)
    if checkpointing == "mlp":
        return _checkpointed(partial(mlp_half, weights=weights), x)
    return mlp_half(x, weights)


def _checkpointed(part: Callable[[torch.Tensor], torch.Tensor], x: torch.Tensor) -> torch.Tensor:
    return checkpoint(part, x, use_reentrant=False, preserve_rng_state=False)


def plan_forward(x: torch.Tensor, weights: Weights, shape: Shape) -> Launch:
    """A launch that returns the block's output and keeps nothing for a backward pass."""
    rotation = rotation_of(x.shape[1], shape.head_dim, x.dtype, x.device)

    def launch() -> tuple[torch.Tensor]:
        with torch.no_grad():
            return (block(x, weights, shape, rotation),)

    return launch


class Step:
    """A block's forward and backward pass: its output, and the gradients of x and of every weight."""

    def __init__(
        self, x: torch.Tensor, weights: Weights, gradient: torch.Tensor, shape: Shape, checkpointing: Checkpointing
    ) -> None:
        self._x = x.detach().requires_grad_()
        self._weights = Weights(*(weight.detach().requires_grad_() for weight in weights))
        self._gradient = gradient
        rotation = rotation_of(x.shape[1], shape.head_dim, x.dtype, x.device)
        self._forward = partial(
            block, weights=self._weights, shape=shape, rotation=rotation, checkpointing=checkpointing
        )
        self._resident = (*self._weights, *rotation)

    def __call__(self) -> tuple[torch.Tensor, ...]:
        """Output, gradient of x, gradients of the weights."""
        out = self._forward(self._x)
        return (out.detach(), *torch.autograd.grad(out, (self._x, *self._weights), self._gradient))

    def held_bytes(self) -> int:
        """What autograd keeps from the forward to the backward pass, x included, beside weights and rotation."""
        return held_bytes(lambda: self._forward(self._x), self._resident)


def held_bytes(forward: Callable[[], torch.Tensor], resident: tuple[torch.Tensor, ...]) -> int:
    """Bytes of all distinct storages that autograd keeps for the backward pass of `forward`, without the `resident`.

    Counted as they are saved, which needs no allocator's statistics and can be done on every device; a storage that
    several operations save is held once.
    """
    kept: dict[int, int] = {}

    def note(saved: torch.Tensor) -> torch.Tensor:
        storage = saved.untyped_storage()
        kept[storage.data_ptr()] = storage.nbytes()
        return saved

    with torch.autograd.graph.saved_tensors_hooks(note, lambda saved: saved):
        out = forward()
    for tensor in resident:
        kept.pop(tensor.untyped_storage().data_ptr(), None)
    del out  # until here it held every storage, so that none was given out twice
    return sum(kept.values())


def peak_bytes(launch: Launch) -> int:
    """What one launch on a GPU allocates at most beside what is there, its results included, by torch's allocator."""
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    launch()
    torch.cuda.synchronize()
    return torch.cuda.max_memory_allocated() - before


def forward_flop(shape: Shape, batch: int, context: int) -> int:
    """Two a parameter of a matrix and token, and 4·head_dim a head and pair of query and key that causality leaves."""
    pairs = context * (context + 1) // 2
    return batch * (2 * context * shape.matrix_parameters + 4 * shape.hidden * pairs)


def recomputed_flop(shape: Shape, batch: int, context: int, checkpointing: Checkpointing) -> int:
    """What the backward pass computes again: all up to the last product, whose result no gradient needs."""
    one_product = 2 * batch * context * shape.hidden * shape.inner
    if checkpointing == "mlp":
        return 2 * one_product
    return forward_flop(shape, batch, context) - one_product if checkpointing == "block" else 0


def expected_forward(x: torch.Tensor, weights: Weights, shape: Shape) -> tuple[torch.Tensor]:
    """The block's output in float64, one sequence after the other."""
    rotation, exact_weights = _in_float64(x, weights, shape)
    with torch.no_grad():
        outs = [block(one.double(), exact_weights, shape, rotation, attention=exact_attention) for one in x.split(1)]
    return (torch.cat(outs),)


def expected_step(x: torch.Tensor, weights: Weights, gradient: torch.Tensor, shape: Shape) -> tuple[torch.Tensor, ...]:
    """Output and gradients in float64 of exactly the values that x, weights and gradient hold."""
    rotation, exact_weights = _in_float64(x, weights, shape)
    outs, of_x = [], []
    of_weights = [torch.zeros_like(weight) for weight in exact_weights]
    for one, of_one in zip(x.split(1), gradient.split(1), strict=True):
        exact_x = one.detach().double().requires_grad_()
        out = block(exact_x, exact_weights, shape, rotation, attention=exact_attention)
        first, *rest = torch.autograd.grad(out, (exact_x, *exact_weights), of_one.double())
        outs.append(out.detach())
        of_x.append(first)
        of_weights = [total.add_(part) for total, part in zip(of_weights, rest, strict=True)]
    return (torch.cat(outs), torch.cat(of_x), *of_weights)


def _in_float64(x: torch.Tensor, weights: Weights, shape: Shape) -> tuple[Rotation, Weights]:
    """Rotation and weights with the values that x's type leaves them."""
    rotation = rotation_of(x.shape[1], shape.head_dim, x.dtype, x.device)
    return (
        Rotation(*(table.double() for table in rotation)),
        Weights(*(weight.detach().double().requires_grad_() for weight in weights)),
    )
