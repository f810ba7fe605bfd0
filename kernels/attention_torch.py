"""The torch counterpart of `kernels.attention`: `scaled_dot_product_attention`, with the backend that torch chooses.

It has no `out=`: every launch puts its result where the last one was kept.
"""

import torch
from torch.nn.functional import scaled_dot_product_attention

from kernels.launches import Launch


def plan_decode(
    q: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, results: list[torch.Tensor], i: int
) -> Launch:
    """A launch of results[i] = attention of one query a head, as [batch, heads, d], over a contiguous cache."""

    def launch() -> None:
        results[i] = scaled_dot_product_attention(q[:, :, None], keys, values, enable_gqa=True)[:, :, 0]

    return launch


def plan_prefill(
    q: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, results: list[torch.Tensor], i: int, *, causal: bool
) -> Launch:
    """A launch of results[i] = attention of every query, as `kernels.attention.plan_prefill` has it."""

    def launch() -> None:
        results[i] = scaled_dot_product_attention(q, keys, values, is_causal=causal, enable_gqa=True)

    return launch
