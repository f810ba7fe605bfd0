"""How the device's queue is kept full, on a device that is a list: a group runs when somebody waits for it."""

import time
from fractions import Fraction

import pytest
import torch

from harness.probe import timing
from harness.probe.load import Injected, Pace, Rotating
from harness.probe.timing import (
    BlockedGroups,
    GroupQueue,
    LoopGroups,
    choose_pace,
    graph_queue,
    open_queue,
    stream_queue,
)


class Stream:
    """What was enqueued, in order, and how far the device has come. Each launch takes a millisecond."""

    def __init__(self):
        self.enqueued = []
        self.done = 0
        self.runs_at_once = False
        self.spins = []

    def add(self, what):
        """Enqueue something; its place in the queue."""
        self.enqueued.append(what)
        if self.runs_at_once:
            self.done = len(self.enqueued)
        return len(self.enqueued)

    def launch(self, number):
        """A launch of the family."""
        self.add(number)

    def spin(self, duration_s):
        """The blocking kernel."""
        self.spins.append(duration_s)
        self.add("spin")

    def synchronize(self):
        """Everything has run."""
        self.done = len(self.enqueued)


class Event:
    """A CUDA event on that stream."""

    def __init__(self, stream):
        self.stream, self.place = stream, None

    def record(self):
        """Here."""
        self.place = self.stream.add(self)

    def query(self):
        """Whether the device has come by."""
        return self.stream.done >= self.place

    def synchronize(self):
        """Let the device come here."""
        self.stream.done = max(self.stream.done, self.place)

    def elapsed_time(self, end):
        """Milliseconds: one for each launch in between."""
        return float(sum(isinstance(what, int) for what in self.stream.enqueued[self.place : end.place]))


@pytest.fixture
def stream(monkeypatch):
    made = Stream()
    monkeypatch.setattr(timing, "_event", lambda: Event(made))
    monkeypatch.setattr(timing, "spin", made.spin)
    monkeypatch.setattr(torch.cuda, "synchronize", made.synchronize)
    return made


class Stamps:
    """Numbers stamps and gives a clock of 1000 MHz plus one for each stamp in between."""

    def __init__(self, stream):
        self.stream, self.count = stream, 0

    def enqueue(self):
        """A stamp's number."""
        self.stream.add("stamp")
        self.count += 1
        return self.count - 1

    def read(self, number):
        """A microsecond, and 1000 cycles, a stamp."""
        return {0: (1000 * number, 1000 * number)}


def names(stream):
    return ["event" if isinstance(what, Event) else what for what in stream.enqueued]


def queue_of(stream, ahead=2, launches=2, **more):
    return GroupQueue(lambda: [stream.launch(0) for _ in range(launches)], launches, ahead, None, **more)


# --- groups queued ahead ---------------------------------------------------------------------------------------------


def test_queue_starts_behind_a_blocking_kernel(stream):
    queue_of(stream)
    assert names(stream) == ["spin"]


def test_first_group_comes_when_the_groups_ahead_are_enqueued(stream):
    group = queue_of(stream, ahead=2).run_group()
    assert names(stream) == ["spin", *["event", 0, 0, "event"] * 3]
    assert stream.done == 5  # the first group alone has run
    assert (group.seconds, group.launches, group.starved) == (0.002, 2, False)


def test_each_further_group_enqueues_one_more_and_waits_for_the_oldest(stream):
    queue = queue_of(stream, ahead=2)
    for finished in (1, 2, 3):
        queue.run_group()
        assert queue.finished == finished
        assert names(stream).count("event") == 2 * (finished + 2)
        assert stream.done == 1 + 4 * finished


def test_group_before_which_the_device_ran_dry_is_starved(stream):
    queue = queue_of(stream, ahead=2)
    queue.run_group()
    stream.synchronize()  # the host slept: nothing is left to do
    starved = [queue.run_group().starved for _ in range(4)]
    assert starved == [False, False, True, False]


def test_drain_waits_for_all_that_is_in_flight(stream):
    queue = queue_of(stream)
    queue.run_group()
    queue.drain()
    assert stream.done == len(stream.enqueued)
    assert queue.finished == 1


def test_prologue_runs_before_each_group_and_outside_its_time(stream):
    queue = queue_of(stream, ahead=1, launches=1, prologue=lambda: stream.launch(9))
    group = queue.run_group()
    assert names(stream) == ["spin", *[9, "event", 0, "event"] * 2]
    assert group.seconds == 0.001


def test_stream_rotates_on_from_group_to_group(stream):
    queue = stream_queue(stream.launch, Pace("stream", 3, 1.0), None)
    queue.run_group()
    assert [what for what in stream.enqueued if isinstance(what, int)] == list(range(9))


@pytest.mark.parametrize(
    ("pace", "ahead"),
    [
        (Pace("stream", 1, 1.0), 2),  # never fewer than two
        (Pace("stream", 1, 0.01), 10),  # a tenth of a second
        (Pace("stream", 125, 1e-6), 4),  # never more than 500 launches
        (Pace("graph", 125, 1e-6), 500),  # a graph is one launch
        (Pace("stream", 500, 1e-6), 2),
    ],
)
def test_a_tenth_of_a_second_is_queued_ahead_within_what_cuda_queues(pace, ahead):
    assert timing._groups_ahead(pace) == ahead


# --- the true clock of groups ----------------------------------------------------------------------------------------


def test_clock_lies_between_the_opening_stamps_of_two_groups(stream):
    queue = stream_queue(stream.launch, Pace("stream", 1, 1.0), Stamps(stream))
    queue.run_group()
    assert names(stream)[:5] == ["spin", "stamp", "event", 0, "event"]
    assert queue.mean_clock(0, 1).mean_mhz == 1000.0


@pytest.mark.parametrize(("first", "last"), [(1, 1), (2, 1), (0, 3)])
def test_groups_without_both_stamps_have_no_clock(stream, first, last):
    queue = stream_queue(stream.launch, Pace("stream", 1, 1.0), Stamps(stream))
    queue.run_group()  # three stamps: one group done, two in flight
    assert queue.mean_clock(first, last) is None


def test_queue_without_stamps_has_no_clock(stream):
    queue = queue_of(stream)
    queue.run_group()
    assert queue.mean_clock(0, 1) is None


# --- graphs ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def graphs(stream, monkeypatch):
    """CUDA graphs: what is enqueued inside is kept, and enqueued again by a replay."""

    class Graph:
        """A captured piece of the queue."""

        def replay(self):
            """All of it."""
            for what in self.captured:
                stream.add(what)

    class Capture:
        """Takes what was enqueued inside out of the queue."""

        def __init__(self, graph):
            self.graph = graph

        def __enter__(self):
            self.begin = len(stream.enqueued)

        def __exit__(self, *error):
            self.graph.captured = stream.enqueued[self.begin :]
            del stream.enqueued[self.begin :]

    monkeypatch.setattr(torch.cuda, "CUDAGraph", Graph)
    monkeypatch.setattr(torch.cuda, "graph", Capture)
    return stream


def test_graph_replays_the_launches_of_one_group(graphs):
    queue = graph_queue(graphs.launch, Pace("graph", 2, 1.0), None)
    group = queue.run_group()
    assert names(graphs) == ["spin", *["event", 0, 1, "event"] * 3]
    assert (group.seconds, group.launches) == (0.002, 2)


def test_graph_keeps_the_prologue(graphs):
    """The prologue of a load that went into a graph was never run."""
    _, queue = open_queue(graphs.launch, Pace("graph", 1, 1.0), None, lambda: graphs.add("prologue"))
    queue.run_group()
    assert names(graphs) == ["spin", *["prologue", "event", 0, "event"] * 3]


def test_launch_that_cannot_be_captured_is_blocked_instead(graphs):
    calls = []

    def synchronising(number):
        calls.append(number)
        if len(calls) == 1:
            raise RuntimeError("operation not permitted when stream is capturing")
        graphs.launch(number)

    pace, queue = open_queue(synchronising, Pace("graph", 300, 1e-5), None, lambda: graphs.add("prologue"))
    assert pace == Pace("blocked", 100, 1e-5)
    assert isinstance(queue, BlockedGroups)
    queue.run_group()
    assert names(graphs)[:4] == ["spin", "prologue", "event", 0]


def test_graph_of_an_injected_launch_repeats_a_whole_number_of_extra_launches(graphs):
    """A graph of 30 launches with 4 % of more work would have held one extra launch, 3.3 %."""
    pace, queue = open_queue(Injected(graphs.launch, Fraction(4, 100)), Pace("graph", 30, 1e-5), None)
    queue.run_group()
    assert pace == Pace("graph", 25, 1e-5)
    assert names(graphs)[1:29] == ["event", *range(25), 24, "event"]


@pytest.mark.parametrize(
    ("sets", "launches"),
    [(1, 30), (7, 28), (30, 30), (31, 31), (953, 953)],
)
def test_graph_of_a_rotating_launch_visits_every_buffer_set_equally_often(graphs, sets, launches):
    """A graph of 500 launches left 453 of 953 buffer sets out: L2 could serve twice of what the footprint told."""
    visited = []
    rotating = Rotating(lambda i: visited.append(i % sets), sets)
    pace, _ = open_queue(rotating, Pace("graph", 30, 1e-5), None)
    assert (pace.launches_per_group, len(visited)) == (launches, launches)
    assert {visited.count(number) for number in range(sets)} == {launches // sets}


def test_graph_of_a_rotating_launch_with_extra_ones_leaves_no_buffer_set_out(graphs):
    visited = set()
    rotating = Rotating(lambda i: visited.add(i % 31), 31)
    pace, _ = open_queue(Injected(rotating, Fraction(3, 100)), Pace("graph", 30, 1e-5), None)
    assert pace.launches_per_group == 100
    assert visited == set(range(31))


def test_stream_of_an_injected_launch_goes_on_from_group_to_group(stream):
    queue = stream_queue(Injected(stream.launch, Fraction(1, 4)), Pace("stream", 2, 0.1), None)
    queue.run_group()
    queue.run_group()
    assert [what for what in names(stream) if isinstance(what, int)][:5] == [0, 1, 2, 3, 3]


def test_error_that_is_not_cudas_is_not_hidden_by_the_fallback(graphs):
    with pytest.raises(ZeroDivisionError):
        open_queue(lambda _: 1 // 0, Pace("graph", 1, 1.0), None)


def test_queue_is_opened_as_the_pace_says(stream):
    kinds = (("stream", GroupQueue), ("blocked", BlockedGroups), ("loop", LoopGroups), ("eager", LoopGroups))
    for kind, made in kinds:
        pace, queue = open_queue(stream.launch, Pace(kind, 1, 1.0), None)
        assert (pace.queue, type(queue)) == (kind, made)


# --- blocked groups --------------------------------------------------------------------------------------------------


def test_blocked_group_stands_behind_a_spin_and_its_prologue(stream):
    groups = BlockedGroups(stream.launch, Pace("blocked", 2, 1.0), None, lambda: stream.add("prologue"))
    group = groups.run_group()
    assert names(stream) == ["spin", "prologue", "event", 0, 1, "event"]
    assert (group.seconds, group.launches, group.starved) == (0.002, 2, False)
    groups.run_group()
    assert names(stream)[-3:] == [2, 3, "event"]  # rotates on


def test_spin_is_kept_while_the_queue_is_full(stream):
    groups = BlockedGroups(stream.launch, Pace("blocked", 1, 1.0), None)
    for _ in range(3):
        groups.run_group()
    assert stream.spins == [0.002] * 3


def test_spin_is_doubled_until_the_queue_is_full(stream, monkeypatch):
    monkeypatch.setattr(time, "perf_counter", lambda: 0.0)
    groups = BlockedGroups(stream.launch, Pace("blocked", 1, 1.0), None)
    stream.runs_at_once = True
    assert [groups.run_group().starved for _ in range(2)] == [True, True]
    stream.runs_at_once = False
    assert [groups.run_group().starved for _ in range(2)] == [False, False]
    assert stream.spins == [0.002, 0.004, 0.008, 0.008]


def test_spin_covers_a_host_that_was_slower_than_twice_it(stream, monkeypatch):
    ticks = iter([0.0, 1.0, 5.0, 5.0])
    monkeypatch.setattr(time, "perf_counter", lambda: next(ticks))
    stream.runs_at_once = True
    groups = BlockedGroups(stream.launch, Pace("blocked", 1, 1.0), None)
    groups.run_group()
    groups.run_group()
    assert stream.spins == [0.002, 2.0]


def test_blocked_group_is_never_repeated(stream):
    """Of several ranks one repeated a collective that the others did not, and all waited forever."""
    stream.runs_at_once = True
    groups = BlockedGroups(stream.launch, Pace("blocked", 3, 1.0), None)
    assert groups.run_group().starved
    assert [what for what in stream.enqueued if isinstance(what, int)] == [0, 1, 2]


def test_drain_closes_the_last_blocked_group_with_a_stamp(stream):
    groups = BlockedGroups(stream.launch, Pace("blocked", 1, 1.0), Stamps(stream))
    groups.run_group()
    assert groups.mean_clock(0, 1) is None
    groups.drain()
    assert groups.mean_clock(0, 1).mean_mhz == 1000.0


# --- the host in the way ---------------------------------------------------------------------------------------------


def test_loop_begins_on_an_idle_device_and_has_no_blocking_kernel(stream):
    prologue_done = []
    groups = LoopGroups(stream.launch, Pace("loop", 2, 1.0), None, lambda: stream.add("prologue"))
    launch = groups._launch
    groups._launch = lambda i: (prologue_done.append(stream.done), launch(i))
    group = groups.run_group()
    assert names(stream) == ["prologue", "event", 0, 1, "event"]
    assert prologue_done[0] == 1  # the prologue had run before the first launch was made
    assert (group.seconds, group.launches, group.starved) == (0.002, 2, False)
    groups.run_group()
    assert names(stream)[-3:] == [2, 3, "event"]


def test_eager_launch_is_timed_by_the_host_from_call_to_end_and_to_return(stream, monkeypatch):
    ticks = iter([1.0, 1.25, 2.0, 3.0, 3.25, 5.0])
    monkeypatch.setattr(time, "perf_counter", lambda: next(ticks))
    groups = LoopGroups(stream.launch, Pace("eager", 1, 1.0), None)
    told = [groups.run_group() for _ in range(2)]
    assert [(group.seconds, group.host_s) for group in told] == [(1.0, 0.25), (2.0, 0.25)]
    assert names(stream) == [0, 1]


# --- the pace --------------------------------------------------------------------------------------------------------


@pytest.fixture
def launches_of(monkeypatch):
    """Launches that take that long on the device and on the host."""

    def make(device_s, host_s):
        asked = []

        def time_behind_spin(launch, launches, spin_s, first=0, prologue=None):
            asked.append((launches, spin_s))
            return device_s * launches, host_s * launches, True

        monkeypatch.setattr(timing, "time_behind_spin", time_behind_spin)
        return asked

    return make


@pytest.mark.parametrize(
    ("device_s", "host_s", "pace"),
    [
        (1e-3, 1e-5, Pace("stream", 10, 1e-3)),
        (1.0, 1e-5, Pace("stream", 1, 1.0)),  # longer than a group: one launch
        (1e-5, 1e-6, Pace("stream", 125, 1e-5)),  # a quarter of the queue at most
        (1e-5, 1e-5, Pace("graph", 500, 1e-5)),  # the host cannot keep up
        (1e-3, 6e-4, Pace("graph", 10, 1e-3)),
        (1e-3, 5e-4, Pace("stream", 10, 1e-3)),
    ],
)
def test_pace_fills_a_group_and_takes_a_graph_where_the_host_is_slow(launches_of, device_s, host_s, pace):
    launches_of(device_s, host_s)
    chosen = choose_pace(lambda _: None, group_s=0.01)
    assert (chosen.queue, chosen.launches_per_group) == (pace.queue, pace.launches_per_group)
    assert chosen.seconds_per_launch == pytest.approx(pace.seconds_per_launch)


@pytest.mark.parametrize(("device_s", "launches"), [(1e-6, 20), (0.0, 20), (0.005, 4), (1.0, 1)])
def test_pace_is_probed_with_at_most_20_launches_in_20_ms(device_s, launches):
    assert timing.probe_launches(device_s) == launches


def test_probe_waits_behind_a_spin_that_the_host_can_fill(launches_of):
    asked = launches_of(1e-3, 1e-4)
    choose_pace(lambda _: None, group_s=0.01)
    assert asked[-1] == (20, pytest.approx(0.002 + 3 * 20 * 1e-4))


def test_launch_that_waits_for_the_device_is_timed_in_a_loop(stream):
    """A copy from pageable memory was captured in vain, which torch 2.11 does not recover from, and then held behind
    spins that doubled from group to group for minutes."""

    def copy_and_wait(number):
        stream.launch(number)
        stream.synchronize()

    pace = choose_pace(copy_and_wait, group_s=0.002)
    assert pace == Pace("loop", 2, 0.001)
    _, queue = open_queue(copy_and_wait, pace, None)
    stream.spins.clear()
    assert [queue.run_group().seconds for _ in range(3)] == [0.002] * 3
    assert stream.spins == []


def test_launch_whose_host_was_held_up_once_is_looked_at_again_behind_a_longer_spin(monkeypatch):
    asked = []

    def time_behind_spin(launch, launches, spin_s, first=0, prologue=None):
        asked.append(spin_s)
        return 1e-3 * launches, 0.1 if len(asked) == 2 else 1e-5, len(asked) != 2

    monkeypatch.setattr(timing, "time_behind_spin", time_behind_spin)
    assert choose_pace(lambda _: None, group_s=0.01) == Pace("stream", 10, 1e-3)
    assert asked[2] == pytest.approx(0.002 + 3 * 0.1)


def test_time_behind_a_spin_leaves_prologue_and_spin_out(stream):
    told = timing.time_behind_spin(stream.launch, 3, 0.5, first=4, prologue=lambda: stream.launch(99))
    assert names(stream) == ["spin", 99, "event", 4, 5, 6, "event"]
    assert told[0] == 0.003
    assert told[2] is True


def test_queue_that_was_not_full_is_told(stream):
    stream.runs_at_once = True
    assert timing.time_behind_spin(stream.launch, 3, 0.5)[2] is False
