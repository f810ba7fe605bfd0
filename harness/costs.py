"""What work costs in dollars, from measured rates, measured energy and the prices that the operator states. Floor 3."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from harness import units
from harness.compare import Cell, Comparison, Set, quoted
from harness.digests import CaseDigest
from harness.errors import HarnessError
from harness.metrics import L2_LIMIT_RATIO
from harness.rivals import ABBA
from harness.statistics import median_of_known

JOULES_PER_KWH = 3.6e6
SECONDS_PER_HOUR = 3600.0
MEGATOKEN = 1e6

# What people price: an exaFLOP is 1e18 FLOP, a petabyte 1e15 B.
LUMPS = {"FLOP": (1e18, "exaFLOP"), "B": (1e15, "PB")}

# Bytes of a weight in memory. fp8 covers both of its formats.
WEIGHT_BYTES = {"fp32": 4.0, "tf32": 4.0, "bf16": 2.0, "fp16": 2.0, "fp8": 1.0, "fp4": 0.5}


@dataclass(frozen=True)
class Prices:
    """Dollars an hour for one GPU of each set, by label, and a kilowatt-hour; `None` is not stated."""

    usd_per_hour: Mapping[str, float] = field(default_factory=dict)
    usd_per_kwh: float | None = None


@dataclass(frozen=True)
class LanguageModel:
    """A dense decoder: its parameters, how many sequences a step decodes, and the type of its weights."""

    parameters: float
    batch: int
    dtype: str


@dataclass(frozen=True)
class Job:
    """Work to be done: FLOP at a dtype's GEMM rate, bytes at the memory's rate."""

    flop: float = 0.0
    size_bytes: float = 0.0
    dtype: str = "bf16"


@dataclass(frozen=True)
class Bill:
    """Time, energy and dollars of some work on one GPU; what is unknown is `None` with its reason."""

    hours: float | None
    kwh: float | None
    usd: float | None
    reason: str = ""


@dataclass(frozen=True)
class CaseCost:
    """The bill of one exaFLOP or petabyte by one case, one bill a set (`None` where the set lacks the case)."""

    family: str
    key: str
    per: str
    bills: tuple[Bill | None, ...]


@dataclass(frozen=True)
class Estimate:
    """The bill of something stated ("prefill of 1 M tokens"), one a set, and the cases whose rates it rests on."""

    what: str
    bills: tuple[Bill, ...]
    rests_on: tuple[str, ...]


@dataclass(frozen=True)
class Costs:
    """All costs of a comparison, with every assumption that they make. `labels` in the order of the bills."""

    labels: tuple[str, ...]
    cases: tuple[CaseCost, ...]
    estimates: tuple[Estimate, ...]
    assumptions: tuple[str, ...]


@dataclass(frozen=True)
class _Rate:
    """A measured rate to reckon with: work a second, joules a unit of work, and the case that it is of."""

    per_s: float
    joules: float | None
    key: str
    reason: str = ""


def cost(comparison: Comparison, prices: Prices, model: LanguageModel | None = None, job: Job | None = None) -> Costs:
    """Dollars for every case, and for a model's tokens or a job where one is stated."""
    _refuse_prices(comparison.labels, prices)
    cases = tuple(_case_costs(comparison, prices)) if prices.usd_per_hour or prices.usd_per_kwh is not None else ()
    estimates = [
        *(_token_estimates(comparison.sets, model, prices) if model else ()),
        *(_job_estimates(comparison.sets, job, prices) if job else ()),
    ]
    assumptions = (
        *_price_assumptions(comparison.labels, prices),
        *_model_assumptions(comparison.sets, model),
        *_job_assumptions(job),
    )
    return Costs(comparison.labels, cases, tuple(estimates), assumptions)


def _refuse_prices(labels: Sequence[str], prices: Prices) -> None:
    unknown = [label for label in prices.usd_per_hour if label not in labels]
    if unknown:
        raise HarnessError(f"no set is labelled '{unknown[0]}', which has a price. The sets are {quoted(labels)}.")
    unpriced = [label for label in labels if label not in prices.usd_per_hour]
    if prices.usd_per_hour and unpriced:
        raise HarnessError(f"no price for {quoted(unpriced)}: add {unpriced[0]}=DOLLARS to --usd-per-hour.")
    for label, price in (*prices.usd_per_hour.items(), ("a kWh", prices.usd_per_kwh)):
        if price is not None and not (math.isfinite(price) and price >= 0):
            raise HarnessError(f"the price of {label} is {price}; a price is a number of dollars, 0 or more.")


def _case_costs(comparison: Comparison, prices: Prices) -> Iterator[CaseCost]:
    for row in comparison.rows:
        shown = next(cell for cell in row.cells if cell is not None)
        # Several GPUs share one case's work and power: that is no price of one GPU.
        if shown.unit in LUMPS and not _is_of_several_gpus(row.key):
            amount, per = LUMPS[shown.unit]
            pairs = zip(comparison.labels, row.cells, strict=True)
            bills = tuple(
                None if c is None or c.unit != shown.unit else _bill(label, prices, *_spent(c, amount))
                for label, c in pairs
            )
            yield CaseCost(row.family, row.key, per, bills)


def _is_of_several_gpus(key: str) -> bool:
    """Whether ranks or a pair are at work: one GPU may stand at both ends of a pair."""
    params = _params(key)
    return "ranks" in params or params.get("from") != params.get("to")


def _is_sustained(case: CaseDigest) -> bool:
    """Whether launches followed one another at the card's own equilibrium; other tools let it rest between them."""
    return _params(case.key).get("protocol", ABBA) == ABBA


def _params(key: str) -> dict[str, str]:
    pairs = (pair.partition("=") for pair in key.partition("/")[2].split(","))
    return {name: value for name, _, value in pairs}


def _spent(cell: Cell, amount: float) -> tuple[float | None, float | None, str]:
    seconds = amount / cell.rate if cell.rate else None
    joules = None if cell.energy_per_work_j is None else amount * cell.energy_per_work_j
    return seconds, joules, cell.reasons.get("energy_per_work_j", "")


def _bill(label: str, prices: Prices, seconds: float | None, joules: float | None, reason: str = "") -> Bill:
    """Hourly price x time + energy x price. Where energy has a price and is unknown, so are the dollars."""
    hours = None if seconds is None else seconds / SECONDS_PER_HOUR
    kwh = None if joules is None else joules / JOULES_PER_KWH
    if hours is None:
        return Bill(None, kwh, None, reason or "the rate is unknown")
    usd = prices.usd_per_hour[label] * hours if prices.usd_per_hour else 0.0
    if prices.usd_per_kwh is None:
        return Bill(hours, kwh, usd if prices.usd_per_hour else None, "" if prices.usd_per_hour else "no price stated")
    if kwh is None:
        return Bill(hours, None, None, reason or "the energy is unknown")
    return Bill(hours, kwh, usd + kwh * prices.usd_per_kwh)


# Tokens


def _token_estimates(sets: Sequence[Set], model: LanguageModel, prices: Prices) -> Iterator[Estimate]:
    _refuse_model(model)
    gemms, reads = _gemm_rates(sets, model.dtype), _memory_rates(sets)
    flop, weights_bytes = 2 * model.parameters, model.parameters * WEIGHT_BYTES[model.dtype]
    prefill = [_time_of(MEGATOKEN * flop, gemm) for gemm in gemms]
    weights = [_time_of(MEGATOKEN * weights_bytes / model.batch, read) for read in reads]
    decode = [_slower(*pair) for pair in zip(weights, prefill, strict=True)]
    yield _estimate("prefill, 1 M tokens", sets, prices, prefill, gemms)
    yield _estimate(f"decode, 1 M tokens, batch {model.batch}", sets, prices, decode, [*gemms, *reads])


def _refuse_model(model: LanguageModel) -> None:
    if model.dtype not in WEIGHT_BYTES:
        raise HarnessError(f"unknown dtype '{model.dtype}'. Use one of {', '.join(WEIGHT_BYTES)}.")
    if not (math.isfinite(model.parameters) and model.parameters > 0) or model.batch < 1:
        raise HarnessError("a model has more than 0 parameters and a batch of at least 1.")


_Spent = tuple[float | None, float | None, str]


def _time_of(amount: float, rate: _Rate) -> _Spent:
    if not rate.per_s:
        return None, None, rate.reason
    return amount / rate.per_s, None if rate.joules is None else amount * rate.joules, rate.reason


def _slower(first: _Spent, second: _Spent) -> _Spent:
    """Whichever takes longer bounds a step; where either is unknown nobody knows which."""
    if first[0] is None or second[0] is None:
        return first if first[0] is None else second
    return max(first, second, key=lambda spent: spent[0] or 0.0)


def _gemm_rates(sets: Sequence[Set], dtype: str) -> list[_Rate]:
    """The fastest GEMM of that type: what software gets today at its best, not what a model's own shapes will.

    One that goes on counts; another tool's, which clocks higher, only where a set has no other: then for all sets.
    """

    def is_typed(case: CaseDigest) -> bool:
        return case.op == "gemm" and case.unit == "FLOP" and case.dtype.partition("_")[0] == dtype

    sustained = _fastest(sets, lambda case: is_typed(case) and _is_sustained(case), f"no GEMM in {dtype}")
    return sustained if all(rate.per_s for rate in sustained) else _fastest(sets, is_typed, f"no GEMM in {dtype}")


def _memory_rates(sets: Sequence[Set]) -> list[_Rate]:
    """The fastest read of memory, and a copy only where there is no read: decoding reads weights."""

    def is_memory(case: CaseDigest) -> bool:
        return case.unit == "B" and case.bound == "memory" and (case.l2_ratio or 0.0) <= L2_LIMIT_RATIO

    reads = _fastest(sets, lambda case: case.op == "read" and is_memory(case), "no read of its memory")
    copies = _fastest(sets, lambda case: case.op == "copy" and is_memory(case), "no read and no copy of its memory")
    # All sets by one operation: a read beside a copy would be another comparison.
    return reads if all(rate.per_s for rate in reads) else copies


def _fastest(sets: Sequence[Set], is_wanted: Callable[[CaseDigest], bool], lack: str) -> list[_Rate]:
    """Each set's fastest wanted case, of those that all sets have; where they share none, of its own."""
    found = [{key: cases for key, cases in one.cases().items() if is_wanted(cases[0])} for one in sets]
    common = set.intersection(*(set(cases) for cases in found))
    return [
        max((_rate(key, cases[key]) for key in common or cases), key=lambda rate: (rate.per_s, rate.key), default=None)
        or _Rate(0.0, None, "", f"'{one.label}' has {lack}")
        for one, cases in zip(sets, found, strict=True)
    ]


def _rate(key: str, cases: Sequence[CaseDigest]) -> _Rate:
    energy = median_of_known(c.energy_per_work_j for c in cases)
    return _Rate(
        median_of_known(c.value for c in cases) or 0.0,
        energy,
        key,
        "" if energy is not None else cases[0].energy_reason,
    )


# Jobs


def _job_estimates(sets: Sequence[Set], job: Job, prices: Prices) -> Iterator[Estimate]:
    for amount in (job.flop, job.size_bytes):
        if not (math.isfinite(amount) and amount >= 0):
            raise HarnessError(f"a job of {amount:g} cannot be: state FLOP and bytes, 0 or more.")
    if job.dtype not in WEIGHT_BYTES:
        raise HarnessError(f"unknown dtype '{job.dtype}'. Use one of {', '.join(WEIGHT_BYTES)}.")
    parts: list[tuple[str, float, list[_Rate]]] = []
    if job.flop:
        said = f"{units.significant(job.flop / 1e18)} exaFLOP in {job.dtype}"
        parts.append((said, job.flop, _gemm_rates(sets, job.dtype)))
    if job.size_bytes:
        said = f"{units.significant(job.size_bytes / 1e15)} PB of memory traffic"
        parts.append((said, job.size_bytes, _memory_rates(sets)))
    if not parts:
        raise HarnessError("a job needs work: state --job-flop, --job-bytes or both.")
    for said, amount, rates in parts:
        yield _estimate(f"job: {said}", sets, prices, [_time_of(amount, rate) for rate in rates], rates)
    if len(parts) > 1:
        spent = [_sum([_time_of(amount, rates[i]) for _, amount, rates in parts]) for i in range(len(sets))]
        yield _estimate("job: both, one after the other", sets, prices, spent, [])


def _estimate(
    what: str, sets: Sequence[Set], prices: Prices, spent: Sequence[_Spent], rates: Sequence[_Rate]
) -> Estimate:
    bills = tuple(_bill(one.label, prices, *each) for one, each in zip(sets, spent, strict=True))
    return Estimate(what, bills, tuple(dict.fromkeys(rate.key for rate in rates if rate.key)))


def _sum(parts: Sequence[_Spent]) -> _Spent:
    seconds, joules = ([part[i] for part in parts] for i in (0, 1))
    return _total(seconds), _total(joules), next((part[2] for part in parts if part[2]), "")


def _total(values: Sequence[Any]) -> float | None:
    """A sum of which a part is unknown is unknown."""
    return None if any(value is None for value in values) else float(sum(values))


# What every figure here assumes


def _price_assumptions(labels: Sequence[str], prices: Prices) -> Iterator[str]:
    said = [f"{label} ${prices.usd_per_hour[label]:g}/h" for label in labels if label in prices.usd_per_hour]
    if said:
        yield f"one GPU costs: {', '.join(said)}, busy all of the time"
    if prices.usd_per_kwh is not None:
        yield f"a kWh costs ${prices.usd_per_kwh:g}; it comes on top of the hourly price"
    yield "energy is the GPU's own, gross; its host, its cooling and what the supply loses are not in it"
    yield "dollars = hours x hourly price + kWh x price of a kWh; hours = work / measured rate"


def _model_assumptions(sets: Sequence[Set], model: LanguageModel | None) -> Iterator[str]:
    if model is None:
        return
    per_weight = WEIGHT_BYTES[model.dtype]
    weights_bytes = model.parameters * per_weight
    yield (
        f"a dense model of {units.significant(model.parameters / 1e9)} billion parameters in {model.dtype}: "
        f"2 x parameters = {units.significant(2 * model.parameters / 1e9)} GFLOP a token; no attention, no KV cache"
    )
    yield "prefill: seconds a token = 2 x parameters / rate of the fastest GEMM"
    yield (
        f"decode: seconds a token = the longer of parameters x {per_weight:g} B / batch / rate of the fastest read "
        f"(weights are read once a step for {model.batch} sequences) and prefill's; so both are lower bounds"
    )
    small = [one.label for one in sets if (one.runs[0].memory_bytes or math.inf) < weights_bytes]
    if small:
        yield (
            f"the weights take {units.significant(weights_bytes / 1e9)} GB, more than one GPU of {quoted(small)} "
            "holds: there the figures are GPU time of a model spread over several, links left out"
        )


def _job_assumptions(job: Job | None) -> Iterator[str]:
    if job is not None:
        yield "a job runs on one GPU at the rates of the fastest GEMM of its type and the fastest read that all have"
        if job.flop and job.size_bytes:
            yield "FLOP and bytes are done one after the other; where they overlap, the longer of the two is the least"
