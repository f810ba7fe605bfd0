"""GEMMs of the vendor's library on chosen data and in types that `kernels.gemm_torch` leaves out: int8 and float64.

Every kind of data is made of one normal draw, so that other draws give other data of the same kind.
"""

import math
from collections.abc import Callable, Iterator
from functools import partial

import torch

from kernels import gemm_torch
from kernels.reference import gemm_rows

Launch = Callable[[], object]

OUT_DTYPES = {torch.int8: torch.int32, torch.float8_e4m3fn: torch.bfloat16}
# The standard deviation of int8 operands: four of them fit.
INT8_SCALE = 32.0
INT8_MOST = 127
# Half of all normal numbers lie nearer to zero.
MEDIAN = 0.6744897501960817
SAMPLED_ROWS = 64
DATA: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "normal": lambda draw: draw,
    "uniform": lambda draw: torch.erf(draw / math.sqrt(2)),  # between -1 and 1
    "zeros": torch.zeros_like,
    "constant": torch.ones_like,
    "sparse": lambda draw: draw * (draw.abs() > MEDIAN),  # half of them zero
    "sorted": lambda draw: draw.view(-1).sort().values.view_as(draw),  # along the rows, one after the other
}


def plan(a: torch.Tensor, b: torch.Tensor, out: torch.Tensor, *, tf32: bool = False) -> Launch:
    """A launch of out[m, n] = a[m, k] @ b[n, k]^T; fp8 accumulates fast, float32 is exact unless tf32 is asked for.

    The one place that knows torch's private name for int8; its sums of products are exact in int32.
    """
    if a.dtype == torch.int8:
        return partial(torch._int_mm, a, b.t(), out=out)
    if a.dtype == torch.float64:
        return partial(torch.mm, a, b.t(), out=out)
    return gemm_torch.plan(a, b, out, tf32=tf32)


class Operands:
    """Buffer sets of one shape and type, and the two draws of which `lay` makes what they hold.

    Each set holds the draws' rows from another row on.
    """

    def __init__(
        self, shape: tuple[int, int, int], dtype: torch.dtype, sets: int, device: str, data: str = "normal"
    ) -> None:
        m, n, k = shape
        self.draws = [torch.empty(rows, k, device=device) for rows in (m, n)]
        self.a, self.b = ([torch.empty(rows, k, dtype=dtype, device=device) for _ in range(sets)] for rows in (m, n))
        self.out = [torch.empty(m, n, dtype=OUT_DTYPES.get(dtype, dtype), device=device) for _ in range(sets)]
        self._rows = torch.linspace(0, m - 1, min(m, SAMPLED_ROWS), device=device).long()
        self._data = data

    def plans(self, *, tf32: bool = False) -> list[Launch]:
        """A launch for each buffer set."""
        return [plan(a, b, out, tf32=tf32) for a, b, out in zip(self.a, self.b, self.out, strict=True)]

    def lay(self, i: int) -> None:
        """Fill set i from the draws."""
        for draw, operands in zip(self.draws, (self.a, self.b), strict=True):
            values = DATA[self._data](draw).roll(i, dims=0)
            if operands[i].dtype == torch.int8:
                values = (values * INT8_SCALE).round_().clamp_(-INT8_MOST, INT8_MOST)
            operands[i].copy_(values)

    def reference(self, i: int) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        """Some rows of set i in float64, and that every element was written: none holds poison.

        Sums of whole numbers of 8 bits never come to the least one of 32.
        """
        out = self.out[i]
        yield out[self._rows], gemm_rows(self.a[i], self.b[i], self._rows)
        is_written = out.isfinite() if out.is_floating_point() else out != torch.iinfo(out.dtype).min
        yield is_written.all(), torch.ones((), dtype=torch.bool, device=out.device)
