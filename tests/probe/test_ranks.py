"""What several ranks measured, as one measurement: without processes and without torch."""

import dataclasses
from fractions import Fraction
from typing import ClassVar

import pytest

from harness.model import Case, Telemetry, Work
from harness.probe.load import Pace
from harness.probe.measure import SMOKE, CheckFailedError
from harness.probe.ranks import measure_on_ranks, merge_telemetry, slowest, slowest_parts

RANK = Telemetry(
    busy_ratio=0.99,
    sm_clock_mhz=1500.0,
    power_w=300.0,
    power_method="energy counter, line through 20 ticks",
    power_error_w=3.0,
    power_counter_w=300.0,
    power_instant_w=306.0,
    power_samples_w=303.0,
    energy_check_ratio=-0.02,
    temperature_end_c=50,
)
OTHER = dataclasses.replace(RANK, power_w=200.0, power_error_w=4.0, energy_check_ratio=0.01, sm_clock_mhz=1400.0)


def test_watts_of_all_ranks_add_up_whichever_source_they_come_from():
    told = merge_telemetry([RANK, OTHER])
    assert (told.power_w, told.power_counter_w, told.power_instant_w, told.power_samples_w) == (500, 600, 612, 606)
    assert told.power_method == "energy counter, line through 20 ticks; sum of 2 GPUs"
    assert told.power_error_w == 5.0


def test_lowest_clock_and_emptiest_window_of_all_count():
    told = merge_telemetry([RANK, dataclasses.replace(OTHER, busy_ratio=0.9)])
    assert (told.sm_clock_mhz, told.busy_ratio) == (1400.0, 0.9)


def test_clocks_are_all_of_the_rank_whose_true_clock_is_lowest():
    """Rank 0's NVML clock stood over another rank's true one: NVML seemed to read 14 % high where it read right."""
    fast = dataclasses.replace(RANK, nvml_sm_clock_mhz=1500.0, sm_clock_slowest_mhz=1495.0, sm_clock_fastest_mhz=1505.0)
    slow = dataclasses.replace(
        OTHER, nvml_sm_clock_mhz=1400.0, sm_clock_slowest_mhz=1390.0, sm_clock_fastest_mhz=1410.0, sms_covered=132
    )
    for ranks in ([fast, slow], [slow, fast]):
        told = merge_telemetry(ranks)
        assert (told.sm_clock_mhz, told.nvml_sm_clock_mhz, told.sms_covered) == (1400.0, 1400.0, 132)
        assert (told.sm_clock_slowest_mhz, told.sm_clock_fastest_mhz) == (1390.0, 1410.0)


@pytest.mark.parametrize(
    ("limits", "expected"),
    [
        (("none", "thermal"), "thermal"),
        (("thermal", "none"), "thermal"),
        (("power", "brake"), "brake"),
        (("power", "thermal"), "thermal"),
        (("none", "unknown"), "unknown"),
        (("power", "unknown"), "power"),
        (("none", "none"), "none"),
        (("power model", "power"), "power"),
        (("none", "user's clock"), "user's clock"),
    ],
)
def test_what_limits_any_rank_limits_all(limits, expected):
    """A card that was hot held up every collective, and the record said that nothing did: a gate kept such runs."""
    ranks = [dataclasses.replace(RANK, limited_by=limit) for limit in limits]
    assert merge_telemetry(ranks).limited_by == expected


def test_throttling_is_that_of_the_rank_that_was_throttled_most():
    shares = (
        ({"thermal_hw": 0.0, "power_cap": 0.3}, {"power_cap": 0.4}),
        ({"thermal_hw": 0.5, "power_cap": 0.1}, {"thermal_hw": 0.6}),
    )
    cool, hot = (dataclasses.replace(RANK, throttle_ratio=counted, event_ratio=seen) for counted, seen in shares)
    told = merge_telemetry([cool, hot])
    assert told.throttle_ratio == {"thermal_hw": 0.5, "power_cap": 0.3}
    assert told.event_ratio == {"power_cap": 0.4, "thermal_hw": 0.6}


def test_rank_whose_counters_do_not_answer_leaves_its_reason():
    mute = dataclasses.replace(OTHER, missing={"throttle_ratio": "power_cap: Not Supported"})
    assert merge_telemetry([RANK, mute]).missing["throttle_ratio"] == "power_cap: Not Supported"


def test_check_is_that_of_the_rank_whose_sources_are_farthest_apart():
    assert merge_telemetry([RANK, OTHER]).energy_check_ratio == -0.02
    assert merge_telemetry([dataclasses.replace(RANK, energy_check_ratio=None), OTHER]).energy_check_ratio == 0.01


def test_power_that_one_rank_does_not_know_is_unknown_for_all_with_its_reason():
    """The method of the first rank stood beside a power that nobody knew."""
    lost = dataclasses.replace(OTHER, power_w=None, power_error_w=None, missing={"power_w": "GPU is lost"})
    told = merge_telemetry([RANK, lost])
    assert (told.power_w, told.power_error_w, told.power_method) == (None, None, "")
    assert told.missing["power_w"] == "GPU is lost"
    assert told.power_counter_w == 600.0


def test_clock_that_one_rank_does_not_know_is_unknown_for_all_with_its_reason():
    blind = dataclasses.replace(OTHER, sm_clock_mhz=None, missing={"sm_clock_mhz": "stamps came from 1 of 132 SMs"})
    told = merge_telemetry([RANK, blind])
    assert (told.sm_clock_mhz, told.missing["sm_clock_mhz"]) == (None, "stamps came from 1 of 132 SMs")


def test_what_only_rank_0_tells_is_not_missing_where_another_rank_lacks_it():
    """A temperature known and another rank's reason for not knowing its own stood side by side."""
    cold = dataclasses.replace(OTHER, temperature_end_c=None, missing={"temperature_end_c": "Not Supported"})
    told = merge_telemetry([RANK, cold])
    assert told.temperature_end_c == 50
    assert "temperature_end_c" not in told.missing
    assert "temperature_end_c" in merge_telemetry([cold, RANK]).missing


def test_limit_rest_and_settling_of_several_gpus_are_unknown_with_reasons():
    told = merge_telemetry([dataclasses.replace(RANK, power_limit_w=700.0, idle_power_w=80.0), OTHER])
    assert (told.power_limit_w, told.idle_power_w, told.settled) == (None, None, None)
    assert told.missing == {
        "power_limit_w": "the power is that of several GPUs together",
        "idle_power_w": "the power of several GPUs at rest was not measured",
        "settled": "not judged between ranks: a fixed load precedes the window",
    }


def test_group_is_over_when_its_slowest_rank_is_done():
    samples = slowest([[2.0, 4.0], [3.0, 1.0]], Pace("stream", 10, 0.2), "cuda_event")
    assert samples.seconds == (0.3, 0.4)
    assert (samples.window_s, samples.launches) == (7.0, 20)
    assert samples.rank_seconds == (0.3, 0.2)


def test_rank_whose_group_took_no_time_is_refused():
    with pytest.raises(CheckFailedError, match="samples are not positive numbers"):
        slowest([[0.0, 4.0], [0.0, 1.0]], Pace("stream", 10, 0.2), "cuda_event")


def test_part_is_the_slowest_ranks_in_each_group():
    ranks = [{"gemm": [1.0, 4.0], "collective": [1.0, 1.0]}, {"gemm": [2.0, 3.0], "collective": [1.0, 5.0]}]
    assert slowest_parts(ranks) == {"gemm": (2.0, 4.0), "collective": (1.0, 5.0)}


def test_parts_are_kept_as_means_over_at_most_20_equal_stretches():
    groups = [float(n) for n in range(43)]
    kept = slowest_parts([{"gemm": groups}, {"gemm": groups}])["gemm"]
    assert kept == tuple(3.0 * n + 1 for n in range(14))
    assert len(slowest_parts([{"gemm": [1.0] * 200}])["gemm"]) == 20


def test_part_that_one_rank_does_not_know_is_unknown():
    assert slowest_parts([{"gemm": [1.0]}, {}]) == {}
    assert slowest_parts([{}, {"gemm": [1.0]}]) == {}


def test_ranks_are_told_what_to_do_beyond_what_is_counted():
    class FakeWorld:
        """Two ranks that remember what they were asked."""

        is_on_cpu = True
        asked: ClassVar = []

        def ask(self, command, *arguments, **_):
            """The same from both."""
            self.asked.append((command, arguments))
            ran = {"seconds": [0.01] * 4, "starved": 0, "timer": "perf_counter"}
            ran |= {"telemetry": Telemetry(), "host_s": None, "parts": {}}
            return {"check": [0, 0], "most_launches": [10, 10], "probe": [(0.003, 0.003)] * 2, "run": [ran, ran]}.get(
                command, [None, None]
            )

    case = Case("all_reduce", {"ranks": 2}, (Work(1.0, "B", None, "bus"),))
    measure_on_ranks(case, FakeWorld(), "body", {}, SMOKE, Fraction(3, 100))
    (arguments,) = [arguments for command, arguments in FakeWorld.asked if command == "run"]
    assert arguments[-1] == Fraction(3, 100)
