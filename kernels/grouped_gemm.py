"""A mixture's experts as one grouped GEMM: out[rows of e] = a[rows of e, k] @ b[e, n, k]^T, rows sorted by expert.

`plan_grouped` is one call of torch's grouped product, `plan_loop` a product for each expert that has any row: what is
done where no grouped kernel exists.
"""

from collections.abc import Callable, Sequence

import torch

Launch = Callable[[], object]


def balanced(rows: int, experts: int) -> list[int]:
    """Rows of each expert, as equal as whole rows can be."""
    return [rows // experts + (e < rows % experts) for e in range(experts)]


def skewed(rows: int, experts: int) -> list[int]:
    """Rows of each expert by Zipf's law: the second has half of what the first has, the third a third."""
    weights = [1 / (e + 1) for e in range(experts)]
    total, given, counts = sum(weights), 0, []
    for e in range(experts):
        until = round(rows * sum(weights[: e + 1]) / total)
        counts.append(until - given)
        given = until
    return counts


def ends_of(counts: Sequence[int]) -> list[int]:
    """Where the rows of each expert end."""
    return [sum(counts[: e + 1]) for e in range(len(counts))]


def plan_grouped(a: torch.Tensor, b: torch.Tensor, counts: Sequence[int]) -> Callable[[], torch.Tensor]:
    """A launch that returns all products, in memory that torch allocates."""
    _require_rows(a, b, counts)
    ends = torch.tensor(ends_of(counts), dtype=torch.int32, device=a.device)
    experts = b.transpose(-2, -1)
    return lambda: torch._grouped_mm(a, experts, offs=ends)


def plan_loop(a: torch.Tensor, b: torch.Tensor, out: torch.Tensor, counts: Sequence[int]) -> Launch:
    """A launch of one product after another."""
    _require_rows(a, b, counts)
    pieces = [
        (rows, b[e].t(), made)
        for e, (rows, made) in enumerate(zip(a.split(list(counts)), out.split(list(counts)), strict=True))
        if len(rows)
    ]

    def launch() -> None:
        for rows, expert, made in pieces:
            torch.mm(rows, expert, out=made)

    return launch


def expected_rows(a: torch.Tensor, b: torch.Tensor, counts: Sequence[int], rows: Sequence[int]) -> torch.Tensor:
    """Those rows of the result in float64, each from its own expert."""
    ends = ends_of(counts)
    experts = [next(e for e, end in enumerate(ends) if row < end) for row in rows]
    return torch.stack([b[e].double() @ a[row].double() for row, e in zip(rows, experts, strict=True)])


def _require_rows(a: torch.Tensor, b: torch.Tensor, counts: Sequence[int]) -> None:
    if len(counts) != len(b) or sum(counts) != len(a):
        raise ValueError(f"{len(counts)} counts of {sum(counts)} rows for {len(b)} experts and {len(a)} rows")
