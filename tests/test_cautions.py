"""What a reader is warned of: figures that cannot be, windows that moved, readings that disagree."""

from dataclasses import replace

import pytest

from harness.model import Case, Samples, Telemetry, Work
from tests.hand_made_cases import COPY, GEMM, LOADED, metrics_of, warnings


def test_a_good_measurement_has_no_warnings():
    assert warnings(COPY) == ()
    assert warnings(GEMM) == ()


def test_more_than_the_sms_can_do_is_implausible():
    slower = Telemetry(settled=True, sm_clock_mhz=1.19)
    assert warnings(GEMM, telemetry=slower) == (
        "implausible: 100.8 % of what the SMs can do in the counted cycles, above 100.5 %. "
        "Time, clock or work is wrong: do not use this figure.",
    )
    assert warnings(GEMM, telemetry=Telemetry(sm_clock_mhz=1.195)) == ()


def test_more_than_the_memorys_peak_is_implausible():
    case = Case("copy", {}, (Work(2200.0, "B", "memory", "read + write"),), footprint_bytes=10_000)
    assert warnings(case) == (
        "implausible: 1.100 kB/s over memory whose peak is 1.000 kB/s. "
        "Time, byte count, caching or the peak is wrong: do not use this figure.",
    )


def test_a_clock_above_the_data_sheets_is_not_implausible():
    faster = Samples((1.0,) * 4, 1, 4.0, "events", "stream")
    assert metrics_of(GEMM, faster, Telemetry(sm_clock_mhz=2.5))["spec_ratio"].value == 1.2
    assert warnings(GEMM, faster, Telemetry(sm_clock_mhz=2.5)) == ()


def test_unsettled_and_starved_windows_are_warned_of():
    samples = Samples((2.0,) * 50, 1, 100.0, "events", "stream", starved=3)
    assert warnings(COPY, samples, Telemetry(settled=False, settle_s=15.0)) == (
        "unsettled: power or clock still moved by 0.2 %/s or more after 15.0 s. "
        "Compare temperature_start_c and temperature_end_c, or pre-heat longer.",
        "starved: the launch queue had run dry before 3 of 50 groups, so host time may be in them. "
        "Free the host's cores or launch through a graph.",
    )


def checked(power_w, ratio, counter_w=600.0):
    return replace(LOADED, power_w=power_w, power_counter_w=counter_w, energy_check_ratio=ratio)


@pytest.mark.parametrize("ratio", [None, 0.0, 0.03, -0.03])
def test_sources_of_power_that_agree_are_no_warning(ratio):
    assert warnings(COPY, telemetry=checked(600.0, ratio)) == ()


@pytest.mark.parametrize(("ratio", "told"), [(0.04, "4.0 % more"), (-0.04, "4.0 % less"), (-0.07, "7.0 % less")])
def test_sources_of_power_that_differ_by_more_than_three_percent_are_warned_of(ratio, told):
    assert warnings(COPY, telemetry=checked(600.0, ratio)) == (
        f"energy check: the counter says 600.0 W, {told} than another source. Compare joules with care.",
    )


def test_power_that_was_withheld_is_warned_of_with_where_to_look():
    telemetry = replace(checked(None, 0.25), missing={"power_w": "they contradict each other"})
    assert warnings(COPY, telemetry=telemetry) == (
        "energy check: the counter says 600.0 W, 25.0 % more than another source: no power and no energy are given. "
        "Look at power_instant_w and power_samples_w.",
    )


def spread(slowest_mhz, fastest_mhz):
    return replace(LOADED, sm_clock_slowest_mhz=slowest_mhz, sm_clock_fastest_mhz=fastest_mhz)


def test_sms_that_do_not_share_one_clock_are_warned_of():
    assert warnings(COPY, telemetry=spread(1000.0, 1100.0)) == (
        "true clock: the SMs ran at 1000 to 1100 MHz, 10.0 % apart. Shares at clock are of their mean.",
    )


@pytest.mark.parametrize(("slowest_mhz", "fastest_mhz"), [(1000.0, 1010.0), (None, 1100.0), (1000.0, None)])
def test_sms_within_one_percent_or_unknown_are_no_warning(slowest_mhz, fastest_mhz):
    assert warnings(COPY, telemetry=spread(slowest_mhz, fastest_mhz)) == ()


def test_unknown_settling_is_no_warning():
    assert warnings(COPY, telemetry=Telemetry(settled=None)) == ()


def test_a_recalled_peak_is_warned_of():
    case = Case("gemm", {"dtype": "fp8"}, (Work(480e9, "FLOP", "fp8", "2mnk"),))
    assert warnings(case) == (
        "unverified peak: 'fp8' of 'Test', 800.0 GFLOP/s, was recalled and read nowhere. "
        "Check it against the data sheet and correct harness/specs.toml.",
    )


@pytest.mark.parametrize(
    ("true_mhz", "told"),
    [
        (1410.0, ()),
        (1400.0, ()),
        (
            1343.0,
            (
                "declared clock: the SMs ran at 1343 MHz, 1410 MHz were declared. "
                "Look at what limits it, or declare what is set.",
            ),
        ),
        (None, ("declared clock: 1410 MHz were declared and not verified: the true clock was not measured.",)),
    ],
)
def test_a_declared_clock_is_verified_by_the_true_one(true_mhz, told):
    case = replace(COPY, params={**COPY.params, "clocks": "locked-1410"})
    assert warnings(case, telemetry=Telemetry(sm_clock_mhz=true_mhz)) == told
