"""Other tools' loops, on a device that tells in which order it was asked for what."""

import pytest

from harness.model import Case, Work
from harness.probe import protocols
from harness.probe.load import Group
from harness.probe.measure import SMOKE, CheckFailedError, Subject, measure_case
from harness.probe.protocols import PeerProtocols
from tests.doubles import ScriptedChecker, ScriptedDevice, ScriptedLoad

# Together 2**-8 s: sums of these are exact.
LAUNCH_S = 3 / 1024
FLUSH_S = 1 / 1024


class PacedLoad(ScriptedLoad):
    """Follows its pace: the prologue, then so many launches, whose seconds are told; flushing takes time of its own."""

    def __init__(self, device, launch, pace, prologue):
        super().__init__(device, launch)
        self.pace = pace or self.pace
        self._prologue = prologue
        self.marked = None

    def run_group(self):
        """One group: what came before it counts on the clock, not in its seconds."""
        story = self._device.story
        if self._prologue is not None:
            self._prologue()
        story.append("start")
        began_s = self._device.now_s
        for _ in range(self.pace.launches_per_group):
            took = self._launch(self._count)
            self._device.now_s += took if isinstance(took, float) else 0.0
            self._count += 1
        seconds = self._device.now_s - began_s
        story.append("end")
        return Group(seconds, self.pace.launches_per_group, self._device.now_s)

    def mark(self):
        """The window begins."""
        self._device.story.append("mark")

    def finish(self):
        """The load is over."""
        self._device.story.append("finish")
        return super().finish()


class TellingDevice(ScriptedDevice):
    """Keeps what happened on its stream, in order."""

    def __init__(self):
        super().__init__()
        self.story = []
        self.flushed_bytes = []
        self.paces = []

    def start(self, launch, group_s, pace=None, prologue=None, rest_s=0.0):
        """A load that follows its pace."""
        self.paces.append(pace)
        return PacedLoad(self, launch, pace, prologue)

    def flusher(self, size_bytes):
        """Zeroing takes a millisecond."""
        self.flushed_bytes.append(size_bytes)

        def flush():
            self.story.append("flush")
            self.now_s += FLUSH_S

        return flush


def run(protocol, device=None, peers=None, lengths=None, took=LAUNCH_S, before=None):
    """Measure a copy by that protocol; the story leaves out the launches of the checks."""
    device = device or TellingDevice()
    source, out = [0.0], [0.0]
    told = iter(lengths or [])

    def launch(i):
        out[0] = source[0]
        device.story.append("launch")
        return next(told, took)

    subject = Subject(launch, [source], [out], lambda i: [(out[0], source[0])], exact=True, before=before)
    case = Case("copy", {"protocol": protocol}, (Work(1e9, "B", None, "read", no_peak="scripted"),))
    measured = measure_case(case, subject, device, ScriptedChecker(), SMOKE, peers=peers)
    checked = ["reset", "launch"] if before else ["launch"]
    assert device.story[: len(checked)] == device.story[-len(checked) :] == checked
    return measured, device.story[len(checked) : -len(checked)], device


def test_mamf_warms_up_for_thirty_seconds_once_and_is_loaded_again_before_each_further_case():
    """On an H200 a case right after the load ran at 1538 MHz, the next one, after a second of checks, at 1592."""
    peers, device = PeerProtocols(), TellingDevice()
    _, story, _ = run("mamf", device, peers)
    warm_up = story[: story.index("finish")]
    # Groups of ten launches of 4 ms each; the first starts the clock.
    assert warm_up.count("launch") * LAUNCH_S == pytest.approx(30.0, abs=20.5 * LAUNCH_S)
    assert "flush" not in warm_up
    device.story = []
    _, story, _ = run("mamf", device, peers)
    again = story[: story.index("finish")]
    assert again.count("launch") * LAUNCH_S == pytest.approx(2.0, abs=20.5 * LAUNCH_S)
    assert story[len(again) :].count("launch") == 150


def test_mamf_flushes_and_resets_before_each_of_its_50_and_100_launches_and_times_each_alone():
    device = TellingDevice()
    measured, story, _ = run(
        "mamf", device, PeerProtocols(is_mamf_warm=True, again_s=0.0), before=lambda i: device.story.append("reset")
    )
    assert [step for step in story if step not in ("mark", "finish")] == [
        "flush",
        "reset",
        "start",
        "launch",
        "end",
    ] * 150
    assert device.flushed_bytes == [256 * 2**20]
    assert measured.samples.launches_per_sample == 1
    assert measured.samples.seconds == pytest.approx((LAUNCH_S,) * 100)


def test_mamf_keeps_the_mean_of_the_hundred_and_none_of_the_fifty():
    lengths = [0.001] + [0.001] * 50 + [0.002] * 50 + [0.004] * 50
    measured, _, _ = run("mamf", peers=PeerProtocols(is_mamf_warm=True, again_s=0.0), lengths=lengths)
    assert measured.samples.seconds_per_launch == pytest.approx(0.003)


def test_do_bench_estimates_with_the_flush_and_counts_launches_by_that():
    measured, story, device = run("do_bench")
    assert story[: story.index("finish")] == ["start", *["flush", "launch"] * 5, "end"]
    # 3.9 ms with the flush: 25 ms hold 6 launches, 100 ms hold 25.
    timing = story[story.index("finish") + 1 :]
    warm = timing[: timing.index("mark")]
    assert warm == ["start", "launch", "end"] * 6
    assert timing[timing.index("mark") + 1 : -1] == ["flush", "start", "launch", "end"] * 25
    assert measured.samples.seconds == pytest.approx((LAUNCH_S,) * 25)
    assert device.flushed_bytes == [256 * 2**20]


def test_do_bench_of_a_launch_longer_than_its_time_runs_it_once_each():
    _, story, _ = run("do_bench", took=0.4)
    assert story.count("launch") == 5 + 1 + 1


def test_nvbandwidth_times_sixteen_copies_behind_four_three_times_and_prints_the_median():
    # One launch of the check, then three samples of 4 + 16.
    lengths = [0.001, *[0.9] * 4, *[0.003] * 16, *[0.9] * 4, *[0.001] * 16, *[0.9] * 4, *[0.002] * 16]
    measured, story, device = run("nvbandwidth", lengths=lengths)
    assert [pace.queue for pace in device.paces] == ["blocked"]
    one = [*["launch"] * 4, "start", *["launch"] * 16, "end"]
    assert [step for step in story if step not in ("mark", "finish")] == one * 3
    assert (measured.samples.seconds, measured.samples.launches_per_sample) == (pytest.approx((0.002,)), 16)
    assert measured.samples.seconds_per_launch == pytest.approx(0.002)


@pytest.mark.parametrize("protocol", ["mamf", "do_bench", "nvbandwidth"])
def test_a_result_is_checked_before_and_after_and_the_load_ends(protocol):
    measured, story, _ = run(protocol, peers=PeerProtocols(is_mamf_warm=True, again_s=0.0))
    assert [check.when for check in measured.checks] == ["before", "after"]
    assert story[-1] == "finish"


@pytest.mark.parametrize("protocol", ["mamf", "do_bench"])
def test_flushing_shows_in_the_busy_ratio_and_not_in_the_time(protocol):
    measured, _, _ = run(protocol, peers=PeerProtocols(is_mamf_warm=True, again_s=0.0))
    assert measured.telemetry.busy_ratio == pytest.approx(0.75, abs=0.01)
    assert measured.samples.seconds_per_launch == pytest.approx(LAUNCH_S)


def test_wrong_result_is_not_timed_by_any_protocol():
    device = TellingDevice()
    subject = Subject(lambda i: 0.001, [[0.0]], [out := [5.0]], lambda i: [(out[0], 5.0)], exact=True)
    case = Case("copy", {"protocol": "mamf"}, (Work(1e9, "B", None, "read", no_peak="scripted"),))
    with pytest.raises(CheckFailedError, match="wrong result before timing"):
        measure_case(case, subject, device, ScriptedChecker(), SMOKE)
    assert device.paces == []


def test_a_launch_that_fails_within_a_protocol_leaves_no_load_watched():
    device = TellingDevice()
    counted = iter(range(1000))

    def fail(_):
        if next(counted) > 8:
            raise RuntimeError("an illegal memory access")

    with pytest.raises(RuntimeError, match="illegal"):
        PeerProtocols().time("nvbandwidth", device, Subject(fail, [], [], lambda i: []), fail)
    assert device.story[-1] == "finish"


def test_an_unknown_protocol_is_a_mistake_of_the_family():
    with pytest.raises(KeyError, match="gauge"):
        run("gauge")


def test_the_constants_are_those_of_the_tools():
    assert (protocols.MAMF_WARM, protocols.MAMF_TIMED, protocols.MAMF_WARM_UP_S) == (50, 100, 30.0)
    assert (protocols.DO_BENCH_WARM_S, protocols.DO_BENCH_TIMED_S) == (0.025, 0.100)
    assert (protocols.NVBANDWIDTH_WARM, protocols.NVBANDWIDTH_TIMED, protocols.NVBANDWIDTH_SAMPLES) == (4, 16, 3)
