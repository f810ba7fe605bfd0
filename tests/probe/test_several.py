"""Two GPUs as one device: which of them launches, on which stream, and what of each is kept."""

from contextlib import contextmanager
from types import SimpleNamespace

import pytest

from harness.model import DeviceFacts
from harness.probe import device as device_module
from harness.probe import several as module
from harness.probe import telemetry, timing
from harness.probe.clocks import ClockReading
from harness.probe.load import Group, Pace, Watched
from harness.probe.nvml import THROTTLE_FIELDS, Reading, open_nvml
from harness.probe.several import SeveralGpus
from harness.probe.telemetry import Edge
from tests.several_gpus import SeveralGpus as SeveralNvml

PACE = Pace("stream", 10, 0.00625)
WATTS = {"a": 600.0, "b": 200.0}


class Clock:
    """The host's clock."""

    now_s = 100.0

    def monotonic(self):
        """Now."""
        return self.now_s


class Queue:
    """Groups of a sixteenth of a second; each remembers the stream that was current."""

    def __init__(self, story, clock):
        self.story, self.clock, self.finished = story, clock, 0

    def run_group(self):
        """The next one."""
        self.story.append("group")
        self.finished += 1
        self.clock.now_s += 0.0625
        return Group(0.0625, 10, self.clock.now_s)

    def drain(self):
        """To its end."""
        self.story.append("drain")

    def mean_clock(self, first_group, next_group):
        """The launching GPU's."""
        return ClockReading(1500.0, 1500.0, 1500.0, 2)


class ScriptedWatch:
    """A GPU that draws what WATTS says."""

    def __init__(self, gpu):
        self.name = gpu._handle
        self.watched = Watched()
        self.story.append(f"watch {self.name}")

    def edge(self):
        """The counters now."""
        return edge(self)

    def stop(self):
        """No more."""
        self.story.append(f"stop {self.name}")
        at_s = [99.0 + 0.05 * i for i in range(int((self.clock.now_s - 99.0) / 0.05) + 1)]
        watts = WATTS[self.name]
        self.watched.energy_j = [(t, watts * 0.1 * (i // 2)) for i, t in enumerate(at_s)]
        self.watched.power_w = [(t, watts) for t in at_s]


def edge(_):
    answer = Reading(0)
    unsampled = Reading(None, "not sampled")
    now_s = ScriptedWatch.clock.now_s
    return Edge(now_s, dict.fromkeys(THROTTLE_FIELDS, answer), answer, answer, answer, unsampled, "")


@pytest.fixture
def pair(monkeypatch):
    """Two cards of which the second launches nothing; `story` tells what was asked, in order."""
    story, clock = [], Clock()

    @contextmanager
    def current(stream):
        story.append(f"> {stream}")
        yield
        story.append("<")

    monkeypatch.setattr(module.torch.cuda, "stream", current)
    monkeypatch.setattr(module.torch.cuda, "synchronize", lambda device: story.append(f"wait {device}"))
    for name, what in (("clock", clock), ("story", story)):
        monkeypatch.setattr(ScriptedWatch, name, what, raising=False)
    monkeypatch.setattr(telemetry, "Watch", ScriptedWatch)
    monkeypatch.setattr(module, "Watch", ScriptedWatch)
    monkeypatch.setattr(module, "read_edge", edge)
    monkeypatch.setattr(device_module, "time", clock)
    monkeypatch.setattr(timing, "open_queue", lambda launch, pace, stamper, prologue: (pace, Queue(story, clock)))
    monkeypatch.setattr(module, "choose_pace", lambda launch, group_s: PACE)
    answers = {"GetNvLinkState": lambda _: 1, "GetP2PStatus": lambda *_: 0, "GetEnforcedPowerLimit": 700_000}
    nvml, _ = open_nvml(SeveralNvml(["a", "b"], each=dict.fromkeys("ab", answers), fields={91: 18}))
    cards = [
        SimpleNamespace(
            gpu=gpu,
            facts=DeviceFacts("cuda", "NVIDIA Test", f"cuda:{number}", sm_count=2, max_sm_clock_mhz=1980.0),
            timer="cuda_event",
            stamper=None,
            stream=f"stream on cuda:{number}",
            samples_rise_s=0.02,
            idle_power_w=100.0,
            is_usable=lambda: True,
        )
        for number, gpu in enumerate(nvml.gpus())
    ]
    return SimpleNamespace(cards=cards, story=story)


def run(pair, cards=None):
    load = SeveralGpus(cards or pair.cards).start(lambda _: None, 0.00625)
    for _ in range(8):
        load.run_group()
    load.mark()
    for _ in range(32):
        load.run_group()
    return load.finish()


def test_power_is_that_of_both_and_the_clock_that_of_the_gpu_that_launches(pair):
    told = run(pair)
    assert told.power_w == pytest.approx(800)
    assert told.power_method.endswith("sum of 2 GPUs")
    assert (told.sm_clock_mhz, told.idle_power_w, told.nvlink_links) == (1500.0, None, 18)
    assert {"settled", "sm_clock_mhz", "nvlink_links"} & set(told.missing) == set()
    assert told.missing["idle_power_w"] == "the power of several GPUs at rest was not measured"


def test_everything_is_launched_on_a_stream_of_the_first_gpu(pair):
    run(pair, pair.cards[::-1])
    assert {step for step in pair.story if step.startswith(">")} == {"> stream on cuda:1"}
    places = [pair.story[i - 1] for i, step in enumerate(pair.story) if step in ("group", "drain")]
    assert set(places) == {"> stream on cuda:1"}


def test_both_watches_end(pair):
    run(pair)
    assert [step for step in pair.story if step.split()[0] in ("watch", "stop")] == [
        "watch a", "watch b", "stop a", "stop b",
    ]  # fmt: skip


def test_waiting_waits_for_both(pair):
    SeveralGpus(pair.cards).synchronize()
    assert pair.story == ["wait cuda:0", "wait cuda:1"]


def test_launches_that_the_host_cannot_keep_up_with_are_blocked_and_not_captured(pair, monkeypatch):
    monkeypatch.setattr(module, "choose_pace", lambda launch, group_s: Pace("graph", 500, 1e-6))
    load = SeveralGpus(pair.cards).start(lambda _: None, 0.005)
    assert load.pace == Pace("blocked", 50, 1e-6)


def test_a_gpu_that_nvml_does_not_list_leaves_power_and_links_unknown(pair):
    pair.cards[1].gpu = None
    told = run(pair)
    assert (told.power_w, told.nvlink_links, told.sm_clock_mhz) == (None, None, 1500.0)
    assert told.missing["power_w"] == "NVML does not list this GPU"
    assert told.missing["nvlink_links"] == "NVML does not list both GPUs"


def test_a_gpu_that_launches_nothing_is_not_held_below_its_clock(pair, monkeypatch):
    """It rests at a low clock, which looks like a locked one, and limits no copy."""
    stop = ScriptedWatch.stop

    def resting(self):
        stop(self)
        self.watched.sm_clock_mhz = [(at_s, 1980.0 if self.name == "a" else 210.0) for at_s, _ in self.watched.power_w]

    monkeypatch.setattr(ScriptedWatch, "stop", resting)
    assert run(pair).limited_by == "none"


def test_one_gpu_alone_is_no_pair_and_keeps_its_own_telemetry(pair):
    told = run(pair, pair.cards[:1])
    assert (told.idle_power_w, told.nvlink_links) == (100.0, None)
    assert told.power_w == pytest.approx(600)
    assert told.missing["nvlink_links"] == "GPUs at work: 1, which is no pair"


def test_watch_of_the_other_ends_where_the_load_fails(pair, monkeypatch):
    monkeypatch.setattr(Queue, "drain", lambda self: (_ for _ in ()).throw(RuntimeError("CUDA error")))
    with pytest.raises(RuntimeError, match="CUDA error"):
        run(pair)
    assert [step for step in pair.story if step.startswith("stop")] == ["stop a", "stop b"]


def test_device_of_a_pair_is_usable_if_both_are(pair):
    assert SeveralGpus(pair.cards).is_usable()
    pair.cards[1].is_usable = lambda: False
    assert not SeveralGpus(pair.cards).is_usable()
