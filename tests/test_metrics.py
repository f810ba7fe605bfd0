"""Figures derived from samples and telemetry, with values that can be checked in the head."""

from dataclasses import replace

import pytest

from harness.metrics import BUSY_LEAST_RATIO, derive_metrics, find_bound, limiting_factor, warnings_of
from harness.model import Case, DeviceFacts, Peak, PeakSheet, Samples, Telemetry, Work
from harness.specs import lookup

GPU = DeviceFacts("cuda", "NVIDIA Test", "cuda:0", sm_count=100, l2_bytes=100)
SHEET = PeakSheet(
    gpu="Test",
    match="exact",
    peaks={
        "memory": Peak(1000.0, "B", "read", "data sheet"),
        "bf16": Peak(400e9, "FLOP", "read", "data sheet", clock_mhz=2.0),
        "fp8": Peak(800e9, "FLOP", "recalled", "memory", clock_mhz=2.0),
    },
    # 100 SMs x 2000 FLOP a clock and SM x 2 MHz = 400 GFLOP/s
    flop_per_clock_per_sm={"bf16": 2000, "fp8": 4000},
    sm_count=100,
)
NO_SHEET = PeakSheet(None, "none", "no entry for 'NVIDIA Test' in harness/specs.toml")
SAMPLES = Samples((2.0, 2.0, 2.0, 2.0), 1, 8.0, "events", "stream")
LOADED = Telemetry(settled=True, sm_clock_mhz=1.5, nvml_sm_clock_mhz=1.65, power_w=600.0, power_method="counter")

READ_WRITE = Work(1600.0, "B", "memory", "read + write")
ONE_WAY = Work(800.0, "B", None, "one way")
COPY = Case("copy", {"bytes": 800}, (READ_WRITE, ONE_WAY), footprint_bytes=10_000)
GEMM = Case("gemm", {"dtype": "bf16"}, (Work(480e9, "FLOP", "bf16", "2mnk"), Work(1000.0, "B", "memory", "bytes")))
SKINNY = Case("gemm", {"m": 1}, (Work(100e9, "FLOP", "bf16", "2mnk"), READ_WRITE), footprint_bytes=10_000)


def metrics_of(case, samples=SAMPLES, telemetry=LOADED, sheet=SHEET, facts=GPU):
    return {m.name: m for m in derive_metrics(case, samples, telemetry, sheet, facts)}


def warnings(case, samples=SAMPLES, telemetry=LOADED, sheet=SHEET, facts=GPU):
    metrics = derive_metrics(case, samples, telemetry, sheet, facts)
    return warnings_of(case, samples, telemetry, sheet, metrics)


def on_host_link(peak="host_link", amount=8e9):
    return Case("memcpy", {"direction": "h2d"}, (Work(amount, "B", peak, "one way"),))


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


def test_a_peak_that_an_exact_sheet_lacks_is_named():
    case = Case("gemm", {"dtype": "fp4"}, (Work(1.0, "FLOP", "fp4", "2mnk"),))
    assert metrics_of(case)["spec_ratio"].reason == "no peak 'fp4' is known for 'Test'"


def test_one_unknown_peak_leaves_the_roofline_open():
    sheet = PeakSheet("Test", "exact", peaks={"bf16": SHEET.peaks["bf16"]})
    assert metrics_of(GEMM, sheet=sheet)["spec_ratio"].reason == "no peak 'memory' is known for 'Test'"


def test_a_headline_without_a_peak_gives_its_own_reason():
    works = (Work(2.0, "B", None, "bus", no_peak="NVLS adds in the switch"), READ_WRITE)
    ratio = metrics_of(Case("all_reduce", {}, works))["spec_ratio"]
    assert (ratio.value, ratio.reason) == (None, "NVLS adds in the switch")


def test_a_peak_in_another_unit_is_no_peak():
    case = Case("x", {}, (Work(2.0, "FLOP", "memory", ""),))
    assert metrics_of(case)["spec_ratio"].reason == "the peak 'memory' is in B/s, the work in FLOP"


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


def test_host_copies_use_the_negotiated_pcie_link():
    # Gen4 x16: 16 GT/s x 128/130 x 16 / 8 = 31.5 GB/s
    telemetry = Telemetry(pcie_generation=4, pcie_lanes=16)
    one_way = metrics_of(on_host_link(), telemetry=telemetry)["spec_ratio"]
    assert one_way.value == pytest.approx(4 / 31.508, rel=1e-4)
    both = metrics_of(on_host_link("host_link_both", 16e9), telemetry=telemetry)["spec_ratio"]
    assert both.value == pytest.approx(one_way.value)


def test_a_chip_to_chip_link_wins_over_pcie():
    sheet = PeakSheet("Superchip", "exact", peaks={"host_link": Peak(40e9, "B", "read", "data sheet")})
    telemetry = Telemetry(pcie_generation=4, pcie_lanes=16)
    assert metrics_of(on_host_link(), telemetry=telemetry, sheet=sheet)["spec_ratio"].value == 0.1
    both = on_host_link("host_link_both", 16e9)
    assert metrics_of(both, telemetry=telemetry, sheet=sheet)["spec_ratio"].value == 0.1


def test_an_unknown_host_link_is_no_share():
    unread = Telemetry(pcie_generation=4, missing={"pcie_lanes": "not supported"})
    assert metrics_of(on_host_link(), telemetry=unread)["spec_ratio"].reason == "not supported"
    unheard_of = Telemetry(pcie_generation=99, pcie_lanes=16)
    reason = metrics_of(on_host_link(), telemetry=unheard_of)["spec_ratio"].reason
    assert reason == "no peak is known for PCIe generation 99 with 16 lanes"


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


def test_the_bound_is_the_work_that_needs_the_longest_at_its_peak():
    assert find_bound(GEMM, LOADED, SHEET).name == "bf16"
    assert find_bound(SKINNY, LOADED, SHEET).name == "memory"


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


LINKED = replace(SHEET, peaks={"nvlink": Peak(1000.0, "B", "read", "data sheet")})
BUS = Case("all_reduce", {"impl": "nccl", "ranks": 2}, (Work(800.0, "B", "nvlink", "bus"),))


@pytest.mark.parametrize("algorithm", ["ring", "tree"])
def test_bus_bytes_of_rings_and_trees_are_held_against_the_link(algorithm):
    share = metrics_of(BUS, telemetry=Telemetry(algorithm=algorithm), sheet=LINKED)["spec_ratio"]
    assert (share.value, share.label) == (0.4, "nvlink")


@pytest.mark.parametrize(
    ("telemetry", "reason"),
    [
        (Telemetry(algorithm="nvls"), "NCCL chose nvls, whose links carry another share than the bus bytes count"),
        (Telemetry(algorithm="symmetric"), "NCCL chose symmetric, whose links"),
        (Telemetry(), "the algorithm that the library chose is not known"),
        (Telemetry(missing={"algorithm": "no debug file"}), "no debug file"),
        (Telemetry(algorithm="nvls_tree"), "NCCL chose nvls_tree, whose links"),
        (Telemetry(algorithm="ring", transport="shm"), "NCCL sent through shm, not from peer to peer alone"),
        (Telemetry(algorithm="ring", transport="net/ib+p2p"), "NCCL sent through net/ib+p2p, not from peer"),
    ],
)
def test_other_algorithms_and_unknown_ones_get_no_share_of_the_link(telemetry, reason):
    share = metrics_of(BUS, telemetry=telemetry, sheet=LINKED)["spec_ratio"]
    assert share.value is None
    assert share.reason.startswith(reason)


SWEPT = replace(BUS, params={**BUS.params, "nccl_algo": "Tree", "nccl_proto": "LL", "world": "own"})


@pytest.mark.parametrize(
    ("telemetry", "said", "judged"),
    [
        (Telemetry(algorithm="ring", protocol="ll"), "ring ll over unknown links", "It is no figure of that setting."),
        (Telemetry(algorithm="tree", protocol="simple", transport="p2p"), "tree simple over p2p", "It is no figure"),
        (Telemetry(algorithm="tree"), "tree over unknown links", "Whether that is what was asked is not known."),
    ],
)
def test_setting_that_nccl_did_not_follow_is_marked_and_gets_no_share(telemetry, said, judged):
    share = metrics_of(SWEPT, telemetry=telemetry, sheet=LINKED)["spec_ratio"]
    asked = f"NCCL_ALGO=Tree NCCL_PROTO=LL was asked, NCCL ran {said}"
    assert (share.value, share.reason) == (None, asked)
    (warning,) = warnings(SWEPT, telemetry=telemetry, sheet=LINKED)
    assert warning.startswith(f"other setting: {asked}. {judged}")


def test_setting_that_nccl_followed_gets_its_share_and_no_mark():
    telemetry = Telemetry(algorithm="tree", protocol="ll", transport="p2p")
    assert metrics_of(SWEPT, telemetry=telemetry, sheet=LINKED)["spec_ratio"].value == 0.4
    assert warnings(SWEPT, telemetry=telemetry, sheet=LINKED) == ()


def test_link_through_a_bridge_that_may_not_be_there_gives_no_share():
    bridged = replace(SHEET, peaks={"nvlink": Peak(1000.0, "B", "read", "sheet NVLink 4, 18 links, through a bridge.")})
    share = metrics_of(BUS, telemetry=Telemetry(algorithm="ring"), sheet=bridged)["spec_ratio"]
    assert share.reason == "whether the cards of this form have their NVLink bridge was not read"


def test_card_without_a_link_on_its_sheet_gives_no_share():
    share = metrics_of(BUS, telemetry=Telemetry(algorithm="ring"))["spec_ratio"]
    assert share.reason == "no peak 'nvlink' is known for 'Test'"


NETWORKED = replace(SHEET, peaks={"network": Peak(1000.0, "B", "read", "line rates"), **LINKED.peaks})
BETWEEN_HOSTS = replace(BUS, work=(Work(800.0, "B", "network", "bus"),))


def test_bus_bytes_between_hosts_are_held_against_the_network_where_a_ring_carries_them():
    share = metrics_of(BETWEEN_HOSTS, telemetry=Telemetry(algorithm="ring"), sheet=NETWORKED)["spec_ratio"]
    assert (share.value, share.label) == (0.4, "network")


@pytest.mark.parametrize("algorithm", ["tree", "nvls_tree", "collnet_chain"])
def test_hosts_of_a_tree_exchange_less_than_the_bus_bytes(algorithm):
    """Two hosts of eight under a tree would be told 188 % of what their ports carried."""
    share = metrics_of(BETWEEN_HOSTS, telemetry=Telemetry(algorithm=algorithm), sheet=NETWORKED)["spec_ratio"]
    assert share.reason == f"NCCL chose {algorithm}, whose links carry another share than the bus bytes count"


def test_copies_and_declared_algorithms_are_held_against_the_link_as_they_are():
    for params in ({"direction": "p2p"}, {"ranks": 2, "algorithm": "ring"}):
        share = metrics_of(replace(BUS, params=params), telemetry=Telemetry(), sheet=LINKED)["spec_ratio"]
        assert share.value == 0.4


PAIR_SHEET = PeakSheet(
    "H200 SXM 141GB", "exact", peaks={"nvlink": Peak(450.0, "B", "read", "NVLink 4, 18 links, one way.")}
)
PAIR_PARAMS = {"from": 0, "to": 1, "impl": "ce"}
PEER_COPY = Case("peer_copy", PAIR_PARAMS, (Work(800.0, "B", "peer_link", "one way"),))
PEER_COPIES = Case("peer_copy", PAIR_PARAMS, (Work(1600.0, "B", "peer_link_both", "both ways together"),))


@pytest.mark.parametrize(("case", "name"), [(PEER_COPY, "peer_link"), (PEER_COPIES, "peer_link_both")])
def test_copy_between_two_gpus_is_held_against_the_links_that_are_up(case, name):
    """18 of 25 B/s carry 450 B/s one way and 900 both; 800 and 1600 bytes in two seconds are 400 and 800."""
    told = metrics_of(case, telemetry=Telemetry(nvlink_links=18), sheet=PAIR_SHEET)["spec_ratio"]
    assert (told.value, told.label) == (pytest.approx(400 / 450), name)
    fewer = metrics_of(case, telemetry=Telemetry(nvlink_links=16), sheet=PAIR_SHEET)["spec_ratio"]
    assert fewer.value == 1.0


def test_more_than_the_links_that_are_up_carry_is_implausible():
    told = warnings(PEER_COPY, telemetry=Telemetry(nvlink_links=12), sheet=PAIR_SHEET)
    assert told[0].startswith("implausible: 400.0 B/s over peer_link whose peak is 300.0 B/s.")


@pytest.mark.parametrize(
    ("links", "sheet", "missing", "reason"),
    [
        (None, PAIR_SHEET, {"nvlink_links": "NVML says that no NVLink joins the two"}, "no NVLink joins the two"),
        (None, PAIR_SHEET, {}, "the number of NVLinks between the two was not measured"),
        (18, SHEET, {}, "no data sheet gives the rate of one NVLink of 'Test"),
        (18, PeakSheet(None, "none", "no entry for 'X'"), {}, "no entry for 'X'"),
    ],
)
def test_pair_whose_links_or_rate_nobody_knows_gets_no_share(links, sheet, missing, reason):
    telemetry = Telemetry(nvlink_links=links, missing=missing)
    share = metrics_of(PEER_COPY, telemetry=telemetry, sheet=sheet)["spec_ratio"]
    assert share.value is None
    assert reason in share.reason


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
