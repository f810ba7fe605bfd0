"""A linear layer's step in fp8: forward and both products of the backward pass, as torch's scaled products do them.

    out[m, n] = x[m, k] @ w[n, k]^T      dx[m, k] = g[m, n] @ w[n, k]      dw[n, k] = g[m, n]^T @ x[m, k]

Each operand is quantised along the dimension that its product contracts, once as it is and once transposed.
The recipes:

- `current`, `delayed`: one scale a tensor; e4m3 forward and e5m2 for gradients, as in the paper that introduced the
  types (Micikevicius et al., "FP8 Formats for Deep Learning", arXiv 2209.05433).
- `row`: one scale for each row of an operand, e4m3 throughout.
- `block`: 1x128 for activations and gradients, 128x128 for weights, e4m3 throughout (DeepSeek-V3 Technical Report,
  arXiv 2412.19437, 3.3.2).

Per-tensor and row-wise products accumulate fast forward and exactly backward; the library promotes block-wise ones.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from kernels.quantise import Quantised, allocate, emulate, plan_quantise, spread

Launch = Callable[[], Any]

E4M3, E5M2 = torch.float8_e4m3fn, torch.float8_e5m2
# Delayed scaling must assume an amax for its first step: more than a normal draw of any size here holds.
FIRST_AMAX = 16.0
COLUMN_CHUNK = 2**12


@dataclass(frozen=True)
class Recipe:
    """How the operands of a step are scaled, and the type that gradients get."""

    activations: str
    weights: str
    gradients: torch.dtype
    is_delayed: bool = False
    is_fast: bool = True


RECIPES = {
    "current": Recipe("tensor", "tensor", E5M2),
    "delayed": Recipe("tensor", "tensor", E5M2, is_delayed=True),
    "row": Recipe("row", "row", E4M3),
    "block": Recipe("block", "square", E4M3, is_fast=False),
}


@dataclass(frozen=True)
class Operand:
    """One side of a product: codes [rows, contracted] with their scales."""

    codes: torch.Tensor
    scales: torch.Tensor

    def dequantised_rows(self, rows: torch.Tensor) -> torch.Tensor:
        """The values that these rows' codes stand for, in float64.

        Codes are picked as bytes, because torch does not index fp8 on every device.
        """
        codes = self.codes.view(torch.uint8)[rows].view(self.codes.dtype)
        return codes.double() * spread(self.scales, *self.codes.shape)[rows].double()


@dataclass(frozen=True)
class Product:
    """out = a @ b^T, summed fast (14 bits of the sum on Hopper) or as exactly as tensor cores can."""

    a: Operand
    b: Operand
    out: torch.Tensor
    is_fast: bool

    def expected_rows(self, rows: torch.Tensor) -> torch.Tensor:
        """Those rows of the product in float64, of exactly the values that the operands hold."""
        a = self.a.dequantised_rows(rows)
        scales = spread(self.b.scales, *self.b.codes.shape)
        pieces = zip(self.b.codes.split(COLUMN_CHUNK), scales.split(COLUMN_CHUNK), strict=True)
        return torch.cat([a @ (codes.double() * scale.double()).t() for codes, scale in pieces], dim=1)


@dataclass(frozen=True)
class Step:
    """A step in two launches: `quantise` fills the operands, `multiply` their three products."""

    quantise: Launch
    multiply: Launch
    products: tuple[Product, ...]

    def both(self) -> None:
        """The whole step."""
        self.quantise()
        self.multiply()


def plan_step(
    x: torch.Tensor,
    w: torch.Tensor,
    g: torch.Tensor,
    out: torch.Tensor,
    dx: torch.Tensor,
    dw: torch.Tensor,
    recipe: Recipe,
) -> Step:
    """A step over bfloat16 operands and results; every dimension is a multiple of 128."""

    def room(source: torch.Tensor, dtype: torch.dtype, mode: str) -> Quantised:
        first = FIRST_AMAX if recipe.is_delayed else None
        rows, columns = source.shape
        return allocate(rows, columns, dtype, mode, source.device, both=True, delayed_from=first)

    of_x = room(x, E4M3, recipe.activations)
    of_w = room(w, E4M3, recipe.weights)
    of_g = room(g, recipe.gradients, recipe.activations)
    casts = [plan_quantise(*pair) for pair in ((x, of_x), (w, of_w), (g, of_g))]
    products = (
        Product(_as_it_is(of_x), _as_it_is(of_w), out, is_fast=recipe.is_fast),
        Product(_as_it_is(of_g), _transposed(of_w), dx, is_fast=False),
        Product(_transposed(of_g), _transposed(of_x), dw, is_fast=False),
    )
    multiplications = [partial(scaled_product, product) for product in products]
    return Step(partial(_run, casts), partial(_run, multiplications), products)


def plan_bf16_step(
    x: torch.Tensor, w: torch.Tensor, g: torch.Tensor, out: torch.Tensor, dx: torch.Tensor, dw: torch.Tensor
) -> Launch:
    """The same step without quantisation: what fp8 is held against."""
    products = ((x, w.t(), out), (g, w, dx), (g.t(), x, dw))
    return partial(_run, [partial(torch.mm, a, b, out=result) for a, b, result in products])


def scaled_product(product: Product) -> None:
    """One scaled product, by the private name that has an `out=`; its public one would allocate at every launch."""
    a, b = product.a, product.b
    torch._scaled_mm(
        a.codes,
        b.codes.t(),
        scale_a=a.scales,
        scale_b=b.scales.t() if b.scales.ndim == 2 else b.scales,
        out_dtype=product.out.dtype,
        use_fast_accum=product.is_fast,
        out=product.out,
    )


def _run(launches: Sequence[Launch]) -> None:
    for launch in launches:
        launch()


def _as_it_is(matrix: Quantised) -> Operand:
    return Operand(matrix.codes, matrix.scales)


def _transposed(matrix: Quantised) -> Operand:
    assert matrix.codes_t is not None and matrix.scales_t is not None
    return Operand(matrix.codes_t, matrix.scales_t)


# --- the same numbers anywhere: quantised and multiplied in float32 --------------------------------------------------


class EmulatedLinear(torch.autograd.Function):
    """x @ w^T in float32 of values rounded as a recipe rounds them, with the backward pass rounded likewise.

    `memory` names the amax of x, w and g that delayed scaling uses, and takes theirs down for the next step.
    """

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, w: torch.Tensor, recipe: Recipe | None, memory: "Memory") -> torch.Tensor:
        """The layer's output."""
        ctx.save_for_backward(x, w)
        ctx.recipe, ctx.memory = recipe, memory
        if recipe is None:
            return (x.bfloat16() @ w.bfloat16().t()).float()
        a = rounded(x, E4M3, recipe.activations, memory.amax("x", x, recipe))
        b = rounded(w, E4M3, recipe.weights, memory.amax("w", w, recipe))
        return (a @ b.t()).bfloat16().float()

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        """The gradients of x and of w."""
        (x, w), (g,) = ctx.saved_tensors, gradients
        recipe, memory = ctx.recipe, ctx.memory
        if recipe is None:
            g_half = g.bfloat16()
            return (g_half @ w.bfloat16()).float(), (g_half.t() @ x.bfloat16()).float(), None, None
        # The amaxes of x and w are those of the forward pass: the same values, only transposed.
        of_x, of_w = memory.used("x"), memory.used("w")
        of_g = memory.amax("g", g, recipe)
        a = rounded(g, recipe.gradients, recipe.activations, of_g)
        b = rounded(w.t(), E4M3, recipe.weights, of_w)
        a_t = rounded(g.t(), recipe.gradients, recipe.activations, of_g)
        b_t = rounded(x.t(), E4M3, recipe.activations, of_x)
        return (a @ b.t()).bfloat16().float(), (a_t @ b_t.t()).bfloat16().float(), None, None


class Memory:
    """What delayed scaling remembers of one layer: the last amaxes of each operand, and the one in use."""

    def __init__(self, length: int) -> None:
        self.length = length
        self._seen: dict[str, list[torch.Tensor]] = {}
        self._used: dict[str, torch.Tensor | None] = {}

    def amax(self, name: str, values: torch.Tensor, recipe: Recipe) -> torch.Tensor | None:
        """The amax to scale by, or `None` where the values' own is used; the very first step has no other."""
        if not recipe.is_delayed:
            return None
        own = values.abs().max()
        seen = self._seen.setdefault(name, [])
        self._used[name] = torch.stack(seen).max() if seen else own
        seen.insert(0, own)
        del seen[self.length :]
        return self._used[name]

    def used(self, name: str) -> torch.Tensor | None:
        """What the last call for that operand gave."""
        return self._used.get(name)


def rounded(values: torch.Tensor, dtype: torch.dtype, mode: str, amax: torch.Tensor | None = None) -> torch.Tensor:
    """Values as fp8 keeps them, in float32."""
    codes, scales = emulate(values, dtype, mode, amax=amax)
    return codes.float() * scales


def emulated_products(
    x: torch.Tensor, w: torch.Tensor, g: torch.Tensor, recipe: Recipe | None
) -> Iterator[tuple[str, torch.Tensor]]:
    """Output and both gradients of a step, named, rounded as a recipe rounds them."""
    x, w = (operand.detach().float().requires_grad_() for operand in (x, w))  # the caller's stay as they are
    out = EmulatedLinear.apply(x, w, recipe, Memory(1))
    dx, dw = torch.autograd.grad(out, (x, w), g.float())
    yield from (("output", out.detach()), ("dx", dx), ("dw", dw))


def exact_products(x: torch.Tensor, w: torch.Tensor, g: torch.Tensor) -> Iterator[tuple[str, torch.Tensor]]:
    """The same in float64 without any rounding."""
    x, w, g = x.double(), w.double(), g.double()
    yield from (("output", x @ w.t()), ("dx", g @ w), ("dw", g.t() @ x))
