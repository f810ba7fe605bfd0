"""The torch counterparts of `kernels.memory`: the same plans, each one call of a library kernel into given outputs."""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch

Launch = Callable[[], Any]


def plan_copy(source: torch.Tensor, out: torch.Tensor) -> Launch:
    """A launch of out = source."""
    _require_alike(source=source, out=out)
    return partial(out.copy_, source)


def plan_write(out: torch.Tensor, value: float) -> Launch:
    """A launch of out = value."""
    _require_alike(out=out)
    return partial(out.fill_, value)


def plan_scale(source: torch.Tensor, out: torch.Tensor, factor: float) -> Launch:
    """A launch of out = factor * source."""
    _require_alike(source=source, out=out)
    return partial(torch.mul, source, factor, out=out)


def plan_add(a: torch.Tensor, b: torch.Tensor, out: torch.Tensor) -> Launch:
    """A launch of out = a + b."""
    _require_alike(a=a, b=b, out=out)
    return partial(torch.add, a, b, out=out)


def plan_triad(a: torch.Tensor, b: torch.Tensor, out: torch.Tensor, factor: float) -> Launch:
    """A launch of out = a + factor * b."""
    _require_alike(a=a, b=b, out=out)
    return partial(torch.add, a, b, alpha=factor, out=out)


def plan_read(source: torch.Tensor, partials: torch.Tensor) -> Launch:
    """A launch that sums source in float32 into the only element of partials."""
    _require_alike(source=source)
    if partials.dtype != torch.float32 or partials.shape != (1,) or partials.device != source.device:
        raise ValueError(
            f"partials is {partials.dtype} {tuple(partials.shape)} on {partials.device}; one float32 on {source.device}"
            " is needed: use allocate_partials"
        )
    return partial(torch.sum, source, dim=0, keepdim=True, dtype=torch.float32, out=partials)


def allocate_partials(source: torch.Tensor) -> torch.Tensor:
    """The float32 array for `plan_read` of source: a single sum."""
    return torch.empty(1, dtype=torch.float32, device=source.device)


def partial_reference(source: torch.Tensor, partials: torch.Tensor) -> torch.Tensor:
    """What the partials must hold, in float64: the sum of all elements."""
    return source.sum(dim=0, keepdim=True, dtype=torch.float64).expand_as(partials)


def _require_alike(**arrays: torch.Tensor) -> None:
    """Raises ValueError where torch would convert, broadcast or resize instead of moving the bytes it was given."""
    (first_name, first), *others = arrays.items()
    if first.numel() == 0:
        raise ValueError(f"{first_name} is empty: {first.dtype} {tuple(first.shape)}")
    for name, array in arrays.items():
        if not array.is_contiguous():
            raise ValueError(f"{name} {tuple(array.shape)} is not contiguous")
    for name, array in others:
        if (array.shape, array.dtype, array.device) != (first.shape, first.dtype, first.device):
            raise ValueError(
                f"{name} is {array.dtype} {tuple(array.shape)} on {array.device}, {first_name} {first.dtype}"
                f" {tuple(first.shape)} on {first.device}; they must be alike"
            )
