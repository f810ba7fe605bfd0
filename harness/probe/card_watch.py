"""What happened to the cards around a case: Xid messages, NVLink errors, a driver reloaded, limits set by others.

A window's own edges are read while the load runs and must cost next to nothing (`card_changes`). This looks before a
case's first launch and after its last: tens of milliseconds each, in which nothing is timed. What cannot be watched is
told once, as a fact of the run.
"""

import os
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

from harness.model import Fact
from harness.probe.card_changes import SETTINGS, changes_between, read_state
from harness.probe.nvml import EVENT_XID, FIELD_NVLINK_LINKS, Gpu, Nvml, Reading, all_of

State = Mapping[str, Reading]

# What each Xid means, where NVIDIA's catalogue gives it few words (docs.nvidia.com/deploy/xid-errors).
_XIDS = {
    13: "graphics engine exception",
    31: "GPU memory page fault",
    43: "GPU stopped processing",
    45: "preemptive cleanup",
    48: "double-bit ECC error",
    63: "row remapping recorded",
    64: "row remapping failed",
    74: "NVLink error",
    79: "GPU has fallen off the bus",
    92: "many single-bit ECC errors",
    94: "contained memory error",
    95: "uncontained memory error",
    119: "GSP timed out",
    120: "GSP error",
}
# A storm of messages is one finding, not a loop without end.
_MOST_XIDS = 100
# How long after a failed case its message is waited for: the driver tells it after the call has failed.
PATIENCE_MS = 200

# Counters per link, each with its field of nvml.h: those of Hopper and before, then those of Blackwell.
_LINK_FIELDS: Sequence[Mapping[str, int]] = (
    {"nvlink_replays": 161, "nvlink_recoveries": 162, "nvlink_crc_errors": 163},
    {
        "nvlink_receive_errors": 208,
        "nvlink_integrity_errors": 211,
        "nvlink_recoveries": 215,
        "nvlink_effective_errors": 219,
    },
)
# The same by the older call, per link: nvmlNvLinkErrorCounter_t.
_LINK_CALLS = {"nvlink_replays": 0, "nvlink_recoveries": 1, "nvlink_crc_errors": 3}
_ACTIVE = 1


class CardWatch:
    """One card, from the worker's start on; `begin` and `end` stand around each case."""

    def __init__(self, nvml: Nvml, gpu: Gpu) -> None:
        self._nvml = nvml
        self._gpu = gpu
        self._board = gpu.board()
        self._events = self._board.watch_events(EVENT_XID)
        self._links = Links(self._board)
        self._first: State = {}
        self._last: State = {}
        self._begin: State = {}
        self._earlier: tuple[str, ...] = ()

    def begin(self) -> None:
        """A case begins: what came since the last one ended is told with it, as having come before."""
        self._begin = self._read()
        self._first = self._first or self._begin
        self._earlier = tuple(self._since_last())

    def end(self, patience_ms: int = 0) -> tuple[str, ...]:
        """What happened since `begin`, the most serious first. After a failure, its Xid is waited for so long."""
        if not self._begin:
            return ()
        xids = self._xids(patience_ms)
        self._last = self._read()
        told = (*xids, *changes_between(self._begin, self._last), *self._set_before(), *self._earlier)
        self._begin = {}
        return told

    def facts(self) -> dict[str, Fact]:
        """Whether Xid messages and NVLink's counters can be watched, and why not."""
        return {
            "xid_watched": _watched(self._events),
            "nvlink_errors_watched": _watched(
                Reading(True) if self._links.counters else Reading(None, self._links.why)
            ),
        }

    def close(self) -> None:
        """Give the event set back."""
        if self._events.value is not None:
            self._board.free_events(self._events.value)
            self._events = Reading(None, "closed")

    def _read(self) -> State:
        state = read_state(self._gpu)
        processes = state.pop("processes")
        return {
            **state,
            "driver": self._nvml.system("GetDriverVersion"),
            "energy_j": self._gpu.energy_j(),
            "strangers": strangers(processes),
            **self._links.read(),
        }

    def _since_last(self) -> Iterator[str]:
        for told in (*self._xids(0), *(changes_between(self._last, self._begin) if self._last else ())):
            yield f"before it began, {told}"

    def _set_before(self) -> Iterator[str]:
        """What others had set when the case began, or who had come: they stay, and every case after them is touched."""
        for name, (what, unit) in SETTINGS.items():
            first, begin = (state.get(name, Reading(None)).value for state in (self._first, self._begin))
            if first is not None and begin is not None and begin != first:
                yield f"the {what} is {begin:g} {unit}, it was {first:g} {unit} when the worker began"
        first, last = (state.get("strangers", Reading(None)).value for state in (self._first, self._last))
        if first is not None and last is not None and last - first:
            count = len(last - first)
            yield f"{count} other process{'es' * (count > 1)} on the GPU that came after the worker began"

    def _xids(self, patience_ms: int) -> list[str]:
        """Every message queued, each once with how often it came."""
        if self._events.value is None:
            return []
        counts: dict[int, int] = {}
        for number in range(_MOST_XIDS):
            told = self._board.next_event(self._events.value, 0 if number else patience_ms)
            if told.value is None:
                break
            counts[told.value] = counts.get(told.value, 0) + 1
        return [_xid(number, count) for number, count in counts.items()]


class Links:
    """The NVLink error counters that answer on this GPU, summed over its links; which ones is found out once."""

    def __init__(self, gpu: Gpu) -> None:
        self._gpu = gpu
        told = gpu.fields([FIELD_NVLINK_LINKS])[FIELD_NVLINK_LINKS]
        self._links = range(told.value or 0)
        self.why = told.status if told.value is None else "this GPU has no NVLink"
        self.counters: tuple[str, ...] = ()
        self._fields: Mapping[str, int] | None = None
        for fields in (*_LINK_FIELDS, None) if self._links else ():
            self._fields = fields
            sums = self._sums()
            self.counters = tuple(name for name, reading in sums.items() if reading.value is not None)
            if self.counters:
                return
            self.why = next(iter(sums.values())).status

    def read(self) -> dict[str, Reading]:
        """Each counter now, and how many links are up; nothing where none answers."""
        if not self.counters:
            return {}
        states = _sum([self._gpu.ask("GetNvLinkState", link) for link in self._links], lambda state: state == _ACTIVE)
        return {**{name: told for name, told in self._sums().items() if name in self.counters}, "nvlink_active": states}

    def _sums(self) -> dict[str, Reading]:
        if self._fields is None:
            return {
                name: _sum([self._gpu.ask("GetNvLinkErrorCounter", link, counter) for link in self._links])
                for name, counter in _LINK_CALLS.items()
            }
        asked = [(field, link) for field in self._fields.values() for link in self._links]
        told = dict(zip(asked, self._gpu.scoped_fields(asked), strict=True))
        return {name: _sum([told[field, link] for link in self._links]) for name, field in self._fields.items()}


class Cards:
    """The card that is measured, and for a case on several GPUs those of all that take part."""

    def __init__(self, own: CardWatch, others: Mapping[int, CardWatch] | None = None) -> None:
        self._own = own
        self._others = dict(others or {})
        self._watched: dict[int | None, CardWatch] = {}

    def begin(self, gpus: Collection[int] = ()) -> None:
        """A case begins; on which GPUs, as CUDA numbers them, where it is not the measured one alone."""
        self._watched = {None: self._own, **{index: w for index, w in self._others.items() if index in gpus}}
        for watch in self._watched.values():
            watch.begin()

    def end(self, patience_ms: int = 0) -> tuple[str, ...]:
        """What happened to them; of another GPU than the first it is said which."""
        told: list[str] = []
        for index, watch in self._watched.items():
            where = "" if index is None else f"GPU {index}: "
            told += [f"{where}{change}" for change in watch.end(patience_ms)]
            patience_ms = 0
        self._watched = {}
        return tuple(told)

    def facts(self) -> dict[str, Fact]:
        """What of the measured card cannot be watched, and why."""
        return self._own.facts()

    def close(self) -> None:
        """Stop watching."""
        for watch in (self._own, *self._others.values()):
            watch.close()


def strangers(processes: Reading) -> Reading:
    """The processes on the GPU that are none of this worker's session; unknown where NVML numbers them otherwise.

    In a container it may number them as the host does: then this process is not among them.
    """
    if processes.value is None:
        return processes
    if os.getpid() not in processes.value:
        return Reading(None, "NVML does not list this process: it counts in another PID namespace")
    return Reading(frozenset(pid for pid in processes.value if not _is_ours(pid)))


def _is_ours(pid: int) -> bool:
    try:
        return os.getsid(pid) == os.getsid(0)
    except OSError:
        return False


def _xid(number: int, count: int) -> str:
    words = f" ({_XIDS[number]})" if number in _XIDS else ""
    return f"Xid {number}{words}{f', {count} times' if count > 1 else ''}"


def _sum(readings: Sequence[Reading], count: Any = int) -> Reading:
    """The sum over all, or why there is none."""
    told = all_of(readings)
    return told if told.value is None else Reading(sum(map(count, told.value)))


def _watched(reading: Reading) -> Fact:
    return Fact(None, reading.status, "informative") if reading.value is None else Fact(True, role="informative")
