"""A small training run whose products are rounded as fp8 rounds them: does the loss still fall, and at which rate?

Two linear layers learn a fixed random network from generated data in which some features are far larger than the rest,
as activations of transformers are. Weights, updates and all that is no matrix product stay in float32, so that what
differs between two runs of one seed and learning rate is the recipe alone. Rounding is emulated: it needs no fp8 unit.
"""

import math
from dataclasses import dataclass

import torch

from kernels.fp8_linear import EmulatedLinear, Memory, Recipe
from kernels.quantise import HISTORY

FEATURES, HIDDEN, TARGETS, BATCH = 128, 256, 128, 128
LARGE_FEATURES, LARGE_FACTOR = 4, 32.0
MOMENTUM = 0.9
SEED = 20250603
# Above it a loss will not come back.
DIVERGED_RATIO = 100.0


@dataclass(frozen=True)
class Curve:
    """The loss before each step's update, in units of the loss of a model that always answers zero."""

    losses: torch.Tensor

    def at(self, step: int, width: int = 10) -> float | None:
        """The mean of the losses of so many steps up to that one; `None` where the run has diverged by then."""
        seen = self.losses[max(0, step - width + 1) : step + 1].tolist()
        largest = max(self.losses[: step + 1].nan_to_num(math.inf, math.inf).tolist())
        return None if largest > DIVERGED_RATIO else sum(seen) / len(seen)


class _Task:
    """Generated data and a start, drawn on the host: the same on every device."""

    def __init__(self, device: str | torch.device) -> None:
        self._generator = torch.Generator().manual_seed(SEED)
        self._device = device
        sizes = torch.ones(FEATURES)
        sizes[:LARGE_FEATURES] = LARGE_FACTOR
        self._sizes = sizes.to(device)
        # The teacher sees features of one size, so that none of them drowns the others.
        self._teacher = self._two_layers()
        first, second = self._two_layers()
        self.weights = [first / self._sizes, second]

    def batch(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Fresh features, some of them large, and what the teacher makes of them."""
        features = self._drawn(BATCH, FEATURES)
        wanted = torch.tanh(features @ self._teacher[0].t()) @ self._teacher[1].t()
        return features * self._sizes, wanted

    def _two_layers(self) -> tuple[torch.Tensor, torch.Tensor]:
        return self._drawn(HIDDEN, FEATURES) * FEATURES**-0.5, self._drawn(TARGETS, HIDDEN) * HIDDEN**-0.5

    def _drawn(self, *shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=self._generator).to(self._device)


def train(recipe: Recipe | None, learning_rate: float, steps: int, device: str | torch.device) -> Curve:
    """The loss over so many steps of plain momentum; without a recipe products are those of bfloat16."""
    task = _Task(device)
    weights = task.weights
    memories = [Memory(HISTORY), Memory(HISTORY)]
    speeds = [torch.zeros_like(weight) for weight in weights]
    losses = torch.full((steps,), math.nan, device=device)
    for step in range(steps):
        features, wanted = task.batch()
        for weight in weights:
            weight.requires_grad_()
        hidden = torch.tanh(EmulatedLinear.apply(features, weights[0], recipe, memories[0]))
        answer = EmulatedLinear.apply(hidden, weights[1], recipe, memories[1])
        loss = _loss(answer, wanted)
        gradients = torch.autograd.grad(loss, weights)
        losses[step] = loss.detach()
        speeds = [MOMENTUM * speed + gradient for speed, gradient in zip(speeds, gradients, strict=True)]
        weights = [(w - learning_rate * s).detach() for w, s in zip(weights, speeds, strict=True)]
    return Curve(losses.cpu())


def first_loss() -> torch.Tensor:
    """The loss of the first step without any rounding, in float64: [1]."""
    task = _Task("cpu")
    features, wanted = (tensor.double() for tensor in task.batch())
    first, second = (weight.double() for weight in task.weights)
    return _loss(torch.tanh(features @ first.t()) @ second.t(), wanted).reshape(1)


def _loss(answer: torch.Tensor, wanted: torch.Tensor) -> torch.Tensor:
    return (answer - wanted).square().mean() / wanted.square().mean()
