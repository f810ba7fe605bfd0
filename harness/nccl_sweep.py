"""Which of NCCL's settings is the fastest at each size, and by how much it beats NCCL's own choice. Floor 3.

Only what NCCL followed counts. The best of several is partly the luckiest of several, so that each interval is as wide
as it takes to hold for all of them at once (Bonferroni).
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import fmean

from harness.model import Record, Run
from harness.nccl_settings import asked_and_done, has_own_world, is_followed, settings_of, words_of
from harness.statistics import Interval, log_ratio_interval

DEFAULT = "default"
# Parameters that are the same in a whole table.
_SAME = ("dtype", "impl", "ranks", "launch")


@dataclass(frozen=True)
class Fastest:
    """One size: the default's seconds a launch beside those of the fastest setting, which may be the default itself.

    `gain` is default over fastest with its 95 % interval; `None` where either is unknown or nothing tells how far off.
    `ran` is the algorithm and protocol that NCCL chose by itself.
    """

    size_bytes: int
    default_s: float | None
    ran: str
    setting: str
    fastest_s: float
    gain: float | None
    interval: Interval | None

    @property
    def is_told_apart(self) -> bool:
        """Whether chance alone does not explain that the setting is faster."""
        return self.interval is not None and self.interval.low > 1


@dataclass(frozen=True)
class Sweep:
    """One operation under every setting. `left_out` says what was asked and not done, with the number of sizes."""

    title: str
    runs: int
    settings: int
    rows: tuple[Fastest, ...]
    left_out: tuple[tuple[str, int], ...]


# A size's records by setting, one a run in the order of runs; `None` where a run measured none.
_BySetting = dict[str, list[Record | None]]


def find_fastest(runs: Sequence[Run]) -> tuple[Sweep, ...]:
    """A table for each operation that was swept in these runs, which are of one card and environment."""
    sizes: dict[str, dict[int, _BySetting]] = {}
    left_out: dict[str, dict[str, set[int]]] = {}
    for at, run in enumerate(runs):
        for record in run.measured:
            size = record.case.params.get("bytes")
            if not has_own_world(record.case) or not isinstance(size, int) or record.samples is None:
                continue
            title, setting = _title_of(record), words_of(settings_of(record.case))
            if record.telemetry is None or is_followed(record.case, record.telemetry) is not True:
                told = asked_and_done(record.case, record.telemetry) if record.telemetry else f"{setting}: no telemetry"
                left_out.setdefault(title, {}).setdefault(told, set()).add(size)
                continue
            settings = sizes.setdefault(title, {}).setdefault(size, {})
            settings.setdefault(setting, [None] * len(runs))[at] = record
    return tuple(
        Sweep(
            title,
            len(runs),
            len({setting for settings in sizes[title].values() for setting in settings}),
            tuple(_fastest(size, settings) for size, settings in sorted(sizes[title].items())),
            tuple((told, len(where)) for told, where in left_out.get(title, {}).items()),
        )
        for title in sizes
    )


def _title_of(record: Record) -> str:
    params = record.case.params
    return ", ".join((record.case.op, *(f"{name}={params[name]}" for name in _SAME if name in params)))


def _fastest(size: int, settings: _BySetting) -> Fastest:
    means = {setting: math.exp(fmean(math.log(s) for s in _seconds(found))) for setting, found in settings.items()}
    best = min(means, key=lambda setting: means[setting])
    default = settings.get(DEFAULT)
    if default is None or best == DEFAULT:
        gain, interval = (None if default is None else 1.0), None
    else:
        gain, interval = _gain(default, settings[best], comparisons=len(settings) - 1)
    return Fastest(size, means.get(DEFAULT), _ran(default or ()), best, means[best], gain, interval)


def _gain(
    default: Sequence[Record | None], best: Sequence[Record | None], comparisons: int
) -> tuple[float | None, Interval | None]:
    """Default over best by the runs that measured both: the geometric mean, and its interval."""
    pairs = [(a.samples, b.samples) for a, b in zip(default, best, strict=True) if a and b]
    known = [(a, b) for a, b in pairs if a and b]
    if not known:
        return None, None
    gain = math.exp(fmean(math.log(a.seconds_per_launch / b.seconds_per_launch) for a, b in known))
    interval = log_ratio_interval([(a.seconds, b.seconds) for a, b in known], 1 - 0.05 / comparisons)
    return gain, None if interval is None else Interval(math.exp(interval.low), math.exp(interval.high))


def _seconds(found: Sequence[Record | None]) -> Iterator[float]:
    yield from (record.samples.seconds_per_launch for record in found if record and record.samples)


def _ran(found: Sequence[Record | None]) -> str:
    """What NCCL chose by itself, where all runs say the same."""
    told = {f"{t.algorithm} {t.protocol}".strip() for record in found if record and (t := record.telemetry)}
    return told.pop() if len(told) == 1 else ""
