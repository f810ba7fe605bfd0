"""What the check of clock and timer found: one line for a header, rows for a table. The worst of several runs."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from harness import units
from harness.model import Ruler, RulerPart, Run
from harness.report.text import clean

# The first schema whose files say whether the ruler was checked.
_RULER_SCHEMA = 2
# The worst first.
_WORDS = {"off": "OFF", "unknown": "unknown", "unchecked": "not checked", "information": "information", "ok": "ok"}
_VERDICTS = {True: "right", False: "OFF", None: "not judged"}
_TIMES = ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs"), (1e-9, "ns"))


@dataclass(frozen=True)
class PartSaid:
    """One part of the check in words; where several runs made it, the reading of the one that is farthest off."""

    name: str
    reading: str
    bounds: str
    verdict: str
    detail: str


def ruler_line(runs: Sequence[Run]) -> str:
    """The worst status of the runs and what was read: 'ok: tick 32 ns, timer +11.6 ppm, …'."""
    statuses = Counter(status_of(run) for run in runs)
    worst = next(status for status in _WORDS if statuses[status])
    lead = _counted(statuses, len(runs))
    rulers = [run.ruler for run in runs if run.ruler is not None and run.ruler.status == worst]
    if not rulers:
        is_old = any(run.schema_version < _RULER_SCHEMA for run in runs)
        return lead + (f" (schema {runs[0].schema_version})" if is_old else "")
    reason = next((clean(ruler.reason) for ruler in rulers if ruler.reason), "")
    if worst == "off":
        failing = [_failure(part) for part in _worst_parts(rulers) if part.passed is False]
        return f"{lead}: {', '.join(failing) or reason or 'no reason given'}; do not use these figures"
    said = "; ".join(part for part in (reason, ", ".join(_readings(_worst_parts(rulers)))) if part)
    return f"{lead}: {said}" if said else lead


def _counted(statuses: Mapping[str, int], run_count: int) -> str:
    """'ok', 'ok in all 5 runs', 'OFF in 1 of 5 runs, ok in 4': the worst first."""
    order = [status for status in _WORDS if statuses[status]]
    if len(order) > 1:
        first, *others = (f"{_WORDS[status]} in {statuses[status]}" for status in order)
        return ", ".join([f"{first} of {run_count} runs", *others])
    if run_count == 1:
        return _WORDS[order[0]]
    none_checked = f"checked in none of {run_count} runs"
    return none_checked if order[0] == "unchecked" else f"{_WORDS[order[0]]} in all {run_count} runs"


def status_of(run: Run) -> str:
    """The ruler's status in one run; `unchecked` where none was made."""
    return run.ruler.status if run.ruler is not None else "unchecked"


def status_word(run: Run) -> str:
    """The same as people read it: "ok", "OFF", "not checked"."""
    return _WORDS[status_of(run)]


def parts_said(runs: Sequence[Run]) -> tuple[PartSaid, ...]:
    """Every part that any of the runs tried."""
    rulers = [run.ruler for run in runs if run.ruler is not None]
    said = []
    for part in _worst_parts(rulers):
        same = [p.passed for ruler in rulers if (p := ruler.part(part.name))]
        verdict = _VERDICTS[part.passed]
        if len(rulers) > 1:
            verdict += f" in {same.count(part.passed)} of {len(rulers)} runs"
        said.append(PartSaid(_title(part), _reading(part, part.value), _bounds(part), verdict, clean(part.detail)))
    return tuple(said)


def _worst_parts(rulers: Sequence[Ruler]) -> list[RulerPart]:
    """Of each part the one that failed, else the one that nobody could judge, else the one read farthest off."""
    names = dict.fromkeys(part.name for ruler in rulers for part in ruler.parts)
    return [_worst([part for ruler in rulers if (part := ruler.part(name))]) for name in names]


def _worst(parts: Sequence[RulerPart]) -> RulerPart:
    passed: dict[bool | None, int] = {False: 2, None: 1, True: 0}
    return max(parts, key=lambda part: (passed[part.passed], _distance(part)))


def _distance(part: RulerPart) -> float:
    """How far a reading lies from what is perfect: 1 for a share of the pipe, 0 for everything else."""
    perfect = 1.0 if part.name.startswith("pipe_") else 0.0
    return -1.0 if part.value is None else abs(part.value - perfect)


def _readings(parts: Iterable[RulerPart]) -> list[str]:
    """What was read, in a few words: spins and pipes share theirs."""
    known = [part for part in parts if part.value is not None]
    spins = [part for part in known if part.name.startswith("spin_")]
    pipes = [part for part in known if part.name.startswith("pipe_")]
    said = [f"{_title(part)} {_reading(part, part.value)}" for part in known if part not in (*spins, *pipes)]
    if spins:
        values = [part.value for part in spins if part.value is not None]
        said.append(f"spins {_range(_reading(spins[0], min(values)), _reading(spins[0], max(values)))}")
    if pipes:
        shares = [f"{_reading(part, part.value)} ({clean(part.name.removeprefix('pipe_'))})" for part in pipes]
        said.append(f"tensor pipe {', '.join(shares)}")
    return said


def _range(low: str, high: str) -> str:
    """Two readings with their unit once where it is the same: '+1.6 to +1.8 µs'."""
    if low == high:
        return low
    number, _, unit = low.partition(" ")
    return f"{number if high.endswith(f' {unit}') else low} to {high}"


def _failure(part: RulerPart) -> str:
    bounds = _bounds(part)
    detail = f": {clean(part.detail)}" if part.detail else ""
    return f"{_title(part)} {_reading(part, part.value)}" + (f" (right: {bounds})" if bounds else "") + detail


def _title(part: RulerPart) -> str:
    if part.name.startswith("spin_"):
        length = clean(part.name.removeprefix("spin_"))
        digits = length.rstrip("usmn")
        return f"spin of {digits} {length[len(digits) :].replace('us', 'µs')}".rstrip()
    if part.name.startswith("pipe_"):
        return f"tensor pipe {clean(part.name.removeprefix('pipe_'))}"
    return {"rate": "timer"}.get(part.name, clean(part.name))


def _reading(part: RulerPart, value: float | None) -> str:
    """A value of that part: ppm for the timer's rate, percent for a pipe, a difference of times with its sign."""
    if value is None:
        return units.UNKNOWN
    if part.name == "rate":
        return f"{1e6 * value:+.1f} ppm"
    if part.unit == "ratio":
        return units.format_percent(value)
    if part.unit == "s":
        sign = "+" if part.name.startswith("spin_") and value > 0 else ""
        return sign + _short_time(value)
    return f"{units.significant(value)} {clean(part.unit)}".rstrip()


def _short_time(seconds: float) -> str:
    """A time to three digits without trailing zeros: 3.2e-8 -> '32 ns'."""
    scale, name = next(((s, n) for s, n in _TIMES if abs(seconds) >= s), _TIMES[-1])
    return f"{float(units.significant(seconds / scale, 3)):g} {name}"


def _bounds(part: RulerPart) -> str:
    low, high = _reading(part, part.low), _reading(part, part.high)
    if part.low is not None and part.high is not None:
        return _range(low, high)
    if part.high is not None:
        return f"at most {high}"
    return f"at least {low}" if part.low is not None else ""
