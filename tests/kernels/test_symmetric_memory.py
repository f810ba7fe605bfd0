"""What is asked of torch's symmetric memory, which needs GPUs, and what comes out of it."""

import pytest

from kernels.symmetric_memory import SymmetricBuffer
from tests.kernels.symmetric_double import replace_torch


def test_buffer_is_allocated_for_itself_met_for_by_all_and_zero_before_any_rank_goes_on(monkeypatch):
    asked = replace_torch(monkeypatch)
    buffer = SymmetricBuffer("cpu", 0, 24)
    assert [call[0] for call in asked] == ["empty", "rendezvous", "all_reduce"]
    assert buffer.own.tolist() == [0] * 24
    assert len(buffer.of_ranks) == 1
    assert buffer.of_ranks[0].data_ptr() == buffer.own.data_ptr()


def test_buffer_that_is_not_the_one_allocated_is_refused(monkeypatch):
    replace_torch(monkeypatch, gives_another=True)
    with pytest.raises(RuntimeError, match="another buffer for this rank"):
        SymmetricBuffer("cpu", 0, 24)
