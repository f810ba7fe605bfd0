"""The busy loop in Triton's interpreter."""

import pytest
import torch

from kernels import spin


@pytest.mark.parametrize("steps", [0, 1, 2, 7, 64])
def test_loop_ends_where_its_steps_taken_one_by_one_do(steps):
    out = torch.full((3,), -1, dtype=torch.int64)
    spin.plan_spin(out, steps)()
    values = list(range(3))
    for _ in range(steps):
        values = [(value * spin.FACTOR + spin.INCREMENT) % spin.MODULUS for value in values]
    assert out.tolist() == values
    assert spin.expected(out, steps).tolist() == values


def test_other_types_are_refused():
    with pytest.raises(ValueError, match="64-bit whole numbers"):
        spin.plan_spin(torch.empty(3), 1)
