"""One case from check to check, on a scripted device and with numbers for buffers."""

import dataclasses
import math
from fractions import Fraction

import pytest

from harness.model import Case, Metric, Telemetry, Work
from harness.probe import measure
from harness.probe.load import Group, Pace
from harness.probe.measure import (
    FIRST_SEED,
    FRESH_SEED,
    SMOKE,
    SUSTAINED,
    SUSTAINED_COMPUTE,
    CheckFailedError,
    Protocol,
    Subject,
    measure_case,
    protocol_for,
    settle,
    thinned,
)
from tests.doubles import ScriptedChecker, ScriptedDevice

BYTES = Work(1e9, "B", None, "read")
CASE = Case("copy", {"n": 1}, (BYTES,))
WINDOW = Protocol(window_s=0.1, settle_s=0.0, settle_cap_s=0.0, preheat_cap_s=0.0)


def measured(launch=lambda i, source, out: None, case=CASE, device=None, took=0.001, exact=True, **more):
    """Measure a copy whose launches may do something more after copying."""
    source, out = [0.0], [0.0]

    def copy(i):
        out[0] = source[0]
        launch(i, source, out)
        return took

    subject = Subject(copy, [source], [out], lambda i: [(out[0], source[0])], exact=exact, **more)
    return measure_case(case, subject, device or ScriptedDevice(), ScriptedChecker(), WINDOW)


def test_right_case_is_checked_before_and_after_and_timed():
    exact_s = 1 / 1024
    told = measured(took=exact_s)
    assert [(check.when, check.passed, check.worst) for check in told.checks] == [
        ("before", True, 0.0),
        ("after", True, 0.0),
    ]
    assert told.samples.seconds == pytest.approx((exact_s,) * 11)
    assert told.samples.launches_per_sample == 10
    assert told.samples.window_s == pytest.approx(110 * exact_s)
    assert (told.samples.timer, told.samples.queue, told.samples.starved) == ("scripted", "stream", 0)
    assert told.telemetry.power_w == 600.0
    assert (told.telemetry.settled, told.telemetry.settle_s) == (None, 0.0)


def test_figures_of_a_result_are_asked_for_after_the_last_check():
    seen = []
    figure = Metric("quality", 28.5, "dB", "higher")

    def figures():
        seen.append(len(launched))
        return [figure]

    launched = []
    quality = Case("error", {}, (), "quality")
    told = measured(lambda i, *_: launched.append(i), case=quality, shots=3, figures=figures)
    assert told.figures == (figure,)
    assert len(told.checks) == 2
    assert seen == [len(launched)]


def test_quality_case_without_a_figure_fails():
    with pytest.raises(CheckFailedError) as told:
        measured(case=Case("error", {}, (), "quality"), shots=1)
    assert str(told.value) == "a quality case gave no figure of that name"
    assert [check.when for check in told.value.checks] == ["before", "after"]


@pytest.mark.parametrize("field", ["value", "low", "high"])
@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf])
def test_figure_that_is_no_number_fails_its_case(field, number):
    """A result that was infinitely far off ended the worker: no journal takes such a number."""
    figure = dataclasses.replace(Metric("quality", 1.0, "dB", "higher", 0.0, 2.0), **{field: number})
    with pytest.raises(CheckFailedError, match=f"the figure 'quality' is {number}") as told:
        measured(case=Case("error", {}, (), "quality"), shots=1, figures=lambda: [figure])
    assert [check.when for check in told.value.checks] == ["before", "after"]


def test_checks_use_two_seeds():
    seen = set()
    measured(lambda i, source, out: seen.add(source[0]))
    assert seen == {FIRST_SEED, FRESH_SEED}


def test_wrong_result_is_never_timed():
    device = ScriptedDevice()
    device.start = None
    with pytest.raises(CheckFailedError) as told:
        measured(lambda i, source, out: out.__setitem__(0, 1.0), device=device)
    assert str(told.value) == "wrong result before timing: 1 elements differ from the reference"


def test_launch_that_writes_nothing_is_caught_by_the_poison():
    subject = Subject(lambda i: None, [[0.0]], [out := [5.0]], lambda i: [(out[0], 5.0)], exact=True)
    with pytest.raises(CheckFailedError, match="wrong result before timing"):
        measure_case(CASE, subject, ScriptedDevice(), ScriptedChecker(), WINDOW)


def test_result_that_turns_wrong_on_fresh_inputs_is_not_kept():
    def keep_the_first(i, source, out):
        out[0] = float(FIRST_SEED)

    with pytest.raises(CheckFailedError) as told:
        measured(keep_the_first)
    assert str(told.value) == "wrong result after timing, on fresh inputs: 1 elements differ from the reference"


def test_wrong_result_in_decibel_tells_both_numbers(monkeypatch):
    monkeypatch.setattr(ScriptedChecker, "error", lambda *_: 12.34)
    with pytest.raises(CheckFailedError) as told:
        measured(exact=False, least_sqnr_db=50.0)
    assert str(told.value) == (
        "wrong result before timing: SQNR against the reference is 12.3 dB, at least 50 dB is required"
    )


@pytest.mark.parametrize("errors", [[math.nan, 99.0], [99.0, math.nan], [99.0, -math.inf]])
def test_error_that_is_not_finite_never_passes_wherever_it_stands(monkeypatch, errors):
    told = iter(errors)
    monkeypatch.setattr(ScriptedChecker, "error", lambda *_: next(told))
    subject = Subject(lambda i: None, [], [], lambda i: [(0, 0), (0, 0)])
    with pytest.raises(CheckFailedError, match="SQNR against the reference is not finite, at least 50 dB"):
        measure_case(CASE, subject, ScriptedDevice(), ScriptedChecker(), WINDOW)


def test_worst_of_several_errors_is_kept(monkeypatch):
    told = iter([70.0, 60.0, 80.0] * 2)
    monkeypatch.setattr(ScriptedChecker, "error", lambda *_: next(told))
    subject = Subject(lambda i: 0.001, [], [], lambda i: [(0, 0)], sets=3)
    checks = measure_case(CASE, subject, ScriptedDevice(), ScriptedChecker(), WINDOW).checks
    assert [(check.worst, check.bound) for check in checks] == [(60.0, 50.0)] * 2


def test_every_buffer_set_is_launched_before_it_is_compared():
    outs = [[0.0], [0.0], [0.0]]
    source = [0.0]

    def launch(i):
        outs[i % 3][0] = source[0]
        return 0.001

    subject = Subject(launch, [source], outs, lambda i: [(outs[i][0], source[0])], sets=3, exact=True)
    checks = measure_case(CASE, subject, ScriptedDevice(), ScriptedChecker(), WINDOW).checks
    assert all(check.passed for check in checks)


def test_reference_without_a_pair_compares_nothing_and_fails():
    subject = Subject(lambda i: 0.001, [], [], lambda i: [])
    with pytest.raises(CheckFailedError) as told:
        measure_case(CASE, subject, ScriptedDevice(), ScriptedChecker(), WINDOW)
    assert str(told.value) == "nothing was compared before the window: the reference gave no pair"


@pytest.mark.parametrize("against", [None, lambda i: 0.001])
def test_load_is_told_through_how_many_buffer_sets_its_launches_rotate(against):
    """A graph of fewer launches than buffer sets did not visit them all, because nobody had told it how many."""
    device, told = ScriptedDevice(), []
    start = device.start
    device.start = lambda launch, *more, **named: (told.append(launch.sets), start(launch, *more, **named))[1]
    measured(sets=3, device=device, against=against)
    assert set(told) == {3}


# --- repeats ---------------------------------------------------------------------------------------------------------

DETERMINISTIC = dataclasses.replace(CASE, deterministic=True)


def test_deterministic_case_is_repeated_bit_for_bit():
    told = measured(case=DETERMINISTIC)
    assert [check.when for check in told.checks] == ["before", "after", "repeat"]
    assert told.checks[-1].passed


def flipping(*wrong):
    """What is raised where launches of those numbers on fresh inputs write 6.0 for 4.0; the check's is number 1."""
    source, out, fresh = [0.0], [0.0], []

    def launch(i):
        fresh.extend([i] if source[0] == FRESH_SEED else [])
        out[0] = 6.0 if source[0] == FRESH_SEED and len(fresh) in wrong else 4.0
        return 0.001

    subject = Subject(launch, [source], [out], lambda i: [(1, 1)], exact=True)
    with pytest.raises(CheckFailedError) as told:
        measure_case(DETERMINISTIC, subject, ScriptedDevice(), ScriptedChecker(), WINDOW)
    return told.value


def test_bits_that_differ_again_are_suspected_corruption_with_counts_and_place():
    told = flipping(2, 4, 5)
    assert str(told) == (
        "suspected silent corruption: 3 of 12 launches on the same inputs gave other bits than the rest, in 1 of 1 "
        "outputs; output 0: 1 element differs, the first [0]: 0x4018000000000000 and 0x4010000000000000 "
        "(xor 0x8000000000000). Take the card out of service until it was examined."
    )
    assert [(check.when, check.passed) for check in told.checks] == [
        ("before", True),
        ("after", True),
        ("repeat", False),
    ]
    assert (told.checks[-1].worst, told.checks[-1].detail) == (3.0, "of 12 launches on the same inputs gave other bits")


def test_bits_that_differ_once_and_never_again_are_not_called_corruption():
    told = str(flipping(2))
    assert told.startswith(
        "bits differed once and did not again: 1 of 12 launches on the same inputs gave other bits than the rest, "
        "in 1 of 1 outputs, none of 10 further ones; output 0: 1 element differs, the first [0]: "
    )
    assert "silent corruption" not in told


def test_where_the_first_result_was_the_odd_one_its_bits_are_not_known():
    assert "where is not known, as the odd result was the first" in str(flipping(1))


def test_the_same_wrong_bits_in_every_further_launch_are_a_single_event():
    assert "bits differed once and did not again: 1 of 12" in str(flipping(*range(2, 20)))


def test_inputs_are_filled_anew_before_a_difference_is_confirmed(monkeypatch):
    """An input that lost a bit in memory gave the same wrong result in every further launch."""
    seeds = []
    fill = ScriptedChecker.fill
    monkeypatch.setattr(ScriptedChecker, "fill", lambda self, b, seed: (seeds.append(seed), fill(self, b, seed)))
    flipping(2)
    assert seeds == [FIRST_SEED, *[FRESH_SEED] * 11]


# --- samples ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("took", "shown"), [(math.nan, "nan"), (math.inf, "inf"), (-0.001, "-0.001"), (0.0, "0.0")])
def test_sample_that_is_not_a_positive_number_is_refused(took, shown):
    with pytest.raises(CheckFailedError, match=rf"samples are not positive numbers \(first: {shown}"):
        measured(took=took)


@pytest.mark.parametrize(("took", "samples"), [(1e-6, 187), (0.0049, 3), (1.0, 2)])
def test_samples_are_at_most_200_and_at_least_two(took, samples):
    assert len(measured(took=took).samples.seconds) == samples


def test_case_that_is_only_checked_is_never_timed():
    device = ScriptedDevice()
    device.start = None
    told = measured(case=dataclasses.replace(CASE, checked_only="interpreter"), device=device)
    assert [check.when for check in told.checks] == ["before"]
    assert (told.samples, told.telemetry) == (None, None)


def test_load_that_fails_in_the_window_is_finished():
    """The thread that watched a load which raised went on watching the loads after it."""
    finished = []

    class Failing:
        """A load whose first group raises, and whose end does too."""

        def run_group(self):
            """No group."""
            raise ZeroDivisionError("in the launch")

        def mark(self):
            """The window."""

        def finish(self):
            """The device is gone."""
            finished.append(True)
            raise RuntimeError("CUDA error")

    device = ScriptedDevice()
    device.start = lambda *_, **__: Failing()
    with pytest.raises(ZeroDivisionError):
        measured(device=device)
    assert finished == [True]


# --- settling --------------------------------------------------------------------------------------------------------


class Settling:
    """A load of groups of 0.125 s; clock and power are functions of the time since it began."""

    pace = Pace("stream", 1, 0.125)

    def __init__(self, clock=None, power=None):
        self.clock, self.power, self.groups = clock, power, 0

    def run_group(self):
        """The next eighth of a second."""
        self.groups += 1
        at_s = self.groups * 0.125
        return Group(0.125, 1, 100 + at_s, self.clock(at_s) if self.clock else None)

    def recent_power(self):
        """Since the beginning."""
        return [(100 + i * 0.125, self.power(i * 0.125)) for i in range(self.groups + 1)] if self.power else []

    def mark(self):
        """The window begins."""

    def finish(self):
        """Nothing."""
        return Telemetry()


def steady(_):
    return 1000.0


def drifting(at_s):
    return 1000.0 + 10.0 * at_s  # 1 %/s


def test_steady_clock_and_power_are_settled_soon():
    settled, seconds = settle(Settling(steady, steady), SUSTAINED)
    assert settled is True
    assert 2.0 <= seconds <= 2.5


@pytest.mark.parametrize(("clock", "power"), [(drifting, steady), (steady, drifting), (drifting, None)])
def test_drift_of_either_is_unsettled_at_the_cap(clock, power):
    assert settle(Settling(clock, power), SUSTAINED) == (False, 15.0)


def test_drift_that_ends_is_settled_after_it():
    settled, seconds = settle(Settling(lambda at_s: drifting(min(at_s, 3.0))), SUSTAINED)
    assert settled is True
    assert 3.0 < seconds < 15.0


def test_device_that_tells_nothing_is_neither_settled_nor_unsettled():
    assert settle(Settling(), SUSTAINED) == (None, 2.0)


def test_power_read_before_the_load_does_not_count():
    load = Settling(steady)
    load.recent_power = lambda: [(50.0, 1.0), (99.0, 500.0)]
    assert settle(load, SUSTAINED)[0] is True


def test_without_a_cap_nothing_is_loaded():
    load = Settling(drifting)
    assert settle(load, SMOKE) == (None, 0.0)
    assert load.groups == 0


def test_thinned_keeps_one_reading_a_step():
    readings = [(0.0, 1.0), (0.25, 2.0), (0.5, 3.0), (0.75, 4.0), (2.0, 5.0)]
    assert thinned(readings, 0.5) == [(0.0, 1.0), (0.5, 3.0), (2.0, 5.0)]
    assert thinned([], 0.5) == []


@pytest.mark.parametrize("profile", ["quick", "standard", "full"])
def test_every_profile_but_smoke_loads_a_case_alike(profile):
    flop = dataclasses.replace(CASE, work=(Work(1.0, "FLOP", None, ""), BYTES))
    assert protocol_for(CASE, profile, is_cpu=False) == SUSTAINED
    assert protocol_for(flop, profile, is_cpu=False) == SUSTAINED_COMPUTE
    assert protocol_for(flop, profile, is_cpu=True) == SMOKE
    assert protocol_for(flop, "smoke", is_cpu=False) == SMOKE


def test_most_samples_fit_into_a_window_of_equal_groups():
    assert measure.MOST_SAMPLES == 200


def test_short_groups_fill_the_window_and_are_pooled():
    """A launch of 40 µs made groups of 5 ms, and 200 of them were half of the window that the protocol states."""
    groups = [Group(0.005, 125, 100 + 0.005 * n) for n in range(1, 402)]
    pools = measure.pooled(groups)
    assert len(pools) == 133
    assert {(pool.launches, round(pool.seconds, 9)) for pool in pools} == {(375, 0.015)}
    assert pools[-1].ended_s == groups[398].ended_s


def test_few_groups_are_kept_as_they_are():
    groups = [Group(0.1, 7, 100.1), Group(0.2, 7, 100.3, starved=True)]
    assert [(g.seconds, g.launches, g.starved) for g in measure.pooled(groups)] == [(0.1, 7, False), (0.2, 7, True)]


# --- single calls by the host's clock --------------------------------------------------------------------------------


def shot(took=0.001, launch=lambda i: None, **more):
    """Measure a copy by single calls; each tells how long it took."""
    source, out = [0.0], [0.0]

    def copy(i):
        out[0] = source[0]
        launch(i)
        return took(i) if callable(took) else took

    subject = Subject(copy, [source], [out], lambda i: [(out[0], source[0])], exact=True, **{"shots": 200, **more})
    device = ScriptedDevice()
    device.start = None
    return measure_case(CASE, subject, device, ScriptedChecker(), WINDOW)


def test_single_calls_are_checked_before_and_after_and_timed_one_by_one():
    told = shot(lambda i: 0.001 * (1 + i))
    assert [(check.when, check.passed) for check in told.checks] == [("before", True), ("after", True)]
    samples = told.samples
    assert samples.seconds == pytest.approx([0.001 * n for n in range(1, 201)])
    assert (samples.shots, samples.slowest_s, samples.launches_per_sample) == (200, pytest.approx(0.2), 1)
    assert (samples.timer, samples.queue) == ("perf_counter", "host")
    assert samples.seconds_per_launch == pytest.approx(0.1005)


def test_a_call_of_several_operations_is_told_an_operation():
    samples = shot(0.5, operations=100, shots=8).samples
    assert samples.seconds == (0.005,) * 8
    assert (samples.launches_per_sample, samples.window_s, samples.seconds_per_launch) == (100, 4.0, 0.005)
    assert (samples.shots, samples.slowest_s) == (8, 0.005)


def test_what_comes_before_a_call_runs_before_every_launch_and_is_not_timed():
    story = []
    samples = shot(launch=lambda i: story.append(("launch", i)), before=lambda i: story.append(("before", i)), shots=3)
    assert story[:2] == [("before", 0), ("launch", 0)]
    assert story[2:8] == [(what, i) for i in range(3) for what in ("before", "launch")]
    assert len(story) == 10
    assert samples.samples.window_s == pytest.approx(0.003)


def test_wrong_result_after_single_calls_is_not_kept():
    taken = []
    subject = Subject(
        lambda i: taken.append(i) or 0.001, [[0.0]], [], lambda i: [(len(taken) > 2, False)], exact=True, shots=5
    )
    with pytest.raises(CheckFailedError, match="wrong result after timing"):
        measure_case(CASE, subject, ScriptedDevice(), ScriptedChecker(), WINDOW)


def test_of_many_calls_those_at_equal_ranks_are_kept_in_their_order():
    """The slowest of a thousand must not stand for five, and every fifth of them would miss half of the slow ones."""
    calls = [float(1000 - i) for i in range(1000)]
    kept = measure.at_equal_ranks(calls)
    assert len(kept) == 200
    assert kept == sorted(kept, reverse=True)
    assert (min(kept), max(kept)) == (3.0, 998.0)
    assert sum(kept) / 200 == pytest.approx(500.5)


def test_one_call_that_hung_is_told_and_moves_no_percentile():
    samples = shot(lambda i: 10.0 if i == 700 else 0.001, shots=2000).samples
    assert samples.seconds == (0.001,) * 200
    assert (samples.shots, samples.slowest_s) == (2000, 10.0)


def test_one_slow_call_in_fifty_is_in_the_samples():
    samples = shot(lambda i: 0.002 if i % 50 == 0 else 0.001, shots=1000).samples
    assert sorted(samples.seconds)[195:] == [0.001, 0.002, 0.002, 0.002, 0.002]


@pytest.mark.parametrize("took", [math.nan, 0.0, -1.0])
def test_single_call_that_took_no_positive_time_is_refused(took):
    with pytest.raises(CheckFailedError, match="samples are not positive numbers"):
        shot(took)


# --- slowed down on purpose ------------------------------------------------------------------------------------------


def test_rate_of_a_case_that_does_three_percent_more_is_that_much_lower():
    subject = Subject(lambda i: 0.001, [], [], lambda i: [(0, 0)], exact=True)
    window = dataclasses.replace(WINDOW, window_s=10.0)
    clean, slower = (
        measure_case(CASE, subject, ScriptedDevice(), ScriptedChecker(), window, Fraction(percent, 100)).samples
        for percent in (0, 3)
    )
    assert clean.seconds_per_launch == pytest.approx(0.001)
    assert slower.seconds_per_launch == pytest.approx(0.00103, rel=2e-4)
    assert slower.launches_per_sample % 10 == 0  # what runs extra is not counted


def test_single_calls_are_held_longer_each_of_them():
    subject = Subject(lambda i: 0.001, [], [], lambda i: [(0, 0)], exact=True, shots=200)
    samples = measure_case(CASE, subject, ScriptedDevice(), ScriptedChecker(), WINDOW, Fraction(1, 2)).samples
    assert samples.seconds == (0.0015,) * 200


def test_checks_run_what_is_counted_and_no_more():
    launched = []
    subject = Subject(lambda i: launched.append(i) or 0.001, [], [], lambda i: [(0, 0)], exact=True)
    case = dataclasses.replace(CASE, checked_only="here")
    measure_case(case, subject, ScriptedDevice(), ScriptedChecker(), WINDOW, Fraction(1))
    assert launched == [0]


def test_launch_of_several_operations_is_told_by_one_of_them():
    """Seconds of a sample and of the time line are those of one load of a chain, not of the chain."""
    device = ScriptedDevice()
    columns = {"time_s": (0.0, 0.1), "launch_s": (0.5, None)}
    device.start = lambda *_, **__: Lined(ScriptedDevice.start(device, *_, **__), columns)
    told = measured(took=1 / 64, device=device, operations=4)
    assert set(told.samples.seconds) == {1 / 256}
    assert told.samples.launches_per_sample == 40
    assert told.samples.seconds_per_launch == 1 / 256
    assert told.telemetry.timeline == {"time_s": (0.0, 0.1), "launch_s": (0.125, None)}


class Lined:
    """A load whose telemetry has a time line."""

    def __init__(self, load, columns):
        self._load, self._columns = load, columns

    def __getattr__(self, name):
        return getattr(self._load, name)

    def finish(self):
        """The same with columns."""
        return dataclasses.replace(self._load.finish(), timeline=self._columns)
