"""A load on a GPU, on a queue and a watch that follow a script: what is kept of it, and what is given back."""

from dataclasses import replace
from fractions import Fraction
from types import SimpleNamespace

import pytest

from harness.model import DeviceFacts
from harness.probe import cuda_load, telemetry, timing
from harness.probe import device as device_module
from harness.probe.clocks import ClockReading
from harness.probe.cuda_load import CudaLoad
from harness.probe.device import CudaDevice
from harness.probe.load import Group, Pace, Watched
from harness.probe.measure import Protocol, time_window
from harness.probe.nvml import GPM_METRICS, THROTTLE_FIELDS, Gpu, Reading
from harness.probe.telemetry import Edge
from tests.doubles import GpmNvml

PACE = Pace("stream", 10, 0.00625)


class Queue:
    """Groups of a sixteenth of a second on the clock that the whole test shares."""

    def __init__(self, clock, covered=2):
        self.clock, self.covered = clock, covered
        self.finished = self.drained = 0
        self.asked = []
        self.kept_from = 0

    def run_group(self):
        """The next sixteenth of a second."""
        self.finished += 1
        self.clock.now_s += 0.0625
        return Group(0.0625, 10, self.clock.now_s)

    def drain(self):
        """The device has come to the end of it."""
        self.drained += 1

    def mean_clock(self, first_group, next_group):
        """1500 MHz; of groups whose stamps were overwritten, nothing."""
        self.asked.append((first_group, next_group))
        if first_group < self.kept_from:
            raise IndexError("overwritten")
        return ClockReading(1500.0, 1500.0, 1500.0, self.covered)


class Clock:
    """The host's clock."""

    now_s = 100.0

    def monotonic(self):
        """Now."""
        return self.now_s

    def sleep(self, seconds):
        """Later."""
        self.now_s += seconds


class ScriptedWatch:
    """Reads nothing; its edges stand at the clock, and a lost GPU answers none of them."""

    lost_at_s = 1e9

    def __init__(self, gpu):
        self.gpu, self.watched, self.stopped, self.forgotten = gpu, Watched(), 0, []

    def edge(self):
        """The counters now."""
        is_lost = self.clock.now_s >= self.lost_at_s
        answer = Reading(None, "GPU is lost", 15) if is_lost else Reading(0)
        busy = answer if is_lost else self.gpu.busy_sample()
        counters = answer if is_lost else Reading(self.throttled_ns())
        return Edge(self.clock.now_s, dict.fromkeys(THROTTLE_FIELDS, counters), answer, answer, answer, busy, 1.7e9)

    def throttled_ns(self):
        """Every counter's nanoseconds: none."""
        return 0

    def so_far(self):
        """What was read until now."""
        self._read()
        return replace(self.watched)

    def forget(self, before_s):
        """Remembers what it was asked to."""
        self.forgotten.append(before_s)

    def stop(self):
        """No more."""
        self.stopped += 1
        self._read()

    def _read(self):
        until_s = min(self.clock.now_s, self.lost_at_s)
        at_s = [99.0 + 0.05 * i for i in range(int((until_s - 99.0) / 0.05) + 1)]
        self.watched.energy_j = [(t, 60.0 * (i // 2)) for i, t in enumerate(at_s)]
        self.watched.power_w = [(t, 600.0) for t in at_s]
        if self.clock.now_s > self.lost_at_s:
            self.watched.missing = dict.fromkeys(("energy", "power_instant_w"), "GPU is lost")


@pytest.fixture
def card(monkeypatch):
    """Makes a card and, when it is loaded, its queue; `card.binding` counts what is left of the monitor's samples."""
    clock = Clock()
    library = GpmNvml(dict.fromkeys(GPM_METRICS.values(), 90.0))
    queue = Queue(clock)
    for module in (cuda_load, device_module):
        monkeypatch.setattr(module, "time", clock)
    monkeypatch.setattr(ScriptedWatch, "clock", clock, raising=False)
    monkeypatch.setattr(telemetry, "Watch", ScriptedWatch)
    monkeypatch.setattr(timing, "open_queue", lambda launch, pace, stamper, prologue: (pace, queue))
    facts = DeviceFacts("cuda", "NVIDIA Test", "cuda:0", sm_count=2, max_sm_clock_mhz=1980.0)
    return SimpleNamespace(
        clock=clock,
        binding=library,
        queue=queue,
        gpu=Gpu(library, "handle"),
        facts=facts,
        samples_rise_s=0.02,
        idle_power_w=100.0,
    )


def load_of(card, has_burst=False):
    return CudaLoad(card, lambda _: None, PACE, None, None, has_burst)


def loaded(load):
    """After half a second of settling and a window of two."""
    for _ in range(8):
        load.run_group()
    load.mark()
    for _ in range(32):
        load.run_group()
    return load


def run(load):
    """Its end too."""
    return loaded(load).finish()


def test_telemetry_is_that_of_the_window(card):
    told = run(load_of(card))
    assert card.queue.asked[-1] == (8, 40)
    assert (told.sm_clock_mhz, told.sms_covered) == (1500.0, 2)
    assert told.power_w == pytest.approx(600)
    assert (told.idle_power_w, told.tensor_busy_ratio) == (100.0, 0.9)
    assert (told.timeline["time_s"][0], told.timeline["time_s"][-1]) == (-0.5, 1.9)
    assert told.burst == {}


def test_true_clock_comes_every_tenth_of_a_second(card):
    load = load_of(card)
    assert [load.run_group().clock_mhz for _ in range(6)] == [None, 1500.0] * 3
    assert card.queue.asked == [(0, 1), (1, 3), (3, 5)]


def test_burst_is_the_loads_first_second(card):
    told = run(load_of(card, has_burst=True))
    assert (len(told.burst["time_s"]), told.burst["time_s"][0]) == (16, 0.031)
    assert set(told.burst["launch_s"]) == {0.00625}
    assert set(told.burst["sm_clock_mhz"]) == {1500.0}


def test_burst_whose_stamps_were_overwritten_keeps_its_times(card):
    load = loaded(load_of(card, has_burst=True))
    card.queue.kept_from = 8
    told = load.finish()
    assert set(told.burst["launch_s"]) == {0.00625}
    assert told.burst["sm_clock_mhz"] == (None,) * 8 + (1500.0,) * 8
    assert told.sm_clock_mhz == 1500.0


def test_window_whose_stamps_were_overwritten_keeps_its_times_and_power_without_a_clock(card):
    """Another tool's loop of more groups than the ring has stamps failed the case on a fast card."""
    load = loaded(load_of(card))
    card.queue.kept_from = 9
    told = load.finish()
    assert (told.sm_clock_mhz, told.power_w) == (None, pytest.approx(600))
    assert told.missing["sm_clock_mhz"] == "no stamps around the window"


def test_load_whose_stamps_were_overwritten_runs_on_without_its_clock_for_once(card):
    load = load_of(card)
    card.queue.kept_from = 2
    assert [load.run_group().clock_mhz for _ in range(6)] == [None, None, None, None, None, 1500.0]


def test_stamps_of_some_of_the_sms_are_no_clock(card):
    card.queue.covered = 1
    told = run(load_of(card))
    assert (told.sm_clock_mhz, told.sms_covered) == (None, 1)
    assert told.missing["sm_clock_mhz"] == "stamps came from 1 of 2 SMs"


def test_monitors_samples_are_freed(card):
    run(load_of(card))
    assert (card.binding.allocated, card.binding.living) == (2, 0)


def test_monitors_samples_are_freed_where_the_device_fails_while_it_drains(card):
    """Both samples of a window were kept for good when the load ended with an error."""

    def fail():
        raise RuntimeError("CUDA error")

    card.queue.drain = fail
    with pytest.raises(RuntimeError, match="CUDA error"):
        run(load_of(card))
    assert (card.binding.allocated, card.binding.living) == (2, 0)


def test_load_that_ends_before_its_window_took_no_sample(card):
    load = load_of(card)
    load.run_group()
    assert load.finish().power_w is None
    assert (card.binding.allocated, card.queue.drained) == (0, 1)


def test_card_that_nvml_does_not_list_keeps_its_true_clock_and_its_launches(card):
    card.gpu = None
    told = run(load_of(card))
    assert (told.sm_clock_mhz, told.power_w, told.limited_by) == (1500.0, None, "unknown")
    assert set(told.timeline["launch_s"]) == {0.00625}
    assert told.missing["power_w"] == "NVML does not list this GPU"


def test_gpu_that_nvml_loses_in_mid_run_keeps_its_timings_and_has_no_power(card, monkeypatch):
    monkeypatch.setattr(ScriptedWatch, "lost_at_s", 101.0)
    started = SimpleNamespace(start=lambda *_, **__: load_of(card), timer="cuda_event")
    samples, told = time_window(started, lambda _: None, Protocol(2.0, 0.0, 0.0, 0.0))
    assert samples.seconds == (0.00625,) * 32
    assert samples.window_s == 2.0
    assert (told.power_w, told.sm_clock_mhz, told.limited_by) == (None, 1500.0, "unknown")
    assert told.missing["power_w"].endswith("before the window's end: GPU is lost")
    assert told.missing["throttle_ratio"] == "power_cap: GPU is lost"
    assert told.missing["tensor_busy_ratio"] == "GPU is lost"
    assert card.binding.living == 0


def test_power_read_so_far_is_what_the_watch_has(card):
    load = load_of(card)
    load.watched.power_w.append((100.0, 600.0))
    assert load.recent_power() == [(100.0, 600.0)]
    card.gpu = None
    assert load_of(card).recent_power() == []
    assert load_of(card).watched == Watched()


def cut_in_parts(load, parts=3):
    """Parts of two seconds each from the load's start."""
    load.mark()
    told = []
    for _ in range(parts):
        for _ in range(32):
            load.run_group()
        told.append(load.cut())
    return told


def test_parts_of_a_load_follow_one_another_without_a_gap(card):
    load = load_of(card)
    told = cut_in_parts(load)
    windows = [window for window in card.queue.asked if window[1] - window[0] > 3]
    # The stamp behind the group that finished last may not have run.
    assert windows == [(0, 31), (31, 63), (63, 95)]
    assert [part.sm_clock_mhz for part in told] == [1500.0] * 3
    assert [part.power_w for part in told] == pytest.approx([600.0] * 3)
    assert [part.power_method[:14] for part in told] == ["energy counter"] * 3
    assert {len(part.timeline["time_s"]) for part in told} == {20}
    assert {part.timeline["time_s"][0] for part in told} == {0.0}


def test_throttle_between_two_parts_is_counted_in_one_of_them(card, monkeypatch):
    """Each look at the counters finds 10 ms more: what lies between two looks must not be lost."""
    looks = iter(range(100))
    monkeypatch.setattr(ScriptedWatch, "throttled_ns", lambda _: 10_000_000 * next(looks))
    told = cut_in_parts(load_of(card))
    assert [part.throttle_ratio["thermal_sw"] for part in told] == pytest.approx([0.005] * 3)


def test_parts_keep_no_readings_and_no_groups_of_those_before(card):
    load = load_of(card)
    cut_in_parts(load)
    assert load._watch.forgotten == [101.0, 103.0, 105.0]
    assert load._groups == []


def test_parts_say_nothing_of_the_drivers_own_samples_which_come_late(card):
    load = load_of(card)
    load._watch.watched.samples_w.append((100.5, 999.0))
    (told,) = cut_in_parts(load, 1)
    assert told.power_samples_w is None
    assert 999.0 not in told.timeline["power_w"]


def test_monitors_samples_of_every_part_are_freed(card):
    load = load_of(card)
    told = cut_in_parts(load)
    assert [part.tensor_busy_ratio for part in told] == [0.9] * 3
    load.finish()
    assert card.binding.living == 0


def test_gpu_that_nvml_loses_in_a_soak_is_unknown_from_then_on(card, monkeypatch):
    monkeypatch.setattr(ScriptedWatch, "lost_at_s", 103.0)
    load = load_of(card)
    told = cut_in_parts(load)
    load.finish()
    assert [part.sm_clock_mhz for part in told] == [1500.0] * 3
    assert [part.power_w is None for part in told] == [False, True, True]
    assert [part.missing.get("throttle_ratio") for part in told] == [None, *["power_cap: GPU is lost"] * 2]
    assert card.binding.living == 0


def test_parts_of_a_card_that_nvml_does_not_list_keep_true_clock_and_launches(card):
    card.gpu = None
    told = cut_in_parts(load_of(card))
    assert [part.sm_clock_mhz for part in told] == [1500.0] * 3
    assert told[2].missing["power_w"] == "NVML does not list this GPU"
    assert set(told[2].timeline["launch_s"]) == {0.00625}


def test_card_stays_cold_for_as_long_as_the_ruler_takes(card):
    assert CudaDevice.stay_cold(card, 6.0) == {}
    assert card.clock.now_s == 106.0


def test_single_calls_are_timed_without_a_watch(monkeypatch):
    """A thread that reads NVML takes Python's lock for milliseconds: it would be in the tail of every latency."""
    monkeypatch.setattr(device_module.torch.cuda, "synchronize", lambda: None)
    monkeypatch.setattr(telemetry, "Watch", None)
    story = []
    library = GpmNvml()
    library.fields = {field: lambda: story.append("read") or 0 for field in THROTTLE_FIELDS.values()}
    device = object.__new__(CudaDevice)
    device.gpu = Gpu(library, "handle 0")
    seconds, told = device.time_shots(lambda i: story.append(f"call {i}") or 0.5, 2, None, Fraction(1, 2))
    assert seconds == [0.75, 0.75]
    assert list(dict.fromkeys(story)) == ["read", "call 0", "call 1"]
    assert story[-1] == "read"
    assert told.missing["power_w"] == telemetry.UNWATCHED


def test_single_calls_on_a_card_that_nvml_does_not_list(monkeypatch):
    monkeypatch.setattr(device_module.torch.cuda, "synchronize", lambda: None)
    device = object.__new__(CudaDevice)
    device.gpu = None
    seconds, told = device.time_shots(lambda i: 0.5, 1, None, Fraction(0))
    assert (seconds, told.missing["power_w"]) == ([0.5], "NVML does not list this GPU")
