"""What every device offers to a measurement: a load of grouped launches, and what it says of itself meanwhile.

Protocols and plain data only, so that a scripted device can stand in for a GPU without torch.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any, Literal, Protocol

from harness.model import DeviceFacts, Telemetry

Launch = Callable[[int], object]
"""Enqueues launch number i; a family rotates its buffer sets by it.

A float that it returns is the seconds that it took by a clock of its own: a scripted launch's, another process's.
"""

Prologue = Callable[[], object]
"""Enqueued before a group's first event: what the launches need and the time must not contain."""


@dataclass(frozen=True)
class Rotating:
    """A launch whose number i uses buffer set i modulo `sets`.

    A graph repeats its own launches and no others: of fewer than there are sets it would leave some out, and L2 could
    serve more of the traffic than the footprint of all tells.
    """

    launch: Launch
    sets: int

    def __call__(self, i: int) -> object:
        """Launch number i."""
        return self.launch(i)

    def whole(self, launches: int) -> int:
        """So many launches, or a few more or less, that visit every buffer set equally often, at least once."""
        return max(1, round(launches / self.sets)) * self.sets


@dataclass(frozen=True)
class Injected:
    """A launch that does more than it counts: every so many of them another one runs, spread evenly.

    Which ones follows from their numbers alone, so that all ranks agree, and a window is exact to one launch.
    """

    launch: Launch
    extra: Fraction

    def __call__(self, i: int) -> object:
        """Launch number i, and what comes extra with it."""
        told = self.launch(i)
        for _ in range(self._extra_before(i + 1) - self._extra_before(i)):
            more = self.launch(i)
            if isinstance(told, float) and isinstance(more, float):
                told += more
        return told

    def whole(self, launches: int) -> int:
        """So many launches, or a few more, that hold a whole number of extra ones: what a graph may repeat.

        Of a launch that rotates they are no fewer than visit every buffer set.
        """
        period = self.extra.denominator
        if isinstance(self.launch, Rotating):
            return math.ceil(self.launch.whole(launches) / period) * period
        return max(1, round(launches / period)) * period

    def _extra_before(self, launches: int) -> int:
        return launches * self.extra.numerator // self.extra.denominator


@dataclass(frozen=True)
class Group:
    """A group of launches between two events: device seconds for all of them.

    `clock_mhz` is the mean true clock since the last group that carried one; it comes every 0.1 s or so. `host_s` is
    the host's time until all launches were enqueued, where a load tells it.
    """

    seconds: float
    launches: int
    ended_s: float
    clock_mhz: float | None = None
    starved: bool = False
    host_s: float | None = None


@dataclass(frozen=True)
class Pace:
    """How launches are grouped and kept queued."""

    queue: Literal["stream", "graph", "blocked", "loop", "eager", "host"]
    launches_per_group: int
    seconds_per_launch: float


def busy_ratio(groups: Sequence[Group], began_s: float) -> float | None:
    """The share of the window, from `began_s` to the end of the last group, that the groups' own time fills."""
    wall_s = groups[-1].ended_s - began_s
    return min(1.0, sum(group.seconds for group in groups) / wall_s) if wall_s > 0 else None


class Load(Protocol):
    """A running load. `run_group` returns a finished group while more are queued behind it."""

    pace: Pace

    def run_group(self) -> Group:
        """The next finished group; its `ended_s` is host time (monotonic) when the device was done with it."""

    def mark(self) -> None:
        """Begin the window here: clocks and telemetry of `telemetry()` are counted from the next group on."""

    def finish(self) -> Telemetry:
        """Stop, wait for what is still queued, and tell what was watched from `mark` to the last group returned."""

    def recent_power(self) -> Sequence[tuple[float, float]]:
        """(host seconds, watts) read so far; empty where power cannot be read."""


class Device(Protocol):
    """The one seam between a measurement and the machine."""

    facts: DeviceFacts
    timer: str

    def synchronize(self) -> None:
        """Wait until everything enqueued has run; raises what went wrong on the device."""

    def start(
        self,
        launch: Launch,
        group_s: float,
        pace: Pace | None = None,
        prologue: Prologue | None = None,
        rest_s: float = 0.0,
    ) -> Load:
        """Begin a load whose groups last about `group_s` seconds, or follow a given pace.

        `prologue` runs before each group, outside its time. With `rest_s` the device rests so long before, and the
        load's first second is kept as a burst.
        """

    def time_shots(
        self, shot: Launch, shots: int, before: Launch | None, held: Fraction
    ) -> tuple[list[float], Telemetry]:
        """Seconds of single calls by the host's clock, and what may be told of the device without disturbing them.

        `before` runs before each, outside its time. Each is held for that share of its own time longer.
        """

    def among(self, gpus: Sequence[int]) -> "Device":
        """Those GPUs of this process as one device, on which the first launches."""

    def flusher(self, size_bytes: int) -> Prologue:
        """Enqueues the zeroing of so many bytes, after which L2 holds nothing else that fits beside them."""

    def release(self) -> None:
        """Give back memory that no tensor uses any more."""

    def is_usable(self) -> bool:
        """Whether the device still answers: an illegal address leaves the process without one."""


class Checker(Protocol):
    """How buffers are filled and compared; torch's for real devices, numbers for a scripted one."""

    def fill(self, buffers: Sequence[object], seed: int) -> None:
        """Random data, the same for the same seed."""

    def poison(self, buffers: Sequence[object]) -> None:
        """A value that no right result contains."""

    def fingerprint(self, buffer: object) -> int:
        """Equal for equal bits."""

    def copy(self, buffer: object) -> object:
        """The buffer as it is now."""

    def differences(self, kept: Any, buffer: Any) -> tuple[int, Sequence[tuple[tuple[int, ...], int, int]]]:
        """How many elements of two buffers differ in their bits, and of the first few: index, bits of both."""

    def error(self, actual: object, expected: object, exact: bool) -> float:
        """SQNR in dB against a reference of higher precision (NaN if any value is not finite); for `exact`, how
        many elements differ."""


@dataclass
class Watched:
    """Raw readings of one load, by host time (monotonic seconds).

    `power_w` is the instant field as it was polled, `samples_w` the driver's own record of power.
    """

    power_w: list[tuple[float, float]] = field(default_factory=list)
    samples_w: list[tuple[float, float]] = field(default_factory=list)
    energy_j: list[tuple[float, float]] = field(default_factory=list)
    sm_clock_mhz: list[tuple[float, float]] = field(default_factory=list)
    memory_clock_mhz: list[tuple[float, float]] = field(default_factory=list)
    temperature_c: list[tuple[float, float]] = field(default_factory=list)
    events: list[tuple[float, int]] = field(default_factory=list)
    missing: dict[str, str] = field(default_factory=dict)
