"""Ranges for profilers, with torch's NVTX doubled."""

import pytest
from torch.cuda import nvtx

from harness.probe.ranges import named_range


@pytest.fixture
def calls(monkeypatch):
    made = []
    monkeypatch.setattr(nvtx, "range_push", lambda name: made.append(("push", name)))
    monkeypatch.setattr(nvtx, "range_pop", lambda: made.append(("pop",)))
    return made


def test_range_has_the_cases_key_and_ends_with_it(calls):
    with named_range("copy/bytes=8", is_cuda=True):
        assert calls == [("push", "copy/bytes=8")]
    assert calls[1:] == [("pop",)]


def test_range_ends_where_a_case_fails(calls):
    with pytest.raises(ValueError), named_range("copy/bytes=8", is_cuda=True):
        raise ValueError
    assert calls[-1] == ("pop",)


def test_a_cpu_has_no_ranges(calls):
    with named_range("copy/bytes=8", is_cuda=False):
        pass
    assert calls == []


def test_torch_without_nvtx_measures_all_the_same(monkeypatch, calls):
    def refuse(name):
        raise RuntimeError("NVTX functions not installed. Are you sure you have a CUDA build?")

    monkeypatch.setattr(nvtx, "range_push", refuse)
    done = []
    with named_range("copy/bytes=8", is_cuda=True):
        done.append(True)
    assert done == [True]
    assert calls == []
