"""The shape at which a GEMM is fastest, found by knowing what a wave is. Floor 2, pure: measuring comes from outside.

A GEMM is cut into tiles, and the SMs take them in waves; a last wave that is not full leaves SMs idle. So the results
worth trying are those whose tiles nearly fill a whole number of waves: some hundred among the thousands of a grid. They
are scouted briefly at one depth, the best of them at others; what leads is screened longer with its neighbours, and the
finalists take turns until the time is over. Only the turns count: whoever was lucky while scouting gains nothing by it.
"""

import functools
import math
import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from harness.statistics import mean_interval

# Output tiles of the fastest kernels on Hopper and later, either way round.
TILES = ((128, 256), (256, 128))
MOST_WAVES = 16
LEAST_FULL_RATIO = 0.95
MOST_ASPECT = 4.0
STEP = 256
# Columns of tiles that leave fewer slots unused are tried, and the next below that make a rounder number.
ROUND_COLUMNS = (1, 4, 8, 16)
FIRST_K = 8192
OTHER_K = (4096, 6144, 12288, 16384, 18432, 20480)
NEIGHBOURING_K = (-2048, -1024, 1024, 2048)
LEAST_K, MOST_K = 2048, 20480
# How many lead from one stage to the next, and the share of the time before the finals after which a stage ends.
SCOUTED_AGAIN = (160, 80)
DEEPENED, SCREENED, NEIGHBOURED = 48, 60, (12, 8, 6)
SCOUT_UNTIL, DEEPEN_UNTIL, SCREEN_UNTIL = 0.53, 0.73, 1.0
LEAST_FINALS_RATIO = 0.25
LEAST_TURNS = 4

Effort = Literal["scout", "screen", "final"]


@dataclass(frozen=True, order=True)
class Shape:
    """out[m, n] = a[m, k] @ b[n, k]^T."""

    m: int
    n: int
    k: int

    @property
    def flop(self) -> int:
        """Of one product."""
        return 2 * self.m * self.n * self.k

    def __str__(self) -> str:
        return f"{self.m}x{self.n}x{self.k}"


@functools.cache
def candidates(sm_count: int, k: int = FIRST_K) -> tuple[Shape, ...]:
    """Shapes of that depth whose tiles nearly fill whole waves, none longer than four times its width."""
    found = set()
    for tile_m, tile_n in TILES:
        for slots in range(sm_count, (MOST_WAVES + 1) * sm_count, sm_count):
            for rows in range(1, slots + 1):
                for columns in {slots // rows // step * step for step in ROUND_COLUMNS}:
                    m, n = rows * tile_m, columns * tile_n
                    is_full = rows * columns >= LEAST_FULL_RATIO * slots
                    if is_full and max(m, n) <= MOST_ASPECT * min(m, n) and m % STEP == n % STEP == 0:
                        found.add((m, n))
    return tuple(Shape(m, n, k) for m, n in sorted(found))


def at_depths(shape: Shape, depths: Iterable[int]) -> list[Shape]:
    """The same result over those depths that are allowed."""
    return [Shape(shape.m, shape.n, k) for k in depths if LEAST_K <= k <= MOST_K and k != shape.k]


def neighbours(shape: Shape) -> list[Shape]:
    """Somewhat shallower and deeper, and turned round."""
    return [*at_depths(shape, (shape.k + step for step in NEIGHBOURING_K)), Shape(shape.n, shape.m, shape.k)]


@dataclass(frozen=True)
class Standing:
    """A finalist: its rate over all of its turns (geometric mean), with the 95 % interval of what chance does."""

    shape: Shape
    flop_per_s: float
    low: float | None
    high: float | None
    turns: int


@dataclass(frozen=True)
class Step:
    """One moment of the search at which a shape was faster than all before it, by brief measurements."""

    at_s: float
    effort: Effort
    shape: Shape
    flop_per_s: float


@dataclass(frozen=True)
class Found:
    """What a search came to. Finalists by rate; `lead_low` is the least by which the first is ahead of the second.

    `is_distinct` says that chance alone does not explain the lead (95 %, paired by turn); `None` with too few turns.
    """

    finalists: tuple[Standing, ...]
    lead_ratio: float | None
    lead_low: float | None
    is_distinct: bool | None
    steps: tuple[Step, ...]
    tried: int
    declared: int
    seconds: float
    refused: Mapping[str, str] = field(default_factory=dict)

    @property
    def best(self) -> Standing | None:
        """The fastest finalist."""
        return self.finalists[0] if self.finalists else None


@dataclass(frozen=True)
class PeakReport:
    """A search on one device, with the conditions under which its rates are true.

    `wrong` are shapes whose result was not right: none of them was timed.
    """

    gpu: str
    dtype: str
    impl: str
    protocol: str
    accumulation: str
    out: str
    conditions: Mapping[str, str]
    found: Found
    total_s: float
    promised_flop_per_s: float | None = None
    sm_clock_mhz: float | None = None
    power_w: float | None = None
    wrong: tuple[str, ...] = ()


class RefusedError(Exception):
    """A shape that cannot be measured; the search goes on without it and tells why."""


Measure = Callable[[Shape, Effort], float]
"""FLOP/s of a shape; raises RefusedError where there is none."""


class Search:
    """One search: scouting, screening, finals. `now` is a clock in seconds, `seconds` the whole budget by it.

    `turn_s` is what a turn of the finals takes, where that is much: time for four of each is kept free.
    """

    def __init__(
        self,
        sm_count: int,
        measure: Measure,
        now: Callable[[], float],
        seconds: float,
        finalists: int = 5,
        turn_s: float = 0.0,
        is_possible: Callable[[Shape], bool] = lambda _: True,
    ) -> None:
        self._measure, self._now, self._finalists = measure, now, finalists
        self._began_s, self._seconds = now(), seconds
        finals_s = max(LEAST_FINALS_RATIO * seconds, LEAST_TURNS * finalists * turn_s)
        self._before_finals_s = max(0.0, seconds - finals_s)
        self._is_possible = is_possible
        self._shapes = [shape for shape in candidates(sm_count) if is_possible(shape)]
        self._readings: dict[Effort, dict[Shape, list[float]]] = {"scout": {}, "screen": {}, "final": {}}
        self._steps: list[Step] = []
        self._refused: dict[str, str] = {}

    def run(self) -> Found:
        """The finalists' standing when the time is over, and how it came to that."""
        self._read_all("scout", self._shapes, SCOUT_UNTIL)
        for count in SCOUTED_AGAIN:
            self._read_all("scout", self._leaders("scout", count), SCOUT_UNTIL)
        leading = self._leaders("scout", DEEPENED)
        self._read_all("scout", [deep for shape in leading for deep in at_depths(shape, OTHER_K)], DEEPEN_UNTIL)
        self._screen()
        turns = self._finals()
        standings = sorted((standing_of(shape, rates) for shape, rates in turns.items()), key=lambda s: -s.flop_per_s)
        lead, low, is_distinct = lead_of([turns[s.shape] for s in standings])
        return Found(
            tuple(standings),
            lead,
            low,
            is_distinct,
            tuple(self._steps),
            len(self._readings["scout"].keys() | self._readings["screen"].keys()),
            len(self._shapes),
            self._elapsed(),
            dict(self._refused),
        )

    def _screen(self) -> None:
        """What scouting found best, longer; then the best of that again with its neighbours, and once more."""
        self._read_all("screen", self._leaders("scout", SCREENED), SCREEN_UNTIL)
        for count in NEIGHBOURED:
            leading = self._leaders("screen", count)
            around = [other for shape in leading for other in neighbours(shape)]
            self._read_all("screen", [*leading, *around], SCREEN_UNTIL)

    def _read_all(self, effort: Effort, shapes: Iterable[Shape], until: float) -> None:
        """Each once, in an order that has nothing to do with the shapes, because the card drifts meanwhile."""
        order = list(dict.fromkeys(shape for shape in shapes if self._is_possible(shape)))
        random.Random(0).shuffle(order)
        for shape in order:
            if self._elapsed() > until * self._before_finals_s:
                return
            self._read(shape, effort)

    def _finals(self) -> dict[Shape, list[float]]:
        """The finalists in turn, in alternating order, until the next round would end too late."""
        finalists = self._leaders("screen", self._finalists) or self._leaders("scout", self._finalists)
        turns: dict[Shape, list[float]] = {shape: [] for shape in finalists}
        longest_s, rounds = 0.0, 0
        while turns and (rounds < LEAST_TURNS or self._elapsed() + longest_s <= self._seconds):
            began_s = self._now()
            for shape in finalists if rounds % 2 == 0 else finalists[::-1]:
                if shape in turns:
                    self._take_turn(shape, turns)
            longest_s = max(longest_s, self._now() - began_s)
            rounds += 1
        return turns

    def _take_turn(self, shape: Shape, turns: dict[Shape, list[float]]) -> None:
        try:
            turns[shape].append(self._measure(shape, "final"))
        except RefusedError as refusal:
            # What cannot be measured to the end is no finalist.
            self._refused[str(shape)] = str(refusal)
            del turns[shape]

    def _read(self, shape: Shape, effort: Effort) -> None:
        if str(shape) in self._refused:
            return
        try:
            rate = self._measure(shape, effort)
        except RefusedError as refusal:
            self._refused[str(shape)] = str(refusal)
            return
        self._readings[effort].setdefault(shape, []).append(rate)
        if rate > max((step.flop_per_s for step in self._steps), default=0.0):
            self._steps.append(Step(self._elapsed(), effort, shape, rate))

    def _leaders(self, effort: Effort, count: int) -> list[Shape]:
        """The shapes with the highest mean of the readings of that effort."""
        pool = {shape: rates for shape, rates in self._readings[effort].items() if str(shape) not in self._refused}
        return sorted(pool, key=lambda shape: -sum(pool[shape]) / len(pool[shape]))[:count]

    def _elapsed(self) -> float:
        return self._now() - self._began_s


def standing_of(shape: Shape, rates: Sequence[float]) -> Standing:
    """Of at least one turn."""
    logs = [math.log(rate) for rate in rates]
    interval = mean_interval(logs)
    low, high = (None, None) if interval is None else (math.exp(interval.low), math.exp(interval.high))
    return Standing(shape, math.exp(sum(logs) / len(logs)), low, high, len(rates))


def lead_of(turns: Sequence[Sequence[float]]) -> tuple[float | None, float | None, bool | None]:
    """How far the first is ahead of the second, the least by which it is (95 %), and whether that is above nothing."""
    if len(turns) < 2:
        return None, None, None
    differences = [math.log(first / second) for first, second in zip(turns[0], turns[1], strict=False)]
    interval = mean_interval(differences)
    lead = math.expm1(sum(differences) / len(differences))
    if interval is None:
        return lead, None, None
    return lead, math.expm1(interval.low), interval.low > 0
