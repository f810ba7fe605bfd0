"""Figures derived from samples and telemetry, with values that can be checked in the head."""

from dataclasses import replace

import pytest

from harness.metrics import BUSY_LEAST_RATIO, limiting_factor
from harness.model import Case, DeviceFacts, Samples, Telemetry, Work
from harness.specs import lookup
from tests.hand_made_cases import (
    COPY,
    GEMM,
    GPU,
    LOADED,
    NO_SHEET,
    ONE_WAY,
    READ_WRITE,
    SAMPLES,
    SHEET,
    SKINNY,
    metrics_of,
)


def test_rate_is_the_headline_over_the_mean_time():
    rate = metrics_of(COPY)["rate"]
    assert (rate.value, rate.unit, rate.better, rate.label) == (800.0, "B/s", "higher", "read + write")
    assert (rate.low, rate.high) == (800.0, 800.0)


def test_further_works_are_rates_named_after_their_label():
    one_way = metrics_of(COPY)["rate.one_way"]
    assert (one_way.value, one_way.label) == (400.0, "one way")


def test_works_of_one_label_or_none_keep_apart():
    works = (READ_WRITE, ONE_WAY, ONE_WAY, Work(2.0, "B", None, ""))
    names = [name for name in metrics_of(Case("x", {}, works)) if name.startswith("rate")]
    assert names == ["rate", "rate.one_way", "rate.one_way_3", "rate.4"]


def test_time_is_total_time_over_total_launches():
    samples = Samples((1.0, 3.0), 10, 40.0, "events", "stream")
    metrics = metrics_of(COPY, samples)
    assert (metrics["time"].value, metrics["time"].unit, metrics["time"].better) == (2.0, "s", "lower")
    assert (metrics["time"].low, metrics["time"].high) == (None, None)
    assert metrics["time_p50"].value == 2.0
    assert metrics["time_p50"].label == "of means of 10 launches"


def test_p99_needs_a_hundred_samples():
    metric = metrics_of(COPY)["time_p99"]
    assert (metric.value, metric.reason) == (None, "4 samples; 100 are needed for a 99th percentile")
    hundred = Samples((1.0,) * 99 + (2.0,), 1, 101.0, "events", "blocked")
    assert metrics_of(COPY, hundred)["time_p99"].value == pytest.approx(1.01)


def test_percentiles_say_over_how_many_single_calls_they_are():
    calls = Samples((1.0,) * 200, 1, 200.0, "perf_counter", "host", shots=2000, slowest_s=9.0)
    told = metrics_of(COPY, calls)
    assert (told["time_p50"].label, told["time_p99"].label) == ("of 2000 calls", "of 2000 calls")
    # The kept ones are those of ranks 5, 15, ... 1995; the 99th percentile lies at rank 1979.01.
    climbing = replace(calls, seconds=tuple(5.0 + 10 * k for k in range(200)))
    assert metrics_of(COPY, climbing)["time_p99"].value == pytest.approx(1979.01)
    nodes = replace(calls, launches_per_sample=100)
    assert metrics_of(COPY, nodes)["time_p99"].label == "of 2000 calls for 100 each"


def test_spec_ratio_of_a_copy_is_its_share_of_the_memorys_peak():
    ratio = metrics_of(COPY)["spec_ratio"]
    assert (ratio.value, ratio.low, ratio.high, ratio.label) == (0.8, 0.8, 0.8, "memory")


def test_compute_binds_a_large_gemm():
    metrics = metrics_of(GEMM)
    assert (metrics["spec_ratio"].value, metrics["spec_ratio"].label) == (0.6, "bf16")
    # 240 GFLOP/s of 100 SMs x 2000 FLOP x 1.5 MHz = 300
    assert metrics["at_clock_ratio"].value == pytest.approx(0.8)
    assert metrics["clock_ratio"].value == 0.75


def test_memory_binds_a_skinny_gemm_and_its_bytes_are_counted():
    metrics = metrics_of(SKINNY)
    assert (metrics["spec_ratio"].value, metrics["spec_ratio"].label) == (0.8, "memory")
    assert metrics["at_clock_ratio"].reason == "bound by memory, not by compute"
    assert metrics["clock_ratio"].reason == "bound by memory, not by compute"
    assert metrics["rate"].unit == "FLOP/s"


def test_spec_ratio_is_at_clock_ratio_times_clock_ratio():
    facts = DeviceFacts("cuda", "NVIDIA H200", "cuda:0", sm_count=132, memory_bytes=140 * 2**30, l2_bytes=60 * 2**20)
    for clock_mhz in (1343.0, 1588.0, 1979.123):
        telemetry = Telemetry(sm_clock_mhz=clock_mhz)
        case = Case("gemm", {"dtype": "bf16"}, (Work(2 * 8192**3, "FLOP", "bf16", "2mnk"),))
        samples = Samples((0.001634567,) * 5, 7, 0.001634567 * 35, "events", "stream")
        metrics = metrics_of(case, samples, telemetry, lookup(facts), facts)
        product = metrics["at_clock_ratio"].value * metrics["clock_ratio"].value
        assert metrics["spec_ratio"].value == pytest.approx(product, rel=1e-12)


def test_h200_gemm_gets_the_ratios_that_were_measured():
    """672 TFLOP/s at a true 1343 MHz were 68 % of the data sheet and 92.6 % of the rate at that clock."""
    facts = DeviceFacts("cuda", "NVIDIA H200", "cuda:0", sm_count=132, memory_bytes=140 * 2**30, l2_bytes=60 * 2**20)
    case = Case("gemm", {"dtype": "bf16"}, (Work(672e12, "FLOP", "bf16", "2mnk"),))
    samples = Samples((1.0,) * 4, 1, 4.0, "events", "stream")
    metrics = metrics_of(case, samples, Telemetry(sm_clock_mhz=1343.0), lookup(facts), facts)
    assert metrics["spec_ratio"].value == pytest.approx(0.679, abs=0.001)
    assert metrics["at_clock_ratio"].value == pytest.approx(0.926, abs=0.001)


def test_without_a_sheet_ratios_are_unknown_and_say_why():
    metrics = metrics_of(GEMM, sheet=NO_SHEET)
    for name in ("spec_ratio", "at_clock_ratio", "clock_ratio"):
        assert (metrics[name].value, metrics[name].reason) == (None, NO_SHEET.reason)
    assert metrics["rate"].value == 240e9


def test_no_share_of_memory_where_l2_could_serve_more_than_two_percent():
    half_in_l2 = Case("copy", {}, (READ_WRITE,), footprint_bytes=200)
    metrics = metrics_of(half_in_l2)
    assert metrics["l2_ratio"].value == 0.5
    assert metrics["spec_ratio"].value is None
    assert metrics["spec_ratio"].label == "memory"
    assert metrics["spec_ratio"].reason == (
        "L2 could serve 50.0 % of the traffic; above 2 % no share of the memory's peak is given"
    )
    at_the_limit = Case("copy", {}, (READ_WRITE,), footprint_bytes=5000)
    assert metrics_of(at_the_limit)["spec_ratio"].value == 0.8


def test_l2_ratio_never_exceeds_one_and_may_be_unknown():
    tiny = Case("copy", {}, (READ_WRITE,), footprint_bytes=10)
    assert metrics_of(tiny)["l2_ratio"].value == 1.0
    unknown_l2 = DeviceFacts("cuda", "NVIDIA Test", "cuda:0")
    assert metrics_of(COPY, facts=unknown_l2)["l2_ratio"].reason == "the L2 size of this device is unknown"
    undeclared = metrics_of(Case("copy", {}, (READ_WRITE,)))
    assert undeclared["l2_ratio"].value is None
    assert undeclared["spec_ratio"].reason.startswith("the case declares no footprint")


def test_l2_does_not_matter_where_compute_binds():
    assert metrics_of(GEMM)["l2_ratio"].value is None
    assert metrics_of(GEMM)["spec_ratio"].value == 0.6


def test_cycles_power_and_energy_belong_to_one_launch():
    metrics = metrics_of(GEMM)
    assert (metrics["cycles"].value, metrics["cycles"].better) == (3e6, "lower")
    assert (metrics["power"].value, metrics["power"].label) == (600.0, "counter")
    assert metrics["energy"].value == 1200.0
    assert (metrics["energy_per_work"].value, metrics["energy_per_work"].unit) == (2.5e-9, "J/FLOP")
    assert metrics["nvml_clock_ratio"].value == pytest.approx(1.1)


def test_energy_is_unknown_where_launches_fill_too_little_of_the_window():
    metrics = metrics_of(GEMM, telemetry=replace(LOADED, busy_ratio=0.84))
    reason = "launches fill only 84 % of the window in which power was read"
    for name in ("energy", "energy_per_work"):
        assert (metrics[name].value, metrics[name].reason) == (None, reason)
    assert metrics["power"].value == 600.0


@pytest.mark.parametrize("busy_ratio", [None, BUSY_LEAST_RATIO, 1.0])
def test_energy_is_known_where_launches_fill_the_window_or_nobody_watched_that(busy_ratio):
    assert metrics_of(GEMM, telemetry=replace(LOADED, busy_ratio=busy_ratio))["energy"].value == 1200.0


def test_an_unread_power_is_the_reason_before_an_idle_window():
    telemetry = Telemetry(busy_ratio=0.5, missing={"power_w": "NVML says not supported"})
    assert metrics_of(GEMM, telemetry=telemetry)["energy"].reason == "NVML says not supported"


def test_what_was_not_watched_is_unknown_with_the_telemetrys_reason():
    missing = {"power_w": "NVML says not supported", "sm_clock_mhz": "no Triton"}
    metrics = metrics_of(GEMM, telemetry=Telemetry(missing=missing))
    for name in ("power", "energy", "energy_per_work"):
        assert (metrics[name].value, metrics[name].reason) == (None, "NVML says not supported")
    for name in ("cycles", "at_clock_ratio", "clock_ratio", "nvml_clock_ratio"):
        assert (metrics[name].value, metrics[name].reason) == (None, "no Triton")
    assert metrics["spec_ratio"].value == 0.6


POWERED = replace(LOADED, power_error_w=6.0, idle_power_w=100.0)


def interval(metric):
    return (metric.low, metric.high)


def test_power_has_the_interval_of_its_source():
    power = metrics_of(GEMM, telemetry=POWERED)["power"]
    assert interval(power) == pytest.approx((600 - 1.96 * 6, 600 + 1.96 * 6))
    assert interval(metrics_of(GEMM)["power"]) == (None, None)


def test_energy_has_the_interval_of_the_power_where_every_launch_takes_equally_long():
    metrics = metrics_of(GEMM, telemetry=POWERED)
    # 1.96 x 6 of 600 W are 1.96 %.
    assert interval(metrics["energy"]) == pytest.approx((1200 * 0.9804, 1200 * 1.0196))
    assert interval(metrics["energy_per_work"]) == pytest.approx((2.5e-9 * 0.9804, 2.5e-9 * 1.0196))


def test_errors_of_power_and_time_add_as_squares():
    samples = Samples((1.0, 1.0, 3.0, 3.0), 1, 8.0, "events", "stream")
    time = metrics_of(GEMM, samples)["time"]
    of_time = (time.high - time.low) / 2 / 2.0
    energy = metrics_of(GEMM, samples, POWERED)["energy"]
    assert energy.high - 1200 == pytest.approx(1200 * (of_time**2 + 0.0196**2) ** 0.5)


@pytest.mark.parametrize(
    ("telemetry", "samples"), [(LOADED, SAMPLES), (POWERED, Samples((2.0,) * 3, 1, 6.0, "events", "stream"))]
)
def test_energy_has_no_interval_where_power_or_time_has_none(telemetry, samples):
    metrics = metrics_of(GEMM, samples, telemetry)
    assert metrics["energy"].value == 1200.0
    assert interval(metrics["energy"]) == interval(metrics["energy_per_work"]) == (None, None)


def test_whatever_a_boards_sensor_told_carries_its_five_percent():
    metrics = metrics_of(GEMM, telemetry=POWERED)
    told = {name for name, metric in metrics.items() if metric.systematic_ratio == 0.05}
    assert told == {"power", "energy", "energy_per_work", "energy_net", "energy_net_per_work"}
    assert {metric.systematic_ratio for name, metric in metrics.items() if name not in told} == {None}
    assert {metric.systematic_ratio for metric in metrics_of(GEMM, telemetry=Telemetry()).values()} == {None}


def test_net_energy_is_what_the_card_draws_beyond_its_rest():
    metrics = metrics_of(GEMM, telemetry=POWERED)
    assert (metrics["energy_net"].value, metrics["energy_net"].unit) == (1000.0, "J")
    assert metrics["energy_net_per_work"].value == pytest.approx(1000 / 480e9)
    # The same 11.76 W are more of 500 W than of 600.
    assert interval(metrics["energy_net"]) == pytest.approx((1000 - 23.52, 1000 + 23.52))


def test_net_energy_is_unknown_where_the_rest_was_not_measured():
    metrics = metrics_of(GEMM)
    assert (metrics["energy_net"].value, metrics["energy"].value) == (None, 1200.0)
    assert metrics["energy_net"].reason == "the card's power at rest was not measured"
    told = replace(LOADED, missing={"idle_power_w": "several GPUs"})
    assert metrics_of(GEMM, telemetry=told)["energy_net_per_work"].reason == "several GPUs"


def test_net_energy_needs_launches_that_fill_the_window_too():
    metrics = metrics_of(GEMM, telemetry=replace(POWERED, busy_ratio=0.5))
    assert metrics["energy_net"].reason == "launches fill only 50 % of the window in which power was read"


def test_case_without_work_has_energy_but_none_per_work():
    metrics = metrics_of(Case("ping", {}, (), kind="latency"), telemetry=POWERED)
    assert (metrics["energy"].value, metrics["energy_net"].value) == (1200.0, 1000.0)
    for name in ("energy_per_work", "energy_net_per_work"):
        assert metrics[name].reason == "a latency case declares no work"


def test_mig_instance_has_no_energy_of_its_own():
    """Watts are the whole card's: joules of a slice would be those of its neighbours too."""
    metrics = metrics_of(GEMM, telemetry=POWERED, facts=replace(GPU, mig=True))
    reason = "the power is that of the whole card, of which this is a MIG instance"
    for name in ("energy", "energy_per_work", "energy_net", "energy_net_per_work"):
        assert (metrics[name].value, metrics[name].reason) == (None, reason)
    assert metrics["power"].value == 600.0


def test_clock_of_some_of_the_sms_is_the_reason_for_what_needs_that_of_all():
    why = "stamps came from 130 of 132 SMs"
    metrics = metrics_of(GEMM, telemetry=replace(LOADED, sm_clock_mhz=None, missing={"sm_clock_mhz": why}))
    for name in ("cycles", "at_clock_ratio", "clock_ratio", "nvml_clock_ratio"):
        assert (metrics[name].value, metrics[name].reason) == (None, why)
    assert metrics["spec_ratio"].value == 0.6


@pytest.mark.parametrize("case", [COPY, GEMM, Case("ping", {}, (), kind="latency"), Case("sqnr", {}, (), "quality")])
@pytest.mark.parametrize("telemetry", [LOADED, Telemetry()])
@pytest.mark.parametrize("sheet", [SHEET, NO_SHEET])
@pytest.mark.parametrize("facts", [GPU, DeviceFacts("cpu", "Test CPU", "cpu")])
def test_every_unknown_figure_has_a_reason_and_every_case_the_same_figures(case, telemetry, sheet, facts):
    metrics = metrics_of(case, telemetry=telemetry, sheet=sheet, facts=facts)
    assert all(bool(m.reason) == (m.value is None) for m in metrics.values())
    assert {n for n in metrics if not n.startswith("rate")} == {
        "time", "time_p50", "time_p99", "spec_ratio", "at_clock_ratio", "clock_ratio", "cycles",
        "power", "energy", "energy_per_work", "energy_net", "energy_net_per_work", "l2_ratio", "nvml_clock_ratio",
    }  # fmt: skip


NO_THROTTLING = {"power_cap": 0.0, "sync_boost": 0.0, "thermal_sw": 0.0, "thermal_hw": 0.0, "brake_hw": 0.0}


@pytest.mark.parametrize(
    ("throttle", "events", "power_w", "expected"),
    [
        ({}, {}, 690.0, "none"),
        ({"power_cap": 0.19}, {}, 690.0, "none"),
        ({"power_cap": 0.20}, {}, 665.0, "power"),
        ({"power_cap": 0.97}, {}, 391.0, "power model"),
        ({"power_cap": 0.97}, {}, None, "unknown"),
        ({"power_cap": 0.97, "thermal_sw": 0.005, "thermal_hw": 0.005}, {}, 690.0, "thermal"),
        ({"thermal_sw": 0.009}, {}, 690.0, "none"),
        ({"power_cap": 0.97, "thermal_sw": 0.5, "brake_hw": 1e-6}, {}, 690.0, "brake"),
        ({"sync_boost": 0.5}, {}, 300.0, "user's clock"),
        ({}, {"applications_clocks": 1.0}, 300.0, "user's clock"),
        ({"power_cap": 0.97}, {"applications_clocks": 1.0}, 690.0, "power"),
    ],
)
def test_what_limits_is_told_by_the_counters(throttle, events, power_w, expected):
    ratios = NO_THROTTLING | throttle
    telemetry = Telemetry(throttle_ratio=ratios, event_ratio=events, power_w=power_w, power_limit_w=700.0)
    assert limiting_factor(telemetry) == expected


@pytest.mark.parametrize(
    ("throttle", "expected"),
    [
        ({}, "user's clock"),
        ({"power_cap": 0.005}, "user's clock"),
        ({"power_cap": 0.05}, "none"),
        ({"power_cap": 0.97}, "power"),
        ({"thermal_hw": 0.5}, "thermal"),
        ({"brake_hw": 0.5}, "brake"),
    ],
)
def test_clock_held_below_its_maximum_is_the_users_where_nothing_else_acts(throttle, expected):
    telemetry = Telemetry(throttle_ratio=NO_THROTTLING | throttle, power_w=690.0, power_limit_w=700.0)
    assert limiting_factor(telemetry, is_held_below_max=True) == expected


def test_clock_held_below_its_maximum_is_nobodys_where_counters_are_missing():
    assert limiting_factor(Telemetry(), is_held_below_max=True) == "unknown"


def test_missing_counters_leave_the_limit_unknown_but_not_what_the_others_say():
    assert limiting_factor(Telemetry()) == "unknown"
    assert limiting_factor(Telemetry(throttle_ratio={"power_cap": 0.0})) == "unknown"
    assert limiting_factor(Telemetry(throttle_ratio={"thermal_hw": 0.5})) == "thermal"


def test_cycles_are_not_counted_where_launches_do_not_fill_the_window():
    """Behind blocking kernels the clock is mostly that of an idle card; a share at that clock was too low."""
    idle = replace(LOADED, busy_ratio=0.5)
    metrics = metrics_of(GEMM, telemetry=idle)
    for name in ("cycles", "at_clock_ratio", "clock_ratio"):
        assert metrics[name].value is None
        assert metrics[name].reason == "launches fill only 50 % of the window in which cycles were counted"
    assert metrics["spec_ratio"].value is not None


def test_what_the_host_pays_and_how_far_ranks_are_apart_are_told_where_they_were_timed():
    told = metrics_of(COPY, replace(SAMPLES, host_s=0.5, rank_seconds=(2.0, 1.5)))
    assert (told["host_time"].value, told["host_time"].better) == (0.5, "lower")
    assert (told["rank_spread"].value, told["rank_spread"].label) == (0.25, "2 ranks' means over the window")
    assert not {"host_time", "rank_spread"} & metrics_of(COPY).keys()


def test_time_of_a_part_has_its_interval_from_its_stretches():
    told = metrics_of(COPY, replace(SAMPLES, part_seconds={"gemm": (1.0, 2.0, 3.0, 2.0), "collective": (0.5,)}))
    gemm, collective = told["time.gemm"], told["time.collective"]
    assert (gemm.value, gemm.unit, gemm.better) == (2.0, "s", "lower")
    assert gemm.low == pytest.approx(2.0 - 3.1824 * (2 / 3) ** 0.5 / 2, rel=1e-4)  # Student's t with 3 degrees
    assert (collective.value, collective.low) == (0.5, None)
    assert not {"time.gemm", "time.collective"} & metrics_of(COPY).keys()


DECODE = Case("decode_attention", {"batch": 4, "context": 1000}, (READ_WRITE,), footprint_bytes=10_000)


def test_tokens_are_those_of_a_batch_in_decode_and_of_whole_prompts_in_prefill():
    prefill = replace(DECODE, op="prefill_attention")
    rates = [metrics_of(case)["tokens"] for case in (DECODE, prefill)]
    assert [(rate.value, rate.unit, rate.better) for rate in rates] == [
        (2.0, "token/s", "higher"),
        (2000.0, "token/s", "higher"),
    ]
    assert rates[0].label == "through one layer's attention"
    assert "tokens" not in metrics_of(COPY)


def test_joules_of_a_token_are_the_launchs_over_its_tokens():
    metrics = metrics_of(DECODE, telemetry=POWERED)
    each = metrics["energy_per_token"]
    assert (each.value, each.unit, each.systematic_ratio) == (300.0, "J/token", metrics["energy"].systematic_ratio)
    assert interval(each) == pytest.approx((300 * 0.9804, 300 * 1.0196))
    unknown = metrics_of(DECODE, telemetry=Telemetry(missing={"power_w": "NVML says not supported"}))
    assert (unknown["energy_per_token"].value, unknown["energy_per_token"].reason) == (None, "NVML says not supported")


RESNET = Case("resnet50_inference", {"batch": 4}, (READ_WRITE,), footprint_bytes=10_000)


def test_images_are_those_of_a_batch_and_tokens_of_a_block_those_of_all_its_sequences():
    images = metrics_of(RESNET)["images"]
    assert (images.value, images.unit, images.label) == (2.0, "image/s", "through the whole model")
    tokens = metrics_of(replace(DECODE, op="transformer_block"))["tokens"]
    assert (tokens.value, tokens.unit, tokens.label) == (2000.0, "token/s", "through one block")


def test_joules_of_an_image_are_the_launchs_over_its_images():
    each = metrics_of(RESNET, telemetry=POWERED)["energy_per_image"]
    assert (each.value, each.unit, each.better) == (300.0, "J/image", "lower")
