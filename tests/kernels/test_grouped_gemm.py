"""Experts' products against float64, and how rows are spread over experts."""

import pytest
import torch

from kernels import grouped_gemm
from kernels.reference import fill_normal, sqnr_db

ROWS, EXPERTS, N, K = 24, 3, 32, 64


def operands():
    a, b = (fill_normal(torch.empty(shape, dtype=torch.bfloat16), 3) for shape in ((ROWS, K), (EXPERTS, N, K)))
    return a, b


@pytest.mark.parametrize("counts", [[8, 8, 8], [20, 0, 4], [0, 0, 24]])
@pytest.mark.parametrize("how", ["grouped", "loop"])
def test_each_row_meets_its_own_expert(how, counts):
    a, b = operands()
    out = torch.full((ROWS, N), float("nan"), dtype=torch.bfloat16)
    if how == "grouped":
        out = grouped_gemm.plan_grouped(a, b, counts)()
    else:
        grouped_gemm.plan_loop(a, b, out, counts)()
    expected = torch.cat([rows.double() @ b[e].double().t() for e, rows in enumerate(a.split(counts))])
    assert sqnr_db(out, expected) >= 50
    assert torch.equal(grouped_gemm.expected_rows(a, b, counts, range(ROWS)), expected)


@pytest.mark.parametrize("spread", [grouped_gemm.balanced, grouped_gemm.skewed])
@pytest.mark.parametrize(("rows", "experts"), [(24, 3), (25, 4), (65536, 256)])
def test_every_row_has_an_expert(spread, rows, experts):
    counts = spread(rows, experts)
    assert (len(counts), sum(counts)) == (experts, rows)
    assert min(counts) >= 0


def test_balanced_rows_differ_by_one_and_skewed_ones_follow_zipf():
    assert grouped_gemm.balanced(25, 4) == [7, 6, 6, 6]
    assert grouped_gemm.skewed(110, 3) == [60, 30, 20]
    assert grouped_gemm.ends_of([3, 0, 2]) == [3, 3, 5]


def test_counts_that_do_not_fit_are_refused():
    a, b = operands()
    with pytest.raises(ValueError, match="2 counts of 24 rows for 3 experts and 24 rows"):
        grouped_gemm.plan_grouped(a, b, [12, 12])
