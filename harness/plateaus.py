"""Where a curve over working sets stands still: the plateaus of caches and memory, found from the data. Floor 2.

No table of cache sizes is asked. A plateau is as many neighbouring sizes as possible whose values agree; where values
move from one to the next, the working set has outgrown a cache.
"""

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from harness.model import Record

# The rate and the latency of a working set, by the case's operation.
OPS = ("cache_read", "load_latency")
# Largest over smallest value of one plateau: measured steps between caches are factors of two and more.
MOST_SPREAD_RATIO = 1.15
# Nearer than this a run is a part of the way to its neighbour, of which three sizes may agree by chance.
LEAST_STEP_RATIO = 1.3
# By sizes half an octave apart these span a factor of two: fewer agree on the way from one plateau to the next too.
LEAST_POINTS = 3
# Beyond it nothing is a size.
_MOST_BYTES = 2**62


@dataclass(frozen=True)
class Plateau:
    """Working sets from `first_bytes` to `last_bytes` at one level: the median of their values, in the values' unit."""

    first_bytes: int
    last_bytes: int
    level: float
    points: int


@dataclass(frozen=True)
class Knee:
    """Between two plateaus: the last size that the faster level still served, and the first at the slower one."""

    before_bytes: int
    after_bytes: int


def find_plateaus(
    sizes_bytes: Sequence[int], values: Sequence[float], most_spread_ratio: float = MOST_SPREAD_RATIO
) -> tuple[Plateau, ...]:
    """The plateaus of a curve, by size. Sizes must grow, values be positive numbers; ValueError otherwise.

    The longest run of sizes is taken first, of equally long ones the flattest, then what is left on either side of it.
    Of two neighbours at nearly one level the one with fewer sizes is dropped.
    """
    if len(sizes_bytes) != len(values) or any(b <= a for a, b in pairwise(sizes_bytes)):
        raise ValueError(
            f"{len(sizes_bytes)} sizes and {len(values)} values: a value for each of growing sizes is needed"
        )
    if not all(0 < value < math.inf for value in values):
        raise ValueError("a plateau is found by ratios: every value must be a positive number")
    spans = _spans(values, 0, len(values), most_spread_ratio)
    return tuple(
        _apart(
            [
                Plateau(sizes_bytes[first], sizes_bytes[last - 1], statistics.median(values[first:last]), last - first)
                for first, last in spans
            ]
        )
    )


def find_knees(plateaus: Sequence[Plateau]) -> tuple[Knee, ...]:
    """What lies between neighbouring plateaus; the ratio is the later level over the earlier."""
    return tuple(Knee(a.last_bytes, b.first_bytes) for a, b in pairwise(plateaus))


def curve_of(records: Sequence[Record], op: str) -> tuple[tuple[int, ...], tuple[float, ...]]:
    """Sizes and values of one operation: bytes per second of `cache_read`, seconds a load of `load_latency`.

    Of a latency the median counts: a sample is the mean of thousands of loads, and some were disturbed. Of several runs
    a size has the median of theirs.
    """
    if op not in OPS:
        raise ValueError(f"{op!r} is measured over no working sets: {' and '.join(OPS)} are")
    name = "rate" if op == "cache_read" else "time_p50"
    points: dict[int, list[float]] = {}
    for record in records:
        metric, size = record.metric(name), record.case.params.get("bytes")
        if record.case.op != op or record.outcome != "measured" or metric is None or metric.value is None:
            continue
        if isinstance(size, int) and 0 < size < _MOST_BYTES and 0 < metric.value < math.inf:
            points.setdefault(size, []).append(metric.value)
    sizes = tuple(sorted(points))
    return sizes, tuple(statistics.median(points[size]) for size in sizes)


def _spans(values: Sequence[float], first: int, last: int, most_spread_ratio: float) -> list[tuple[int, int]]:
    runs = [
        (start, end)
        for start in range(first, last)
        for end in range(start + LEAST_POINTS, last + 1)
        if _spread(values[start:end]) <= most_spread_ratio
    ]
    if not runs:
        return []
    start, end = min(runs, key=lambda run: (run[0] - run[1], _spread(values[run[0] : run[1]])))
    before = _spans(values, first, start, most_spread_ratio)
    return [*before, (start, end), *_spans(values, end, last, most_spread_ratio)]


def _apart(plateaus: list[Plateau]) -> list[Plateau]:
    """Those that remain where each must be a step away from the next."""
    for at, (here, there) in enumerate(pairwise(plateaus)):
        if _spread((here.level, there.level)) < LEAST_STEP_RATIO:
            dropped = at if here.points < there.points else at + 1
            return _apart(plateaus[:dropped] + plateaus[dropped + 1 :])
    return plateaus


def _spread(values: Sequence[float]) -> float:
    return max(values) / min(values)
