"""All-reduce over symmetric memory with torch's kernels replaced: what they are given, and what is checked of them."""

from types import SimpleNamespace

import pytest
import torch

from kernels.collectives_symmetric import SymmetricAllReduce, all_reduce
from tests.kernels.symmetric_double import replace_torch


@pytest.fixture(autouse=True)
def called(monkeypatch):
    """Torch's kernels in a world of one, in which a sum is what went in."""
    calls = []

    def one_shot(given, op, group, out):
        calls.append(("one", op))
        out.copy_(given)

    def two_shot(given, op, group):
        calls.append(("two", op))

    kernels = SimpleNamespace(one_shot_all_reduce_out=one_shot, two_shot_all_reduce_=two_shot)
    monkeypatch.setattr(torch.ops, "symm_mem", kernels)
    replace_torch(monkeypatch)
    return calls


@pytest.mark.parametrize(("shots", "name"), [("one_shot", "one"), ("two_shot", "two")])
def test_each_kernel_sums_what_lies_in_symmetric_memory(called, shots, name):
    body = all_reduce("cpu", 0, 1, 64, "bf16", shots)
    body.fill(7)
    assert body.wrong_elements() == 0
    assert called == [(name, "sum")]


def test_one_shot_leaves_what_is_given_so_it_can_follow_itself_for_ever():
    body = SymmetricAllReduce("cpu", 0, 1, 64, "bf16", "one_shot")
    body.fill(7)
    for _ in range(3):
        body.launch(0)
    assert body.wrong_after(3) == 0
    assert body.launches_before_overflow() == body.launches_that_can_be_checked() == 10**6


def test_result_that_was_not_written_is_wrong(monkeypatch):
    monkeypatch.setattr(torch.ops.symm_mem, "one_shot_all_reduce_out", lambda *_: None)
    body = SymmetricAllReduce("cpu", 0, 1, 64, "bf16", "one_shot")
    body.fill(7)
    assert body.wrong_elements() == 32
