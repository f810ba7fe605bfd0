"""What a run is doing right now: events of the journal in, lines of text out, and one place that draws them."""

import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Self

from rich.console import Console
from rich.live import Live
from rich.text import Text

from harness import units
from harness.model import SOAK, Record, from_plain
from harness.report.cells import format_figure
from harness.report.summary import headline_of, said_of
from harness.report.text import clean, format_duration

# Seconds a case before any has finished: what a warm card needs, from the time limits of the profiles.
PROFILE_CASE_S: Mapping[str, float] = {"smoke": 1.0, "quick": 6.0, "standard": 12.0, "full": 12.0}

_BAR_WIDTH = 24


@dataclass
class ProgressState:
    """What is known of a run so far. `apply` takes an event; the rest tells, given the time, what to show.

    A worker that follows a crashed one plans only what is left, so cases are counted by key.
    """

    runs: int = 1
    run: int = 1
    profile: str = ""
    phase: str = "starting"
    phase_since_s: float = 0.0
    families: dict[str, str] = field(default_factory=dict)
    wall_s: dict[str, float | None] = field(default_factory=dict)
    running: str = ""
    running_since_s: float = 0.0
    limit_s: float | None = None
    come: str = ""
    soak_s: dict[str, float] = field(default_factory=dict)
    started_s: float | None = None
    is_saved: bool = False

    def apply(self, event: Mapping[str, Any], now_s: float) -> list[str]:
        """Take one event; the lines that it leaves on the page."""
        if self.started_s is None:
            self.started_s = now_s
        match event.get("event"):
            case "order":
                return self._begin_run(event, now_s)
            case "plan":
                self.families |= {str(c["key"]): str(c["family"]) for c in event["cases"]}
                self.soak_s |= dict(_soaks(event["cases"]))
                return self._enter("", now_s)
            case "warming":
                return self._enter("warming up", now_s)
            case "warmed":
                return self._enter("", now_s)
            case "started":
                self._enter("", now_s)
                self.running, self.running_since_s = str(event["key"]), now_s
                self.limit_s, self.come = event.get("limit_s"), ""
            case "soaking":
                self.come = _said_of_soak(event)
            case "finished":
                return [self._finish(from_plain(Record, event["record"]))]
            case "ended":
                return self._end_worker(event, now_s)
            case "interrupted":
                return [f"interrupted: {clean(event['reason'])}"]
            case "saved":
                self.is_saved = True
        return []

    @property
    def finished(self) -> int:
        """Cases that have come to an end."""
        return len(self.wall_s)

    @property
    def total(self) -> int:
        """Cases that any worker planned, or that came to an end without having been planned."""
        return len(self.families.keys() | self.wall_s.keys())

    def elapsed_s(self, now_s: float) -> float:
        """Seconds since the first event."""
        return now_s - self.started_s if self.started_s is not None else 0.0

    def left_s(self, now_s: float) -> float | None:
        """Seconds that the planned cases of this run should still take; `None` before there is a plan."""
        if not self.families:
            return None
        known: dict[str, list[float]] = {}
        for key, wall_s in self.wall_s.items():
            if wall_s:
                known.setdefault(self.families.get(key, ""), []).append(wall_s)
        default_s = PROFILE_CASE_S.get(self.profile, PROFILE_CASE_S["standard"])
        left_s = 0.0
        for key, family in self.families.items():
            if key in self.wall_s:
                continue
            walls = known.get(family)
            case_s = sum(walls) / len(walls) if walls else self.soak_s.get(key, default_s)
            done_s = now_s - self.running_since_s if key == self.running else 0.0
            left_s += max(0.0, case_s - done_s)
        return left_s

    def status(self, now_s: float) -> tuple[str, str]:
        """The two lines that change: how far the run is, and what it does now."""
        which = f"run {self.run} of {self.runs}, " if self.runs > 1 else ""
        left_s = self.left_s(now_s)
        left = f", about {format_duration(round(left_s))} left" if left_s is not None and self.phase == "" else ""
        done = f"{which}{self.finished} of {self.total} cases"
        return f"{done}, {format_duration(self.elapsed_s(now_s))} elapsed{left}", self._doing(now_s)

    def _doing(self, now_s: float) -> str:
        if self.phase:
            return f"{self.phase}, {format_duration(now_s - self.phase_since_s)}"
        if not self.running:
            return ""
        limit = f" of at most {format_duration(self.limit_s)}" if self.limit_s else ""
        number = min(self.finished + 1, self.total)
        spent = self.come or f"{format_duration(now_s - self.running_since_s)}{limit}"
        return f"case {number} of {self.total}: {clean(self.running)}, {spent}"

    def _begin_run(self, event: Mapping[str, Any], now_s: float) -> list[str]:
        order = event.get("order")
        if self.families:
            self.run += 1
        self.is_saved = False
        self.families, self.wall_s, self.running = {}, {}, ""
        told = order if isinstance(order, Mapping) else {}
        # A CPU measures small sizes, whatever the profile.
        self.profile = "smoke" if told.get("device") == "cpu" else str(told.get("profile", "standard"))
        self._enter("starting", now_s)
        return [f"run {self.run} of {self.runs}"] if self.runs > 1 else []

    def _enter(self, phase: str, now_s: float) -> list[str]:
        is_new = phase != self.phase
        self.phase, self.phase_since_s = phase, now_s
        return [phase] if phase == "warming up" and is_new else []

    def _finish(self, record: Record) -> str:
        self.wall_s[record.key] = record.wall_s
        self.families.setdefault(record.key, record.family)
        if record.key == self.running:
            self.running = ""
        return finished_line(record, self.finished, self.total)

    def _end_worker(self, event: Mapping[str, Any], now_s: float) -> list[str]:
        how = clean(event["how"])
        self.running = ""
        self._enter("starting" if self.finished < self.total else "finishing", now_s)
        return [] if how == "finished" else [f"worker {event['worker']} ended: {how}"]


def _soaks(cases: Sequence[Mapping[str, Any]]) -> Iterator[tuple[str, float]]:
    """The seconds that each planned soak loads the card."""
    for entry in cases:
        case = entry.get("case") or {}
        if str(case.get("op", "")).startswith(f"{SOAK}_"):
            yield str(entry["key"]), float(case["params"]["seconds"])


def _said_of_soak(event: Mapping[str, Any]) -> str:
    """`1 min 30 s of 4 min under load, 694 W, 63 °C`, as the worker told it last."""
    come = f"{format_duration(event['elapsed_s'])} of {format_duration(event['load_s'])} under load"
    known = ((event.get("power_w"), "W"), (event.get("temperature_c"), "°C"))
    return ", ".join([come, *(units.format_number(value, unit) for value, unit in known if value is not None)])


def finished_line(record: Record, number: int, total: int) -> str:
    """One case in one line: `[ 3/38] gemm/dtype=bf16  672.1 TFLOP/s  67.9 %  1343 MHz  695 W  (8.2 s)`."""
    counter = f"[{number:>{len(str(total))}}/{total}]"
    if record.outcome != "measured":
        said = [f"{record.outcome.replace('_', ' ')}: {clean(record.reason)}" if record.reason else record.outcome]
    else:
        headline = headline_of(record)
        said = [
            format_figure(headline) if headline else units.UNKNOWN,
            *_conditions(record),
            *(said_of(record.key, warning).partition(":")[0] for warning in record.warnings),
        ]
    took = [f"({format_duration(record.wall_s)})"] if record.wall_s is not None else []
    return "  ".join((f"{counter} {clean(record.key)}", *said, *took))


def _conditions(record: Record) -> list[str]:
    """Share of the peak, true clock and power, a dash for what is unknown; nothing where all are, as on a CPU."""
    spec, telemetry = record.metric("spec_ratio"), record.telemetry
    conditions = (
        units.format_percent(spec.value if spec else None),
        units.format_number(telemetry.sm_clock_mhz if telemetry else None, "MHz"),
        units.format_number(telemetry.power_w if telemetry else None, "W"),
    )
    return [] if set(conditions) == {units.UNKNOWN} else list(conditions)


class Progress:
    """Draws events: a live status on a terminal, one plain line a finished case anywhere else."""

    def __init__(self, console: Console, runs: int = 1, clock: Callable[[], float] = time.monotonic) -> None:
        self._console = console
        self._clock = clock
        self._runs = runs
        # One a GPU; under `None` where there is one and events do not name it.
        self.states: dict[int | None, ProgressState] = {}
        # `Live` redraws from a thread of its own.
        self._lock = threading.Lock()
        self._live: Live | None = None

    def __enter__(self) -> Self:
        if self._console.is_terminal and not self._console.is_dumb_terminal:
            # Twice a second: often enough to be alive, too seldom to take a core from the run that it watches.
            self._live = Live(
                console=self._console, get_renderable=self.status_text, refresh_per_second=2, transient=True
            )
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._live is not None:
            self._live.stop()
            self._live = None

    def handle(self, event: Mapping[str, Any]) -> None:
        """Take one event of the journal and show what it changed."""
        gpu = event.get("gpu")
        with self._lock:
            lines = self.states.setdefault(gpu, ProgressState(runs=self._runs)).apply(event, self._clock())
        for line in lines:
            self._console.print(Text(f"{_name_of(gpu)}{line}"), soft_wrap=True, highlight=False)

    def status_text(self) -> Text:
        """What a terminal shows while it lasts: two lines for each GPU whose run goes on."""
        lines: list[str] = []
        with self._lock:
            for gpu, state in self.states.items():
                if state.is_saved:
                    continue
                how_far, doing = state.status(self._clock())
                bar = status_bar(state.finished, state.total, self._console.width)
                lines += [f"{_name_of(gpu)}{line}" for line in (f"{bar} {how_far}".strip(), doing) if line]
        return Text("\n".join(lines), overflow="fold")


def _name_of(gpu: int | None) -> str:
    return "" if gpu is None else f"GPU {gpu}: "


def status_bar(finished: int, total: int, width: int) -> str:
    """A bar of full and empty cells; none where there is no plan or hardly any room."""
    cells = min(_BAR_WIDTH, width - 60)
    if cells < 4 or not total:
        return ""
    full = round(cells * min(finished, total) / total)
    return "█" * full + "░" * (cells - full)
