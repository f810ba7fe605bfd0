"""The GEMM of a step against float64, the spans of its parts, and the order that two streams keep."""

import contextlib
import math
from types import SimpleNamespace

import pytest
import torch

from kernels import collectives, overlap
from kernels.overlap import MODES, Gemm, Spans, TwoStreams, TwoThreads, step


@pytest.fixture(params=["bf16", "fp16", "fp32"])
def gemm(request):
    made = Gemm("cpu", 0, 48, 32, 64, request.param)
    made.fill(7)
    for i in range(2):
        made.launch(i)
    return made


def test_result_within_rounding_is_right_in_both_sets(gemm):
    assert [gemm.wrong_elements(i) for i in range(4)] == [0, 0, 0, 0]


def test_result_is_not_there_before_the_launch():
    made = Gemm("cpu", 0, 48, 32, 64, "bf16")
    made.fill(7)
    made.launch(0)
    assert made.wrong_elements(0) == 0
    # Sampled rows differ, and no element is finite.
    assert made.wrong_elements(1) == 2 * 48 * 32


def test_element_that_lacks_one_product_is_wrong(gemm):
    out, a, b = gemm._out[0], gemm._a[0], gemm._b[0]
    products = a[3].double() * b[5].double()
    largest = products[products.abs().argmax()]
    out[3, 5] = (products.sum() - largest).to(out.dtype)
    assert gemm.wrong_elements(0) == 1
    assert gemm.wrong_elements(1) == 0


def test_element_that_is_not_finite_is_wrong_in_rows_that_are_not_sampled():
    made = Gemm("cpu", 0, 256, 8, 8, "fp32")
    made.fill(7)
    made.launch(0)
    unseen = next(row for row in range(256) if row not in made._rows.tolist())
    made._out[0][unseen, 0] = math.inf
    assert made.wrong_elements(0) == 1


@pytest.mark.parametrize(("m", "rows"), [(48, 48), (256, 64), (8192, 64), (131072, 1024)])
def test_every_tile_of_128_rows_has_one_that_is_compared(m, rows):
    sampled = Gemm("cpu", 0, m, 1, 1, "bf16")._rows.tolist()
    assert len(set(sampled)) == rows
    assert {row // 128 for row in sampled} == set(range(-(-m // 128)))


def test_every_rank_set_and_seed_has_operands_of_its_own():
    drawn = []
    for rank in range(2):
        made = Gemm("cpu", rank, 4, 4, 4, "fp32")
        for seed in (20250601, 20250602):
            made.fill(seed)
            drawn += [tuple(operand.view(-1).tolist()) for operand in (*made._a, *made._b)]
    assert len(set(drawn)) == len(drawn) == 2 * 2 * 4


def test_spans_are_those_of_the_launches_asked_for(monkeypatch):
    clock = iter([0.0, 1.0, 10.0, 12.0, 20.0, 23.0])
    monkeypatch.setattr(overlap.time, "perf_counter", lambda: next(clock))
    spans = Spans(is_gpu=False)
    for i in range(3):
        with spans.around("gemm", i):
            pass
    assert spans.seconds("gemm", range(1, 3)) == [2.0, 3.0]
    assert spans.seconds("gemm", range(2, 4)) == []
    assert spans.seconds("collective", range(1)) == []


def test_a_graph_that_is_captured_has_no_spans(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    spans = Spans(is_gpu=True)
    with spans.around("gemm", 0):
        pass
    assert spans.seconds("gemm", range(1)) == []


class FakeStreams:
    """Two streams that write down what is queued where, in the order of the host."""

    def __init__(self, monkeypatch):
        self.log, self.current = [], "main"
        monkeypatch.setattr(torch.cuda, "Stream", lambda device, priority: self._stream(f"side {priority}"))
        monkeypatch.setattr(torch.cuda, "current_stream", lambda: self._stream(self.current))
        monkeypatch.setattr(torch.cuda, "stream", self._on)
        monkeypatch.setattr(torch, "device", lambda name: name)

    def queue(self, work):
        self.log.append(f"{self.current}: {work}")

    def _stream(self, name):
        def wait(other):
            self.log.append(f"{name}: waits for {other.name}")

        return SimpleNamespace(name=name, wait_stream=wait)

    @contextlib.contextmanager
    def _on(self, stream):
        before, self.current = self.current, stream.name
        yield
        self.current = before


def test_second_stream_begins_after_what_came_before_and_is_awaited(monkeypatch):
    fake = FakeStreams(monkeypatch)
    lanes = TwoStreams("cuda:0")
    fake.queue("restore")
    lanes.fork(lambda: fake.queue("collective"))
    fake.queue("gemm")
    lanes.join()
    fake.queue("check")
    assert fake.log == [
        "main: restore",
        "side -1: waits for main",
        "side -1: collective",
        "main: gemm",
        "main: waits for side -1",
        "main: check",
    ]


def test_what_goes_wrong_beside_the_gemm_is_raised():
    lanes = TwoThreads(ranks=1)
    lanes.join()
    lanes.fork(lambda: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        lanes.join()


@pytest.fixture
def queued(monkeypatch):
    """A world of one, and what was launched in it."""
    log = []
    monkeypatch.setattr(collectives.dist, "all_reduce", lambda tensor: log.append(f"all_reduce {tensor.numel()}"))
    return log


def of_one(mode):
    made = step("cpu", 0, 1, "all_reduce", (48, 32, 16), 48 * 32 * 2, "bf16", mode)
    made.fill(7)
    return made


@pytest.mark.parametrize(
    ("mode", "parts"),
    [
        ("compute", ["gemm"]),
        ("communicate", ["all_reduce 1536"]),
        ("serial", ["gemm", "all_reduce 1536"]),
        ("overlap", ["gemm", "all_reduce 1536"]),
    ],
)
def test_each_mode_launches_its_parts_once(queued, monkeypatch, mode, parts):
    made = of_one(mode)
    multiply = made._gemm.launch
    monkeypatch.setattr(made._gemm, "launch", lambda i: (queued.append("gemm"), multiply(i)))
    queued.clear()
    made.launch(0)
    assert sorted(queued) == sorted(parts)
    if mode == "serial":
        assert queued == parts


@pytest.mark.parametrize("mode", MODES)
def test_what_a_graph_repeats_is_right_after_all_of_it(queued, mode):
    made = of_one(mode)
    for i in range(3):
        made.launch(i)
    assert made.wrong_after(3) == 0
    made.fill(8)
    made.launch(0)
    assert made.wrong_after(1) == 0
    # The second set was not multiplied yet, which three launches would have done.
    assert (made.wrong_after(3) > 0) == (mode != "communicate")


def test_only_a_collective_limits_how_often_a_step_follows_itself(queued):
    limits = {mode: (of_one(mode).launches_before_overflow(), of_one(mode).launches_that_can_be_checked())
              for mode in MODES}  # fmt: skip
    assert limits.pop("compute") == (10**6, 10**6)
    assert set(limits.values()) == {limits["communicate"]}
    assert limits["communicate"][0] < 200
