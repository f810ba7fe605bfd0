"""What the search for the best shape asks of a device: right results only, on views of three pools."""

import json
from dataclasses import replace

import pytest
import torch

from harness.errors import ExitCode, HarnessError
from harness.peak import RefusedError, Shape
from harness.probe import peak as module
from harness.probe.peak import Asked, Bench, plan_of, read_asked, wrong_about
from tests.benches.test_cases import H200

SHAPE = Shape(64, 32, 128)


class HostDevice:
    """A processor that calls itself an H200 with little memory."""

    facts = replace(H200, torch_device="cpu", free_bytes=2**20)

    def __init__(self):
        self.usable = True

    def flusher(self, size_bytes):
        """Nothing."""
        return lambda: None

    def synchronize(self):
        """At once."""

    def is_usable(self):
        """Unless a test says otherwise."""
        return self.usable


def bench(monkeypatch, seconds=1e-6, **asked):
    """A bench whose launches really run, once each, and took so many seconds."""

    def time(self, shape, launches, effort):
        for launch in launches:
            launch()
        return seconds

    monkeypatch.setattr(Bench, "_time", time)
    return Bench(HostDevice(), Asked(**asked))


@pytest.mark.parametrize(
    ("asked", "accumulation", "out"),
    [
        (Asked("bf16", "torch", "mamf"), "", "bf16"),
        (Asked("fp16", "triton"), "", "fp16"),
        (Asked("fp8_e4m3", "torch"), "fast", "bf16"),
        (Asked("fp8_e4m3", "triton", "mamf"), "fast", "bf16"),
        (Asked("fp8_e4m3", "torch", "mamf"), "slow", "fp8_e4m3"),
    ],
)
def test_sums_and_result_are_those_of_the_protocol(asked, accumulation, out):
    assert (asked.accumulation, asked.out) == (accumulation, out)


def test_what_is_asked_comes_as_json_and_what_is_unknown_is_named():
    told = {"dtype": "fp16", "impl": "triton", "protocol": "mamf", "seconds": 30.0, "began_s": 1.5, "gpu": 1}
    assert read_asked(json.dumps(told)) == Asked(**told)
    with pytest.raises(HarnessError, match=r"dtype is 'int4'. Choose from bf16, fp16, fp8_e4m3."):
        read_asked('{"dtype": "int4"}')


@pytest.mark.parametrize("dtype", ["bf16", "fp16", "fp8_e4m3"])
@pytest.mark.parametrize("protocol", ["ours", "mamf"])
def test_a_right_shape_has_a_rate(monkeypatch, dtype, protocol):
    measuring = bench(monkeypatch, dtype=dtype, protocol=protocol)
    assert measuring.measure(SHAPE, "scout") == SHAPE.flop / 1e-6
    assert measuring.wrong == []


def test_a_shape_is_checked_once_and_before_it_is_timed(monkeypatch):
    story = []
    measuring = bench(monkeypatch)
    monkeypatch.setattr(module, "wrong_about", lambda *_: story.append("check") or "")
    monkeypatch.setattr(Bench, "_time", lambda *_: story.append("time") or 1.0)
    measuring.measure(SHAPE, "scout")
    measuring.measure(SHAPE, "final")
    assert story == ["check", "time", "time"]


def test_a_wrong_result_is_never_timed_and_is_told(monkeypatch):
    measuring = bench(monkeypatch)
    plan = measuring._plan
    measuring._plan = lambda a, b, out: plan(a, b.neg(), out)
    monkeypatch.setattr(Bench, "_time", None)
    with pytest.raises(RefusedError, match="SQNR against float64 is -6"):
        measuring.measure(SHAPE, "scout")
    assert measuring.wrong == [f"{SHAPE}: SQNR against float64 is -6.0 dB, at least 50 dB is required"]


def test_the_best_shape_is_checked_again_on_fresh_data(monkeypatch):
    measuring = bench(monkeypatch)
    before = measuring._a[:64].clone()
    measuring.check_again(SHAPE)
    assert measuring.wrong == []
    assert not torch.equal(measuring._a[:64], before)
    kept = torch.zeros(SHAPE.m, SHAPE.n)
    measuring._plan = lambda a, b, out: lambda: out.copy_(kept)
    measuring.check_again(SHAPE)
    assert measuring.wrong == [f"{SHAPE}: SQNR against float64 is 0.0 dB, at least 50 dB is required"]


def test_an_element_that_was_not_written_is_found(monkeypatch):
    measuring = bench(monkeypatch, dtype="fp8_e4m3", protocol="mamf")
    measuring._plan = lambda a, b, out: lambda: out[:-1].view(torch.uint8).fill_(0x30)
    with pytest.raises(RefusedError, match="32 elements are not finite"):
        measuring.measure(SHAPE, "scout")


def test_what_does_not_run_here_is_refused_and_a_lost_device_is_not(monkeypatch):
    measuring = bench(monkeypatch)

    def fail(*_):
        raise RuntimeError("out of resource: shared memory")

    measuring._plan = fail
    with pytest.raises(RefusedError, match="shared memory"):
        measuring.measure(SHAPE, "scout")
    assert measuring.wrong == []
    measuring._device.usable = False
    with pytest.raises(RuntimeError, match="shared memory"):
        measuring.measure(SHAPE, "scout")


def test_two_sets_must_fit_into_the_pools(monkeypatch):
    measuring = bench(monkeypatch)
    # An eighth of a MiB: 65536 numbers of bf16.
    assert measuring.is_possible(Shape(128, 256, 128))
    assert not measuring.is_possible(Shape(128, 256, 256))
    assert not measuring.is_possible(Shape(512, 128, 16))


def test_launches_rotate_through_sets_that_do_not_overlap(monkeypatch):
    measuring = bench(monkeypatch)
    measuring._out.zero_()
    for launch in measuring._launches_of(SHAPE):
        launch()
    sets = len(measuring._out) // (SHAPE.m * SHAPE.n)
    count = len(measuring._launches_of(SHAPE))
    assert 2 <= count <= sets
    written = measuring._out.view(-1, SHAPE.m * SHAPE.n)[:count]
    assert bool((written != 0).any(dim=1).all())
    assert len({tuple(row[:8].tolist()) for row in written}) == count
    assert not measuring._out[count * SHAPE.m * SHAPE.n :].any()


def test_results_beyond_fp8_are_compared_with_its_largest():
    a, b = (torch.full((32, 64), 8.0).to(torch.float8_e4m3fn) for _ in range(2))
    out = torch.full((32, 32), 448.0).to(torch.float8_e4m3fn)
    # Without the clamp the product is 4096. A right result without any error has no noise at all.
    assert wrong_about(a, b, out, 28.0) == ""


def test_a_missing_checkout_is_said(monkeypatch):
    def lack(name):
        raise ModuleNotFoundError(name="kernels")

    monkeypatch.setattr(module.importlib, "import_module", lack)
    with pytest.raises(HarnessError, match="come with a checkout"):
        plan_of(Asked())


def test_without_a_gpu_nothing_is_searched(monkeypatch):
    monkeypatch.setattr(module, "discover", lambda index: object())
    with pytest.raises(HarnessError, match="no NVIDIA GPU here") as told:
        module.peak(Asked())
    assert told.value.exit_code == ExitCode.INCONCLUSIVE
