"""Two implementations in turn, on a device that tells its times."""

import dataclasses

import pytest

from harness.model import Case, Telemetry, Work
from harness.probe.measure import SMOKE, CheckFailedError, Subject, measure_case
from harness.probe.rivals import LONG, SHORT_PAIRS, orders_of, time_blocks
from harness.rivals import AGAINST, THIS
from tests.doubles import ScriptedChecker, ScriptedDevice

FLOP = Work(1e12, "FLOP", None, "2·m·n·k", no_peak="scripted")


def case(protocol):
    return Case("gemm", {"against": "torch", "protocol": protocol}, (FLOP,))


class PacingDevice(ScriptedDevice):
    """Keeps the pace that each load was given."""

    def __init__(self):
        super().__init__()
        self.paces = []

    def start(self, launch, group_s, pace=None, prologue=None, rest_s=0.0):
        """A load as the script has it."""
        self.paces.append(pace)
        return super().start(launch, group_s, pace, prologue, rest_s)


def measured(protocol, this_s=0.001, against_s=0.00102, wrong="", device=None):
    """Both write what they read; `wrong` is the one that writes something else."""
    source, ours, theirs = [0.0], [0.0], [0.0]

    def this(_):
        ours[0] = source[0] + (wrong == "this")
        return this_s

    def against(_):
        theirs[0] = source[0] + (wrong == "against")
        return against_s

    subject = Subject(
        this,
        [source],
        [ours, theirs],
        lambda i: [(ours[0], source[0]), (theirs[0], source[0])],
        exact=True,
        against=against,
    )
    return measure_case(case(protocol), subject, device or ScriptedDevice(), ScriptedChecker(), SMOKE)


def test_long_blocks_go_a_b_b_a_and_short_ones_so_often_that_there_are_pairs_enough():
    assert orders_of("abba") == (THIS, AGAINST, AGAINST, THIS)
    assert orders_of("short_blocks") == (THIS, AGAINST, AGAINST, THIS) * 6
    assert len(orders_of("short_blocks")) == 2 * SHORT_PAIRS
    with pytest.raises(ValueError, match="not by 'aabb'"):
        orders_of("aabb")


@pytest.mark.parametrize("protocol", ["abba", "short_blocks"])
def test_both_are_checked_and_timed_and_the_record_is_this_sides(protocol):
    told = measured(protocol)
    assert [check.passed for check in told.checks] == [True, True]
    assert told.samples.seconds_per_launch == pytest.approx(0.001)
    ratios = {metric.name: metric.value for metric in told.metrics}
    assert ratios["cycle_ratio"] == pytest.approx(1.02)
    assert ratios["rate_ratio"] == (pytest.approx(1.02) if protocol == "abba" else None)


def test_a_mig_instances_watts_are_not_its_own():
    device = ScriptedDevice()
    device.facts = dataclasses.replace(device.facts, mig=True)
    ratios = {metric.name: metric.reason for metric in measured("abba", device=device).metrics}
    assert "of which this is a MIG instance" in ratios["energy_ratio"]


@pytest.mark.parametrize("wrong", ["this", "against"])
def test_if_either_is_wrong_neither_is_timed(wrong):
    device = ScriptedDevice()
    device.start = None
    with pytest.raises(CheckFailedError, match="wrong result before timing"):
        measured("abba", wrong=wrong, device=device)


def test_long_blocks_drop_two_seconds_and_keep_three():
    device = ScriptedDevice()
    began_s = device.now_s
    blocks = time_blocks(device, lambda i: 0.001, lambda i: 0.001, "abba")
    assert [block.side for block in blocks] == [THIS, AGAINST, AGAINST, THIS]
    assert all(3.2 <= block.samples.window_s <= 3.25 for block in blocks)
    assert (device.now_s - began_s) / 4 == pytest.approx(5.2, abs=0.1)
    assert LONG.settle_s + LONG.window_s >= 5.0


def test_short_blocks_drop_their_beginning_too():
    device = ScriptedDevice()
    began_s = device.now_s
    blocks = time_blocks(device, lambda i: 0.0005, lambda i: 0.0005, "short_blocks")
    assert len(blocks) == 24
    assert all(0.1 <= block.samples.window_s <= 0.12 for block in blocks)
    assert (device.now_s - began_s) / 24 == pytest.approx(0.16, abs=0.02)


def test_a_side_keeps_the_pace_of_its_first_block():
    device = PacingDevice()
    time_blocks(device, lambda i: 0.001, lambda i: 0.001, "abba")
    assert device.paces[:2] == [None, None]
    assert all(pace is not None for pace in device.paces[2:])


def test_a_launch_that_fails_leaves_no_load_watched(monkeypatch):
    finished = []
    monkeypatch.setattr("tests.doubles.ScriptedLoad.finish", lambda self: finished.append(1) or Telemetry())

    def fail(_):
        raise RuntimeError("an illegal memory access")

    with pytest.raises(RuntimeError, match="illegal"):
        time_blocks(ScriptedDevice(), fail, fail, "abba")
    assert finished == [1]
