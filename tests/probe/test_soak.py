"""A soak from its first launch to its last, for minutes and for hours, on a clock of its own."""

import math
from dataclasses import replace
from fractions import Fraction

import pytest

from harness import store
from harness.cautions import warnings_of
from harness.model import PeakSheet
from harness.probe.load import Group
from harness.probe.measure import SOAK_REST_S, CheckFailedError, Protocol, Subject, measure_case, protocol_for
from harness.probe.soak import Pools, part_seconds, time_soak
from tests import hand_made
from tests.doubles import ScriptedChecker
from tests.soaks import IDLE, Moment, SoakedDevice, soak_case, soak_record, warming

HALF_A_DAY_S = 43200


def soaked(device, window_s=240.0, tell=lambda *_: None):
    protocol = Protocol(window_s, settle_s=0.0, settle_cap_s=0.0, preheat_cap_s=0.0, rest_s=30.0, is_cold=True)
    return time_soak(device, lambda _: None, protocol, tell)


def named(metrics):
    return {metric.name: metric for metric in metrics}


def test_protocol_of_a_soak_is_its_own_seconds_from_cold():
    assert protocol_for(soak_case(seconds=240), "soak", is_cpu=False) == Protocol(
        240.0, settle_s=0.0, settle_cap_s=0.0, preheat_cap_s=0.0, rest_s=SOAK_REST_S, is_cold=True
    )
    assert protocol_for(soak_case(seconds="0.3"), "soak", is_cpu=True) == Protocol(
        0.3, settle_s=0.0, settle_cap_s=0.0, preheat_cap_s=0.0
    )


def test_four_minutes_are_120_parts_of_two_seconds_that_cover_all_of_them():
    device = SoakedDevice()
    samples, telemetry, metrics = soaked(device)
    (load,) = device.loads
    assert (load.marked, load.cuts, load.finished) == (1, 120, 1)
    assert samples.window_s == pytest.approx(240.0)
    assert len(samples.seconds) <= 200
    assert samples.seconds == pytest.approx([1e-3] * len(samples.seconds))
    assert telemetry.timeline["time_s"] == pytest.approx([2.0 * n for n in range(1, 121)])
    assert telemetry.busy_ratio == pytest.approx(1.0)
    assert (telemetry.settled, telemetry.settle_s) == (None, 0.0)
    assert named(metrics)["first_throttle"].reason == "never in 240 s"


def test_warming_up_is_in_the_window():
    _, telemetry, metrics = soaked(SoakedDevice(warming))
    assert (telemetry.temperature_start_c, telemetry.temperature_end_c) == (38, 66)
    assert named(metrics)["temperature_max"].value == 85
    assert named(metrics)["first_throttle"].label == "thermal_sw, between 200.0 and 202.2 s"
    assert telemetry.limited_by == "thermal"


def test_twelve_hours_leave_a_file_no_larger_than_minutes_do():
    run = hand_made.gpu_run()
    record = soak_record(soak_case(seconds=HALF_A_DAY_S), lambda _: Moment(1e-2), run.device, run.sheet)
    columns = record.telemetry.timeline
    assert {len(column) for column in columns.values()} == {240}
    assert columns["time_s"][-1] == pytest.approx(HALF_A_DAY_S, abs=1.5)
    assert 100 <= len(record.samples.seconds) <= 200
    assert record.samples.window_s == pytest.approx(HALF_A_DAY_S, rel=0.01)
    assert record.metric("drift_per_minute").label == "from 60 to 43201 s"
    assert len(str(store.compose(hand_made.gpu_run(record)))) < 60_000
    assert warnings_of(record.case, record.samples, record.telemetry, PeakSheet(None, "none"), record.metrics) == ()


def test_blink_of_a_throttle_in_twelve_hours_is_not_lost():
    def script(at_s):
        return Moment(1e-2, throttle=IDLE | {"thermal_hw": 0.001} if 30000 <= at_s < 30001 else IDLE)

    _, telemetry, metrics = soaked(SoakedDevice(script), HALF_A_DAY_S)
    assert named(metrics)["first_throttle"].label == "thermal_hw, between 30000.0 and 30012.0 s"
    assert [ratio > 0 for ratio in telemetry.timeline["throttle_ratio"]].count(True) == 1


def test_memory_does_not_grow_with_the_hours():
    pools = Pools()
    for number in range(100_000):
        pools.add([Group(1e-3, 1, float(number))])
        assert len(pools.pools) < 400
    assert len({pool.launches for pool in pools.pools}) == 1
    assert sum(pool.launches for pool in pools.pools) > 99_000
    assert pools.pools[-1].ended_s > 99_000


def test_pools_keep_that_the_queue_ran_dry():
    pools = Pools()
    pools.add([Group(1.0, 1, float(n), starved=n == 3) for n in range(800)])
    assert [pool.starved for pool in pools.pools].index(True) == 0
    assert [pool.starved for pool in pools.pools].count(True) == 1


@pytest.mark.parametrize(
    ("window_s", "part_s"), [(240.0, 2.0), (0.3, 0.015), (3.0, 0.15), (7201.0, 7201 / 3600), (43200.0, 12.0)]
)
def test_parts_are_two_seconds_and_neither_few_nor_many(window_s, part_s):
    assert part_seconds(window_s) == pytest.approx(part_s)


def test_launches_longer_than_a_part_make_longer_parts():
    device = SoakedDevice(lambda _: Moment(launch_s=5.0))
    samples, telemetry, _ = soaked(device, 60.0)
    assert telemetry.timeline["time_s"] == tuple(5.0 * n for n in range(1, 13))
    assert samples.seconds == (5.0,) * 12


def test_card_that_slows_down_tenfold_is_told_in_the_same_time():
    device = SoakedDevice(lambda at_s: Moment(launch_s=1e-3 if at_s < 120 else 1e-2))
    samples, telemetry, metrics = soaked(device)
    assert telemetry.timeline["time_s"][-1] == pytest.approx(240.0, abs=2.0)
    assert samples.window_s == pytest.approx(240.0, rel=0.02)
    assert named(metrics)["rate_end_ratio"].value == pytest.approx(0.1)


def test_how_far_it_has_come_is_told_every_ten_seconds():
    told = []
    soaked(SoakedDevice(), 64.0, lambda elapsed_s, load_s, telemetry: told.append((elapsed_s, load_s, telemetry)))
    assert [elapsed_s for elapsed_s, *_ in told] == pytest.approx([2, 12, 22, 32, 42, 52, 62])
    assert {load_s for _, load_s, _ in told} == {64.0}
    assert told[-1][2].temperature_end_c == 50.0


def test_load_is_ended_when_a_launch_fails():
    device = SoakedDevice()
    count = iter(range(100))

    def launch(_):
        if next(count) == 99:
            raise RuntimeError("CUDA error: an illegal memory access was encountered")

    with pytest.raises(RuntimeError, match="illegal memory access"):
        time_soak(device, launch, Protocol(240.0, 0.0, 0.0, 0.0), lambda *_: None)
    assert device.loads[0].finished == 1


def test_lost_gpu_leaves_rates_and_what_was_known_before():
    def script(at_s):
        gone = dict.fromkeys(
            ("power_w", "power_instant_w", "nvml_sm_clock_mhz", "temperature_start_c", "throttle_ratio"), "GPU is lost"
        )
        return Moment() if at_s < 60 else Moment(missing=gone, memory_temperature_c=None)

    samples, telemetry, metrics = soaked(SoakedDevice(script))
    assert samples.window_s == pytest.approx(240.0)
    assert telemetry.power_w is None
    assert telemetry.missing["power_w"] == "known for 60 of 240 s: GPU is lost"
    assert telemetry.sm_clock_mhz == pytest.approx(1500.0)
    assert (telemetry.temperature_start_c, telemetry.temperature_end_c) == (50.0, None)
    assert named(metrics)["first_throttle"].reason == "not seen, which is not never: GPU is lost"
    assert telemetry.timeline["power_w"].index(None) == 30


def test_time_that_is_no_time_is_refused():
    device = SoakedDevice(lambda at_s: Moment(launch_s=1e-3 if at_s < 0.1 else math.nan))
    with pytest.raises(CheckFailedError, match="1 of 6 samples are not positive numbers"):
        soaked(device, 0.3)
    assert device.loads[0].finished == 1


def test_case_is_checked_before_and_after_its_soak():
    case = replace(soak_case(seconds="0.3"), deterministic=True)
    source, out = [0.0], [0.0]

    def copy(_):
        out[0] = source[0]
        return 1e-3

    subject = Subject(copy, [source], [out], lambda i: [(out[0], source[0])], exact=True)
    told = []
    measured = measure_case(
        case,
        subject,
        SoakedDevice(),
        ScriptedChecker(),
        protocol_for(case, "soak", is_cpu=True),
        Fraction(0),
        tell=lambda *come: told.append(come),
    )
    assert [check.when for check in measured.checks] == ["before", "after", "repeat"]
    assert measured.samples.window_s == pytest.approx(0.3, abs=0.02)
    assert "drift_per_minute" in named(measured.metrics)
    assert told
