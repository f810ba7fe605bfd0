"""What was watched, summed up over a window from 10 to 12 s: scripted readings, no thread and no clock."""

import dataclasses
import datetime
from pathlib import Path
from types import SimpleNamespace

import pytest

from harness.model import Telemetry
from harness.probe import telemetry
from harness.probe.clocks import ClockReading
from harness.probe.load import Group, Watched
from harness.probe.nvml import EVENT_BITS, THROTTLE_FIELDS, Gpu, Reading
from harness.probe.telemetry import UNWATCHED, Edge, Load, Watch, between_edges, nothing_watched, read_edge, summarise
from tests.doubles import FakeNvml, FakeNvmlError

START_S, END_S = 10.0, 12.0
SECOND_NS = 1_000_000_000
LIMIT = Reading(700.0)
CLOCK = ClockReading(1500.0, 1490.0, 1510.0, 132)
UNSUPPORTED = Reading(None, "Not Supported", 3)
BUSY = {"tensor_busy_ratio": Reading(0.9), "dram_busy_ratio": Reading(0.3)}


def edge(time_s, throttle_ns=(), supported=True, **changed):
    """An edge at which every throttle counter stands at zero but those named."""
    counters = {name: Reading(dict(throttle_ns).get(name, 0)) for name in THROTTLE_FIELDS}
    if not supported:
        counters = dict.fromkeys(THROTTLE_FIELDS, UNSUPPORTED)
    whole = Edge(time_s, counters, Reading(80), Reading(5), Reading(16))
    return dataclasses.replace(whole, **changed)


def readings(value, start_s=9.0, end_s=13.0, step_s=0.05):
    """The same value every 50 ms, from before the window until after it."""
    count = round((end_s - start_s) / step_s) + 1
    return [(start_s + i * step_s, value) for i in range(count)]


def counter(power_w, start_j=1000.0):
    """An energy counter that ticks every 100 ms, polled every 50 ms."""
    return [(9.0 + i * 0.05, start_j + power_w * 0.1 * (i // 2)) for i in range(81)]


def whole():
    return Watched(
        power_w=readings(612.0),
        samples_w=readings(606.0, step_s=0.02),
        energy_j=counter(600.0),
        sm_clock_mhz=readings(1650.0),
        memory_clock_mhz=readings(3201.0),
        temperature_c=[(9.5, 40), (10.5, 50), (11.5, 60), (12.5, 70)],
        events=[(10.5, 0), (11.0, 4), (11.5, 4), (11.9, 0)],
    )


def loaded(clock=CLOCK, **told):
    """A load that began with its window, on a card whose samples follow a step at once."""
    known = {"sm_count": 132, "max_sm_clock_mhz": 1650.0, "samples_rise_s": 0.02, "idle_power_w": 100.0}
    return Load(START_S, clock=clock, **{**known, **told})


def test_utilisation_is_read_at_the_windows_end_and_left_out_where_no_edge_has_it():
    known, refused = (edge(END_S, utilisation=reading) for reading in (Reading(1.0), UNSUPPORTED))
    assert summed(last=known).nvml_busy_ratio == 1.0
    assert summed(last=refused).missing["nvml_busy_ratio"] == UNSUPPORTED.status
    assert "nvml_busy_ratio" not in summed().missing


def summed(watched=None, first=None, last=None, limit=LIMIT, busy=BUSY, **told):
    return summarise(watched or whole(), first or edge(START_S), last or edge(END_S), limit, busy, loaded(**told))


@pytest.mark.parametrize("seconds", [0.028, 0.157, 0.49])
def test_window_that_is_over_before_the_driver_refreshes_has_the_true_clock_alone(seconds):
    """On an H200: 145 W by one source, 794 W by another, the tensor pipe 0 % busy: in 28 ms of a GEMM."""
    last = edge(START_S + seconds, {"power_cap": SECOND_NS}, utilisation=Reading(0.1))
    short = summed(last=last)
    assert short.sm_clock_mhz == 1500.0
    assert (short.power_w, short.power_instant_w, short.nvml_sm_clock_mhz, short.tensor_busy_ratio) == (None,) * 4
    assert (short.nvml_busy_ratio, short.event_ratio, short.throttle_ratio) == (None, {}, {})
    assert short.limited_by == "unknown"
    told = {"power_w", "nvml_sm_clock_mhz", "tensor_busy_ratio", "nvml_busy_ratio", "throttle_ratio"}
    assert {short.missing[name] for name in told} == {
        f"the window lasts {seconds:.2g} s: what the driver refreshes every 0.1 s says too little of it"
    }


def test_window_of_half_a_second_is_watched():
    assert summed(last=edge(START_S + 0.5)).power_samples_w == pytest.approx(606.0)


def test_power_is_the_slope_of_the_energy_counter():
    told = summed()
    assert told.power_w == pytest.approx(600)
    assert told.power_method == "energy counter, line through 21 ticks"


def test_the_other_sources_of_power_stand_beside_it():
    told = summed()
    assert told.power_counter_w == pytest.approx(600)
    assert told.power_instant_w == pytest.approx(612)
    assert told.power_samples_w == pytest.approx(606)


def test_power_falls_back_to_the_instant_field_where_the_counter_ticks_too_seldom():
    watched = dataclasses.replace(whole(), samples_w=[])
    watched.energy_j = [(at_s, 1000.0) for at_s, _ in watched.energy_j]
    told = summed(watched)
    assert told.power_w == pytest.approx(612)
    assert told.power_method == ("mean of the instant field (0 ticks of the energy counter in 2.00 s; 10 are needed)")
    assert "power_w" not in told.missing


def test_power_falls_back_to_the_instant_field_where_the_counter_went_backwards():
    watched = dataclasses.replace(whole(), samples_w=[])
    watched.energy_j = [(at_s, value if at_s < 11.0 else value - 1000) for at_s, value in watched.energy_j]
    told = summed(watched)
    assert told.power_w == pytest.approx(612)
    assert told.power_method.startswith("mean of the instant field (the energy counter went backwards, from ")


def test_fallback_for_a_counter_that_is_not_supported_says_so():
    """The method blamed too few ticks where there was no counter at all."""
    missing = {"energy": "Not Supported", "power_samples_w": "Not Supported"}
    told = summed(dataclasses.replace(whole(), energy_j=[], samples_w=[], missing=missing))
    assert told.power_method == "mean of the instant field (Not Supported)"
    assert told.missing == {"power_samples_w": "Not Supported"}


def test_power_without_counter_and_field_is_unknown_with_nvmls_words():
    missing = {"energy": "no counter", "power_instant_w": "no field", "power_samples_w": "no samples"}
    told = summed(dataclasses.replace(whole(), energy_j=[], power_w=[], samples_w=[], missing=missing))
    assert (told.power_w, told.power_instant_w, told.power_samples_w, told.power_method) == (None, None, None, "")
    assert told.missing == {"power_w": "no counter", "power_instant_w": "no field", "power_samples_w": "no samples"}


def test_watched_readings_are_left_as_they_were():
    watched = dataclasses.replace(whole(), energy_j=[], missing={"energy": "Not Supported"})
    summed(watched)
    assert watched.missing == {"energy": "Not Supported"}


def test_only_readings_inside_the_window_count():
    watched = whole()
    watched.sm_clock_mhz = [(9.9, 1.0), (10.0, 1000.0), (12.0, 2000.0), (12.1, 1.0)]
    assert summed(watched).nvml_sm_clock_mhz == 1500.0


def test_temperatures_are_the_first_and_the_last_of_the_window():
    told = summed()
    assert (told.temperature_start_c, told.temperature_end_c) == (50, 60)


def test_link_and_memory_temperature_are_those_of_the_last_edge():
    told = summed(first=edge(START_S, pcie_generation=Reading(1), memory_temperature_c=Reading(30)))
    assert (told.pcie_generation, told.pcie_lanes, told.memory_temperature_c) == (5, 16, 80)


def test_true_clock_stands_beside_nvmls():
    told = summed()
    assert (told.sm_clock_mhz, told.sm_clock_slowest_mhz, told.sm_clock_fastest_mhz) == (1500.0, 1490.0, 1510.0)
    assert (told.sms_covered, told.nvml_sm_clock_mhz, told.memory_clock_mhz) == (132, 1650.0, 3201.0)


def test_nothing_is_missing_where_everything_was_read():
    assert summed().missing == {}


def test_window_without_stamps_has_no_true_clock():
    told = summed(clock=None)
    assert (told.sm_clock_mhz, told.sms_covered) == (None, None)
    assert told.missing == {"sm_clock_mhz": "no stamps around the window"}


def test_call_that_failed_once_and_worked_later_is_not_missing():
    """A value known and its reason for being unknown stood side by side."""
    names = (*REASONS, "energy")
    told = summed(dataclasses.replace(whole(), missing=dict.fromkeys(names, "timeout")))
    assert told == summed()


@pytest.mark.parametrize("covered", [1, 131])
def test_stamps_that_do_not_cover_every_sm_are_no_clock(covered):
    told = summed(clock=ClockReading(1500.0, 1490.0, 1510.0, covered))
    assert (told.sm_clock_mhz, told.sm_clock_slowest_mhz, told.sm_clock_fastest_mhz) == (None, None, None)
    assert told.sms_covered == covered
    assert told.missing == {"sm_clock_mhz": f"stamps came from {covered} of 132 SMs"}


def test_stamps_count_where_nobody_knows_how_many_sms_there_are():
    assert summed(sm_count=None).sm_clock_mhz == 1500.0


def test_idle_power_and_busy_pipes_stand_beside_the_power():
    told = summed()
    assert (told.idle_power_w, told.tensor_busy_ratio, told.dram_busy_ratio) == (100.0, 0.9, 0.3)


def test_monitor_that_answers_in_part_leaves_the_other_part_unknown():
    told = summed(busy={**BUSY, "tensor_busy_ratio": Reading(None, "Not Supported")})
    assert (told.tensor_busy_ratio, told.dram_busy_ratio) == (None, 0.3)
    assert told.missing == {"tensor_busy_ratio": "Not Supported"}


# --- what goes wrong in mid-run --------------------------------------------------------------------------------------


def without_gap(readings, gap_start_s, gap_end_s):
    return [reading for reading in readings if not gap_start_s < reading[0] < gap_end_s]


def with_gap(gap_start_s, gap_end_s):
    """Everything but the driver's own samples stops in between."""
    watched = whole()
    for name in ("power_w", "energy_j", "sm_clock_mhz", "memory_clock_mhz", "temperature_c", "events"):
        setattr(watched, name, without_gap(getattr(watched, name), gap_start_s, gap_end_s))
    return watched


def test_watch_that_stalls_means_nothing_over_the_window_but_the_counter_counts_on():
    told = summed(with_gap(10.42, 10.98))
    why = "nothing was read for 0.6 s of the window's 2.0 s: the watch was held up"
    assert told.missing == dict.fromkeys(
        ("power_instant_w", "nvml_sm_clock_mhz", "memory_clock_mhz", "event_ratio"), why
    )
    assert (told.power_instant_w, told.nvml_sm_clock_mhz, told.event_ratio) == (None, None, {})
    assert (told.power_w, told.power_samples_w) == (pytest.approx(600), pytest.approx(606))
    assert told.longest_gap_s == pytest.approx(0.6)


def test_watch_that_misses_three_refreshes_has_not_stalled():
    told = summed(with_gap(10.42, 10.68))
    assert told.missing == {}
    assert told.longest_gap_s == pytest.approx(0.3)


def test_stall_is_not_blamed_on_what_the_card_never_answered():
    """A card without power samples that stalled read "Not Supported" as the reason of its stall."""
    watched = dataclasses.replace(with_gap(10.42, 10.98), missing={"power_samples_w": "Not Supported"})
    assert summed(watched).missing["nvml_sm_clock_mhz"].endswith("of the window's 2.0 s: the watch was held up")


def test_temperature_that_fails_in_mid_run_is_no_stall():
    """The watch was taken for stalled, and its clocks for unknown, when the temperature alone had failed."""
    watched = dataclasses.replace(whole(), temperature_c=[(9.5, 40), (10.5, 50)], missing={"temperature_c": "timeout"})
    told = summed(watched)
    assert told.missing == {}
    assert (told.nvml_sm_clock_mhz, told.temperature_end_c) == (1650.0, 50)


def test_instant_power_that_fails_in_mid_run_is_not_held_to_the_end():
    watched = whole()
    watched.power_w = without_gap(watched.power_w, 10.98, 13.1)
    watched.missing = {"power_instant_w": "timeout"}
    told = summed(watched)
    assert (told.power_instant_w, told.power_w) == (None, pytest.approx(600))
    assert told.missing == {"power_instant_w": "timeout"}


def test_gpu_that_is_lost_in_mid_run_has_no_power_and_keeps_its_true_clock():
    lost = Reading(None, "GPU is lost", 15)
    watched = with_gap(10.92, 13.1)
    watched.samples_w = without_gap(watched.samples_w, 10.5, 13.1)
    watched.missing = dict.fromkeys(REASONS, "GPU is lost")
    last = edge(END_S, memory_temperature_c=lost, pcie_generation=lost, pcie_lanes=lost)
    last = dataclasses.replace(last, throttle_ns=dict.fromkeys(THROTTLE_FIELDS, lost))
    told = summed(watched, last=last, limit=lost, busy=dict.fromkeys(BUSY, lost))
    assert told.missing["power_w"] == "the energy counter fell silent 1.1 s before the window's end: GPU is lost"
    assert told.missing["nvml_sm_clock_mhz"] == "GPU is lost"
    assert told.missing["throttle_ratio"] == "power_cap: GPU is lost"
    assert (told.power_w, told.power_counter_w, told.power_instant_w, told.power_samples_w) == (None,) * 4
    assert (told.sm_clock_mhz, told.limited_by) == (1500.0, "unknown")


def test_sources_that_contradict_each_other_are_kept_without_a_power():
    """Of a load that alternates every 100 ms a 25 % duty sensor sees the high part alone."""
    told = summed(dataclasses.replace(whole(), power_w=readings(900.0), samples_w=[]))
    assert (told.power_w, told.power_error_w, told.power_method) == (None, None, "")
    assert (told.power_counter_w, told.power_instant_w) == (pytest.approx(600), pytest.approx(900))
    assert told.energy_check_ratio == pytest.approx(-1 / 3)
    assert told.missing["power_w"] == ("the energy counter says 600.0 W, the instant field 900.0 W: no power is given")


def test_memory_clock_of_zero_is_unknown():
    watching = Watch(Gpu(FakeNvml({**answering().answers, "GetClockInfo": 0}), "handle"))
    watching.stop()
    told = summed(dataclasses.replace(whole(), memory_clock_mhz=[], missing=dict(watching.watched.missing)))
    assert (told.memory_clock_mhz, told.missing["memory_clock_mhz"]) == (None, "NVML says 0 MHz")


# --- unknown ---------------------------------------------------------------------------------------------------------

REASONS = {
    "energy": "no energy",
    "power_instant_w": "no power",
    "power_samples_w": "no samples",
    "nvml_sm_clock_mhz": "no clock",
    "memory_clock_mhz": "no memory clock",
    "temperature_c": "no temperature",
    "event_ratio": "no events",
}


def test_everything_unsupported_is_none_with_nvmls_words():
    """A card without a temperature had no reason under the field's name."""
    nothing = edge(
        END_S,
        supported=False,
        memory_temperature_c=UNSUPPORTED,
        pcie_generation=UNSUPPORTED,
        pcie_lanes=UNSUPPORTED,
    )
    nobody = dict.fromkeys(BUSY, Reading(None, "no performance monitor"))
    first = edge(START_S, supported=False)
    told = summed(Watched(missing=dict(REASONS)), first, nothing, UNSUPPORTED, nobody, clock=None, idle_power_w=None)
    assert told.missing == {
        "power_w": "no energy",
        "power_instant_w": "no power",
        "power_samples_w": "no samples",
        "nvml_sm_clock_mhz": "no clock",
        "memory_clock_mhz": "no memory clock",
        "temperature_start_c": "no temperature",
        "temperature_end_c": "no temperature",
        "event_ratio": "no events",
        "sm_clock_mhz": "no stamps around the window",
        "throttle_ratio": "power_cap: Not Supported",
        "memory_temperature_c": "Not Supported",
        "pcie_generation": "Not Supported",
        "pcie_lanes": "Not Supported",
        "power_limit_w": "Not Supported",
        "idle_power_w": "the card's power at rest was not measured",
        "tensor_busy_ratio": "no performance monitor",
        "dram_busy_ratio": "no performance monitor",
    }
    assert all(getattr(told, name) in (None, {}) for name in told.missing)
    assert told.limited_by == "unknown"


def test_reasons_stand_by_the_names_of_fields():
    names = {f.name for f in dataclasses.fields(Telemetry)}
    told = summed(Watched(), edge(START_S, supported=False), edge(END_S, supported=False), UNSUPPORTED, clock=None)
    assert told.missing.keys() <= names
    assert nothing_watched("no NVML", loaded(clock=None)).missing.keys() <= names


def test_window_into_which_no_reading_fell_says_so():
    watched = dataclasses.replace(whole(), temperature_c=[(9.0, 40)], events=[(9.0, 4)], sm_clock_mhz=[(9.0, 1.0)])
    told = summed(watched)
    reason = "no reading fell into the window"
    assert told.missing == dict.fromkeys(
        ("nvml_sm_clock_mhz", "temperature_start_c", "temperature_end_c", "event_ratio"), reason
    )
    assert told.event_ratio == {}


def test_instant_power_first_read_inside_the_window_is_not_stretched_over_it():
    told = summed(dataclasses.replace(whole(), power_w=readings(612.0, start_s=11.0)))
    assert told.power_instant_w is None
    assert told.missing == {"power_instant_w": "no reading precedes the window"}


def test_window_without_any_length_is_unknown_and_no_crash():
    """Two edges at one time divided by zero."""
    told = summed(last=edge(START_S))
    assert (told.power_w, told.power_instant_w, told.throttle_ratio) == (None, None, {})
    assert told.missing["throttle_ratio"] == "the window is empty"
    assert told.limited_by == "unknown"


def test_gpu_that_nvml_does_not_list_keeps_its_true_clock():
    told = nothing_watched("NVML does not list this GPU", loaded())
    assert (told.sm_clock_mhz, told.sms_covered, told.power_w) == (1500.0, 132, None)
    assert "sm_clock_mhz" not in told.missing
    assert set(told.missing.values()) == {"NVML does not list this GPU"}


def test_without_nvml_and_stamps_nothing_is_known():
    told = nothing_watched("no NVML", loaded(clock=None))
    assert told.missing["sm_clock_mhz"] == told.missing["power_w"] == "no NVML"
    assert told.limited_by == "unknown"


# --- counters and events ---------------------------------------------------------------------------------------------


def test_throttle_counters_become_shares_of_the_window():
    told = summed(
        first=edge(START_S, {"power_cap": SECOND_NS}),
        last=edge(END_S, {"power_cap": 2 * SECOND_NS, "thermal_sw": SECOND_NS // 2}),
    )
    assert told.throttle_ratio == {**dict.fromkeys(THROTTLE_FIELDS, 0.0), "power_cap": 0.5, "thermal_sw": 0.25}


def test_counter_that_ran_a_little_longer_than_the_window_is_all_of_it():
    assert summed(last=edge(END_S, {"power_cap": 3 * SECOND_NS})).throttle_ratio["power_cap"] == 1.0


def test_throttle_counter_that_went_backwards_is_unknown():
    told = summed(first=edge(START_S, {"board": 5}), last=edge(END_S, {"board": 4}))
    assert "board" not in told.throttle_ratio
    assert told.throttle_ratio["power_cap"] == 0.0
    assert told.missing == {"throttle_ratio": "board: the counter went backwards"}


def test_throttle_counter_that_one_edge_could_not_read_is_unknown():
    first = edge(START_S)
    first = dataclasses.replace(first, throttle_ns={**first.throttle_ns, "brake_hw": UNSUPPORTED})
    told = summed(first=first)
    assert "brake_hw" not in told.throttle_ratio
    assert told.missing == {"throttle_ratio": "brake_hw: Not Supported"}


def test_events_become_shares_of_the_readings():
    assert summed().event_ratio == {"power_cap": 0.5}


def test_event_bits_are_told_apart():
    watched = whole()
    watched.events = [(10.5, EVENT_BITS["idle"] | EVENT_BITS["brake_hw"]), (11.0, EVENT_BITS["idle"])]
    assert summed(watched).event_ratio == {"idle": 1.0, "brake_hw": 0.5}


def test_window_without_events_is_known_to_have_none():
    told = summed(dataclasses.replace(whole(), events=[(11.0, 0)]))
    assert told.event_ratio == {}
    assert "event_ratio" not in told.missing


@pytest.mark.parametrize(
    ("counted_ns", "limit_w", "limited_by"),
    [
        ({}, 700.0, "none"),
        ({"power_cap": SECOND_NS}, 601.0, "power"),
        ({"power_cap": SECOND_NS}, 700.0, "power model"),
        ({"brake_hw": 1}, 700.0, "brake"),
        ({"thermal_hw": SECOND_NS}, 700.0, "thermal"),
        ({"sync_boost": SECOND_NS}, 700.0, "user's clock"),
    ],
)
def test_what_limits_is_judged_by_the_counters(counted_ns, limit_w, limited_by):
    assert summed(last=edge(END_S, counted_ns), limit=Reading(limit_w)).limited_by == limited_by


@pytest.mark.parametrize(
    ("max_mhz", "clocks_mhz", "power_cap_ns", "limited_by"),
    [
        (1980.0, (1410.0,), 0, "user's clock"),
        (1980.0, (1410.0, 1425.0), 0, "user's clock"),
        (1980.0, (1410.0, 1440.0), 0, "none"),
        (1425.0, (1410.0,), 0, "none"),
        (None, (1410.0,), 0, "none"),
        (1980.0, (1410.0,), SECOND_NS, "power"),
    ],
)
def test_clock_that_stands_still_below_its_maximum_is_the_users_unless_power_holds_it(
    max_mhz, clocks_mhz, power_cap_ns, limited_by
):
    watched = whole()
    watched.sm_clock_mhz = [(10.0 + 0.05 * i, clocks_mhz[i % len(clocks_mhz)]) for i in range(40)]
    last = edge(END_S, {"power_cap": power_cap_ns})
    assert summed(watched, last=last, limit=Reading(601.0), max_sm_clock_mhz=max_mhz).limited_by == limited_by


# --- time line -------------------------------------------------------------------------------------------------------


def test_timeline_reaches_from_the_loads_start_to_the_windows_end():
    groups = [Group(0.05, 10, 9.55, clock_mhz=1900.0), Group(0.05, 10, 10.05, clock_mhz=1500.0)]
    started = dataclasses.replace(loaded(), began_s=9.5, groups=groups)
    line = summarise(whole(), edge(START_S), edge(END_S), LIMIT, BUSY, started).timeline
    assert (line["time_s"][0], line["time_s"][5], line["time_s"][-1]) == (-0.5, 0.0, 1.9)
    assert (line["sm_clock_mhz"][0], line["sm_clock_mhz"][5]) == (1900.0, 1500.0)
    assert (line["power_w"][0], line["launch_s"][0], line["temperature_c"][0]) == (606.0, 0.005, 40)


def test_timeline_draws_no_samples_that_lag():
    """On a card whose samples are means over a second, every case began with a ramp that the card never ran."""
    assert summed().timeline["power_w"][0] == 606.0
    assert summed(samples_rise_s=0.8).timeline["power_w"][0] == 612.0
    assert summed(samples_rise_s=None).timeline["power_w"][0] == 612.0


# --- the watching thread ---------------------------------------------------------------------------------------------


def answering():
    answers = {
        "GetTotalEnergyConsumption": 5000,
        "GetClockInfo": 1980,
        "GetTemperature": 50,
        "GetCurrentClocksEventReasons": 4,
        "GetCurrPcieLinkGeneration": 5,
        "GetCurrPcieLinkWidth": 16,
        "GetPowerUsage": 600_000,
    }
    return FakeNvml(answers, {186: 600_000, 82: 70, **dict.fromkeys(THROTTLE_FIELDS.values(), 9)})


@pytest.fixture
def watch():
    """A watch whose thread has ended, so that the test alone reads."""
    watching = Watch(Gpu(answering(), "handle"))
    watching.stop()
    watching.watched = Watched()
    return watching


def test_watch_keeps_each_reading_with_its_time(watch, monkeypatch):
    monkeypatch.setattr(telemetry.time, "monotonic", lambda: 7.0)
    watch._read_cheap()
    watched = watch.watched
    assert watched.power_w == [(7.0, pytest.approx(600))]
    assert watched.sm_clock_mhz == watched.memory_clock_mhz == [(7.0, 1980)]
    assert watched.temperature_c == [(7.0, 50)]
    assert watched.events == [(7.0, 4)]
    assert watched.missing == {}


def test_watch_tells_so_far_and_reads_on(watch, monkeypatch):
    monkeypatch.setattr(telemetry.time, "monotonic", lambda: 7.0)
    watch._read_cheap()
    told = watch.so_far()
    watch._read_cheap()
    assert (len(told.power_w), len(watch.watched.power_w)) == (1, 2)
    assert told.missing == {} and told.missing is not watch.watched.missing


def test_watch_forgets_what_is_older_and_why_something_failed(watch, monkeypatch):
    now = iter(float(n) for n in range(100))
    monkeypatch.setattr(telemetry.time, "monotonic", lambda: next(now))
    for _ in range(3):
        watch._read_cheap()
    watch.watched.missing["energy"] = "timeout"
    watch.forget(5.0)
    assert [at_s for at_s, _ in watch.watched.power_w] == [5.0, 10.0]
    assert [at_s for at_s, _ in watch.watched.events] == [9.0, 14.0]
    assert watch.watched.missing == {}


def test_watch_names_a_reading_that_fails_once(watch):
    watch._gpu = Gpu(FakeNvml({"GetTemperature": FakeNvmlError(999)}), "handle")
    watch._read_cheap()
    watch._gpu = Gpu(FakeNvml(), "handle")
    watch._read_cheap()
    assert watch.watched.missing["temperature_c"] == "error 999"
    assert watch.watched.missing["power_instant_w"] == "Not Supported"
    assert watch.watched.power_w == []


def test_watch_keeps_every_sample_of_the_driver_once(watch, monkeypatch):
    """Where the two clocks were read a few microseconds apart, the newest sample came again with the next call."""
    ring = [1_000_000_000, 1_000_020_000]

    def samples(_handle, _kind, since_us):
        value = SimpleNamespace(uiVal=600_000)
        fresh = [SimpleNamespace(timeStamp=us, sampleValue=value) for us in ring if us > since_us]
        if not fresh:
            raise FakeNvmlError(6)
        return 1, fresh

    library = answering()
    library.nvmlDeviceGetSamples = samples
    watch._gpu = Gpu(library, "handle")
    monkeypatch.setattr(telemetry.time, "monotonic", lambda: 100.0)
    for unix_s, newer_us in ((1000.1, 1_000_040_000), (1000.2 - 5e-6, None), (1000.3, None)):
        monkeypatch.setattr(telemetry.time, "time", lambda now_s=unix_s: now_s)
        watch._read_samples()
        ring += [newer_us] if newer_us else []
    assert len(watch.watched.samples_w) == 3
    assert watch.watched.samples_w[0] == (pytest.approx(99.9), 600.0)
    assert "power_samples_w" not in watch.watched.missing


def test_watch_names_samples_that_the_driver_does_not_keep(watch):
    watch._read_samples()
    assert (watch.watched.samples_w, watch.watched.missing) == ([], {"power_samples_w": "Not Supported"})


def test_edge_reads_all_counters_by_one_call(watch):
    library = answering()
    watch._gpu = Gpu(library, "handle")
    read = watch.edge()
    assert library.calls.count("GetFieldValues") == 1
    assert read.throttle_ns == dict.fromkeys(THROTTLE_FIELDS, Reading(9))
    assert read.memory_temperature_c == Reading(70)
    assert (read.pcie_generation, read.pcie_lanes) == (Reading(5), Reading(16))
    assert read.busy.value is None
    assert datetime.datetime.fromisoformat(read.utc).utcoffset() == datetime.timedelta(0)


def test_one_second_average_of_power_is_never_asked(watch):
    library = answering()
    watch._gpu = Gpu(library, "handle")
    watch._stop.clear()
    watch._stop.wait = lambda _: watch._stop.set()
    watch._loop()
    watch.edge()
    assert "GetTotalEnergyConsumption" in library.calls
    assert "GetPowerUsage" not in library.calls
    sources = Path(telemetry.__file__).parent.glob("*.py")
    assert [path.name for path in sources if "PowerUsage" in path.read_text()] == []


def test_window_of_which_only_the_ends_were_read_knows_its_counters_and_its_link():
    first, last = edge(START_S, utc="2026-01-01T00:00:00.000Z"), edge(END_S, {"power_cap": SECOND_NS})
    told = between_edges(first, last, LIMIT)
    assert told.throttle_ratio["power_cap"] == 0.5
    assert (told.pcie_generation, told.pcie_lanes, told.memory_temperature_c) == (5, 16, 80)
    assert (told.window_began_at, told.power_limit_w) == ("2026-01-01T00:00:00.000Z", 700.0)
    assert (told.power_w, told.sm_clock_mhz, told.settled) == (None, None, None)
    assert {told.missing[name] for name in ("power_w", "sm_clock_mhz", "nvml_sm_clock_mhz", "settled")} == {UNWATCHED}


def test_edge_outside_a_watch_takes_no_sample_of_the_monitor():
    library = FakeNvml({"GetCurrPcieLinkGeneration": 5})
    told = read_edge(Gpu(library, "handle 0"))
    assert (told.pcie_generation.value, told.busy.value) == (5, None)
    assert not [call for call in library.calls if "Gpm" in call]
