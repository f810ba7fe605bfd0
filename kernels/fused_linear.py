"""A linear layer with bias and activation: in one kernel of the library, or a product and what follows it apart."""

from collections.abc import Callable
from typing import Literal

import torch

from kernels.reference import gemm_rows

Launch = Callable[[], torch.Tensor]
Activation = Literal["relu", "gelu"]


def plan_fused(x: torch.Tensor, w: torch.Tensor, bias: torch.Tensor, activation: Activation) -> Launch:
    """A launch that returns activation(x[m, k] @ w[n, k]^T + bias[n]) from the epilogue of the library's GEMM.

    The epilogue is cuBLASLt's; where torch cannot use it, it computes the same in several kernels without a word.
    """
    weight = w.t()
    return lambda: torch._addmm_activation(bias, x, weight, use_gelu=activation == "gelu")


def plan_apart(x: torch.Tensor, w: torch.Tensor, bias: torch.Tensor, activation: Activation) -> Launch:
    """The same as three operations, each of which reads and writes the whole result."""
    weight = w.t()

    def launch() -> torch.Tensor:
        out = torch.mm(x, weight)
        out += bias
        if activation == "relu":
            return torch.relu_(out)
        return torch.nn.functional.gelu(out, approximate="tanh")

    return launch


def expected_rows(
    x: torch.Tensor, w: torch.Tensor, bias: torch.Tensor, activation: Activation, rows: torch.Tensor
) -> torch.Tensor:
    """Those rows in float64."""
    out = gemm_rows(x, w, rows) + bias.double()
    return out.relu() if activation == "relu" else torch.nn.functional.gelu(out, approximate="tanh")
