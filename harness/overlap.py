"""What it is worth to compute beside communicating: a step's four times, what was hidden, and at which price. Floor 2.

A step is a GEMM and a collective of the same size as its result, measured in four modes of one run: alone (`compute`,
`communicate`), in turn (`serial`) and at once (`overlap`). Every figure here follows from records of one run; over
several runs it is the median of what each run says.
"""

import math
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from harness.model import Better, Case, Metric, Record, Run
from harness.statistics import mean_interval

MODES = ("compute", "communicate", "serial", "overlap")
# Bus bytes over the collective's size for n ranks: nccl-tests, doc/PERFORMANCE.md and src/alltoall.cu.
BUS_FACTORS: Mapping[str, Callable[[int], float]] = {
    "gemm_all_reduce": lambda n: 2 * (n - 1) / n,
    "gemm_all_to_all": lambda n: (n - 1) / n,
}
_COUNTS = ("m", "n", "k", "bytes", "ranks")
# Beyond these nothing is a size or a time.
_MOST_COUNT = 2**62
_LEAST_S, _MOST_S = 1e-12, 1e9


@dataclass(frozen=True)
class Step:
    """One step, over so many runs. `key` is that of its cases without their mode, `series` what all its ratios share.

    Metrics, all in base units, each unknown with its reason where a mode it needs was not measured:

    - `time.MODE`, `power.MODE` (all GPUs together), `rate.compute` (FLOP/s of one GPU), `rate.communicate` (bus
      bytes/s).
    - `hidden_ratio`: (compute + communicate - overlap) / the shorter of compute and communicate. 1 where the shorter
      costs nothing, 0 where nothing is gained, below 0 where both at once take longer than one after the other.
    - `computing_ratio`: compute / overlap, the share of the step that computing alone would take.
    - `balance_ratio`: communicate / compute; above 1 the step is communication-bound.
    - `serial_ratio`: serial / (compute + communicate). Below 1 where a card that rests from computing while it
      communicates clocks higher afterwards.
    - `gemm_slowdown_ratio`, `collective_slowdown_ratio`: a part's own time inside the overlapped step over its own time
      alone, minus 1.
    - `gemm_clock_ratio`: the SMs' true clock while overlapped over that of the GEMM alone, which is in its slowdown.
    """

    key: str
    op: str
    series: str
    flop: float
    bus_bytes: float
    runs: int
    metrics: Mapping[str, Metric]

    @property
    def flop_per_byte(self) -> float:
        """FLOP for each byte that a link must carry."""
        return self.flop / self.bus_bytes

    def value(self, name: str) -> float | None:
        """The metric's value; `None` is unknown."""
        return self.metrics[name].value


@dataclass(frozen=True)
class Turn:
    """Where the steps of a series turn communication-bound: below so many FLOP a bus byte, between two measured steps.

    Where none was found, `reason` says what the steps are instead.
    """

    series: str
    flop_per_byte: float | None
    low: float | None = None
    high: float | None = None
    reason: str = ""


def steps_of(runs: Sequence[Run]) -> tuple[Step, ...]:
    """Every step of which any mode was measured, in the order in which they were."""
    found: dict[str, list[dict[str, Record]]] = {}
    for run in runs:
        in_run: dict[str, dict[str, Record]] = {}
        for record in run.records:
            if _is_of_step(record):
                in_run.setdefault(_step_key(record), {})[str(record.case.params["mode"])] = record
        for key, modes in in_run.items():
            if any(record.outcome == "measured" for record in modes.values()):
                found.setdefault(key, []).append(modes)
    return tuple(_step(key, of_runs) for key, of_runs in found.items())


def turns_of(steps: Sequence[Step]) -> tuple[Turn, ...]:
    """For each series of steps, where its collective takes as long as its GEMM, both alone."""
    series: dict[str, list[Step]] = {}
    for step in steps:
        series.setdefault(step.series, []).append(step)
    return tuple(_turn(name, sorted(own, key=lambda s: s.flop_per_byte)) for name, own in series.items())


def work_of(case: Case) -> tuple[float, float]:
    """FLOP of the GEMM on each GPU and bus bytes of each GPU's link, which not every mode declares, from parameters."""
    m, n, k, size_bytes, ranks = (int(case.params[name]) for name in _COUNTS)
    return 2.0 * m * n * k, BUS_FACTORS[case.op](ranks) * size_bytes


def _is_of_step(record: Record) -> bool:
    params = record.case.params
    counts = [params.get(name) for name in _COUNTS]
    return (
        record.case.op in BUS_FACTORS
        and params.get("mode") in MODES
        and all(type(count) is int and 0 < count < _MOST_COUNT for count in counts)
        and int(params["ranks"]) > 1
    )


def _step_key(record: Record) -> str:
    return record.key.replace(f"mode={record.case.params['mode']},", "")


def _step(key: str, runs: Sequence[Mapping[str, Record]]) -> Step:
    case = next(iter(runs[0].values())).case
    flop, bus_bytes = work_of(case)
    each = [{metric.name: metric for metric in _metrics(modes, flop, bus_bytes)} for modes in runs]
    words = [case.op.removeprefix("gemm_"), *(case.params.get(name, "") for name in ("dtype", "impl"))]
    if (launch := case.params.get("launch", "queued")) != "queued":
        words.append(launch)
    return Step(
        key=key,
        op=case.op,
        series=" ".join(
            [*(str(word) for word in words if word), f"{case.params['ranks']} ranks, {case.params['m']} rows"]
        ),
        flop=flop,
        bus_bytes=bus_bytes,
        runs=len(runs),
        metrics={name: _over_runs([metrics[name] for metrics in each]) for name in each[0]},
    )


def _metrics(modes: Mapping[str, Record], flop: float, bus_bytes: float) -> Iterator[Metric]:
    """All figures of a step in one run."""
    times = {mode: _of_record(modes, mode, "time", f"time.{mode}", "s", "lower") for mode in MODES}
    compute, communicate, overlap = (times[mode] for mode in ("compute", "communicate", "overlap"))
    yield from times.values()
    yield from (_of_record(modes, mode, "power", f"power.{mode}", "W") for mode in MODES)
    yield _derived("rate.compute", "FLOP/s", "higher", (compute,), lambda c: flop / c)
    yield _derived("rate.communicate", "B/s", "higher", (communicate,), lambda m: bus_bytes / m)
    alone = (compute, communicate)
    yield _derived("hidden_ratio", "ratio", "higher", (*alone, overlap), lambda c, m, o: (c + m - o) / min(c, m))
    yield _derived("computing_ratio", "ratio", "higher", (compute, overlap), lambda c, o: c / o)
    yield _derived("balance_ratio", "ratio", "", alone, lambda c, m: m / c)
    yield _derived("serial_ratio", "ratio", "", (*alone, times["serial"]), lambda c, m, s: s / (c + m))
    for part, mode in (("gemm", "compute"), ("collective", "communicate")):
        within, by_itself = (_of_record(modes, at, f"time.{part}", part, "s") for at in ("overlap", mode))
        yield _derived(f"{part}_slowdown_ratio", "ratio", "lower", (within, by_itself), lambda w, a: w / a - 1)
    clocks = (_clock(modes, "overlap"), _clock(modes, "compute"))
    yield _derived("gemm_clock_ratio", "ratio", "", clocks, lambda w, a: w / a)


def _of_record(
    modes: Mapping[str, Record], mode: str, metric: str, name: str, unit: str, better: Better = ""
) -> Metric:
    """A metric of the record of that mode under a name of the step's, or why there is none."""
    record = modes.get(mode)
    if record is None:
        return Metric(name, None, unit, better, reason=f"mode={mode} was not asked for")
    if record.outcome != "measured":
        why = f": {record.reason}" if record.reason else ""
        return Metric(name, None, unit, better, reason=f"mode={mode} is {record.outcome.replace('_', ' ')}{why}")
    found = record.metric(metric)
    if found is None or found.value is None:
        why = found.reason if found and found.reason else f"mode={mode} has no '{metric}'"
        return Metric(name, None, unit, better, reason=why)
    if not _LEAST_S < found.value < _MOST_S:
        return Metric(name, None, unit, better, reason=f"the '{metric}' of mode={mode} cannot be")
    return Metric(name, found.value, unit, better, found.low, found.high)


def _clock(modes: Mapping[str, Record], mode: str) -> Metric:
    """The true clock of a mode, the slowest rank's."""
    record = modes.get(mode)
    telemetry = record.telemetry if record is not None else None
    clock_mhz = telemetry.sm_clock_mhz if telemetry else None
    if clock_mhz is None or not _LEAST_S < clock_mhz < _MOST_S:
        why = telemetry.missing.get("sm_clock_mhz", "") if telemetry else ""
        return Metric("clock", None, "MHz", reason=why or "the true clock was not measured")
    return Metric("clock", clock_mhz, "MHz")


def _derived(name: str, unit: str, better: Better, parts: Sequence[Metric], formula: Callable[..., float]) -> Metric:
    """A figure of several, with the 95 % interval that theirs leave it, each moved by itself; they are independent."""
    unknown = next((part for part in parts if part.value is None), None)
    if unknown is not None:
        return Metric(name, None, unit, better, reason=unknown.reason)
    values = [part.value for part in parts if part.value is not None]
    value = formula(*values)
    halves = []
    for at, part in enumerate(parts):
        if part.low is None or part.high is None or part.low <= 0:
            return Metric(name, value, unit, better)
        low, high = (formula(*values[:at], moved, *values[at + 1 :]) for moved in (part.low, part.high))
        halves.append((high - low) / 2)
    half = math.hypot(*halves)
    return Metric(name, value, unit, better, value - half, value + half)


def _over_runs(metrics: Sequence[Metric]) -> Metric:
    """The median over runs; its interval is that of their mean from four on, else the widest of any run."""
    known = [metric for metric in metrics if metric.value is not None]
    if len(metrics) == 1 or not known:
        return metrics[0]
    values = [metric.value for metric in known if metric.value is not None]
    first, between = known[0], mean_interval(values)
    low, high = (between.low, between.high) if between is not None else _widest(known)
    return Metric(first.name, statistics.median(values), first.unit, first.better, low, high)


def _widest(metrics: Sequence[Metric]) -> tuple[float | None, float | None]:
    lows = [metric.low for metric in metrics if metric.low is not None]
    highs = [metric.high for metric in metrics if metric.high is not None]
    return min(lows, default=None), max(highs, default=None)


def _turn(name: str, steps: Sequence[Step]) -> Turn:
    """Between two neighbours the balance is taken as a power of the ratio, as it is while both rates stay."""
    placed = [(s.flop_per_byte, balance) for s in steps if (balance := s.value("balance_ratio")) is not None]
    if not placed:
        return Turn(name, None, reason="GEMM and collective alone were not both measured")
    low, high = placed[0][0], placed[-1][0]
    where = f"at {low:.0f} FLOP a bus byte" if low == high else f"from {low:.0f} to {high:.0f} FLOP a bus byte"
    turns = [(left, right) for left, right in pairwise(placed) if (left[1] > 1) != (right[1] > 1)]
    if not turns:
        kind = "communication-bound" if placed[0][1] > 1 else "compute-bound"
        return Turn(name, None, low, high, f"{kind} {where}")
    if len(turns) > 1:
        return Turn(name, None, low, high, f"the longer of the two changes {len(turns)} times {where}")
    (left, right) = turns[0]
    if left[1] < right[1]:
        return Turn(name, None, left[0], right[0], f"the collective gains on the GEMM with more to compute, {where}")
    share = math.log(left[1]) / math.log(left[1] / right[1])
    return Turn(name, left[0] * (right[0] / left[0]) ** share, left[0], right[0])
