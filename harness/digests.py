"""What comparing needs of a run and nothing more: one line a measured case, without samples and time lines. Floor 3.

A thousand run files of a hundred cases are 100,000 such lines: they fit in memory and in a cache.
"""

from dataclasses import dataclass
from typing import Any

from harness.bounds import find_bound
from harness.model import Case, Metric, Peak, PeakSheet, Record, Run, Telemetry

# Parameters that say under which regime a case ran, not what it did.
REGIME_PARAMETERS = ("clocks",)


@dataclass(frozen=True, slots=True)
class CaseDigest:
    """One measured case of one run.

    `value` is the headline: work a second where `unit` is `B` or `FLOP`, the median time of a launch for a latency,
    else the number itself. `promised_per_s` is the headline's rate if the peak that binds (`bound`) were reached;
    where it is `None`, `promise_reason` says why. `throttle_ratio` is that of the counter that ran most.
    """

    key: str
    family: str
    op: str
    dtype: str
    ranks: int
    kind: str
    value: float | None
    unit: str
    better: str
    label: str
    bound: str
    bound_unit: str
    promised_per_s: float | None
    promise_reason: str
    is_verified: bool
    spec_ratio: float | None
    spec_reason: str
    at_clock_ratio: float | None
    at_clock_reason: str
    energy_per_work_j: float | None
    energy_reason: str
    l2_ratio: float | None
    cycles: float | None
    power_w: float | None
    power_limit_w: float | None
    sm_clock_mhz: float | None
    temperature_c: float | None
    limited_by: str
    throttle: str
    throttle_ratio: float | None
    pcie_generation: int | None
    pcie_lanes: int | None
    settled: bool | None

    @property
    def work_key(self) -> str:
        """The key without what the operator declared: equal for one case at two clocks."""
        return strip_regime(self.key)


@dataclass(frozen=True, slots=True)
class Absent:
    """A case that has no figure in a run, and why."""

    key: str
    family: str
    outcome: str
    reason: str


@dataclass(frozen=True, slots=True)
class RunDigest:
    """One run: what it was measured on, its cases with figures, its cases without."""

    run_id: str
    created_at: str
    suite_version: str
    profile: str
    declare: str
    inject: str
    concurrent: int
    label: str
    partial: str
    device_kind: str
    gpu: str
    memory_bytes: int | None
    card: str
    site_key: str
    driver: str
    power_limit_w: float | None
    sheet_gpu: str
    sheet_match: str
    sheet_reason: str
    cases: tuple[CaseDigest, ...]
    absent: tuple[Absent, ...]


def digest_run(run: Run) -> RunDigest:
    """What comparing needs of a run."""
    limit_w = run.fact("power_limit_w")
    return RunDigest(
        run_id=run.run_id,
        created_at=run.created_at,
        suite_version=run.suite_version,
        profile=run.order.profile,
        declare=run.order.declare,
        inject=" ".join(run.order.inject),
        concurrent=run.order.concurrent,
        label=run.order.label or str(run.fact("label") or ""),
        partial=run.partial,
        device_kind=run.device.kind,
        gpu=run.device.name,
        memory_bytes=run.device.memory_bytes,
        card=str(run.fact("card") or ""),
        site_key=run.site_key,
        driver=str(run.fact("driver") or ""),
        power_limit_w=_number(limit_w),
        sheet_gpu=run.sheet.gpu or "",
        sheet_match=run.sheet.match,
        sheet_reason=run.sheet.reason,
        cases=tuple(_digest(record, run.sheet) for record in run.measured),
        absent=tuple(Absent(r.key, r.family, r.outcome, r.reason) for r in run.not_measured),
    )


def strip_regime(key: str) -> str:
    """`gemm/clocks=locked-1410,m=8` as `gemm/m=8`."""
    op, slash, rest = key.partition("/")
    kept = [pair for pair in rest.split(",") if pair.partition("=")[0] not in REGIME_PARAMETERS]
    return op + slash + ",".join(kept)


def _number(value: Any) -> float | None:
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


def _digest(record: Record, sheet: PeakSheet) -> CaseDigest:
    telemetry = record.telemetry or Telemetry()
    headline = headline_of(record)
    unit = headline.unit if headline else ""
    promise = _promise(record, telemetry, sheet)
    spec, at_clock, energy = (record.metric(n) for n in ("spec_ratio", "at_clock_ratio", "energy_per_work"))
    throttle = max(telemetry.throttle_ratio.items(), key=lambda item: item[1], default=("", None))
    ranks = record.case.params.get("ranks")
    return CaseDigest(
        key=record.key,
        family=record.family,
        op=record.case.op,
        dtype=str(record.case.params.get("dtype", "")),
        ranks=ranks if isinstance(ranks, int) else 1,
        kind=record.case.kind,
        value=_float(headline.value if headline else None),
        unit=unit.removesuffix("/s") if record.case.kind == "throughput" else unit,
        better=headline.better if headline else "",
        label=headline.label if headline and record.case.kind == "throughput" else "",
        bound=promise.bound,
        bound_unit=promise.unit,
        promised_per_s=promise.per_s,
        promise_reason=promise.reason,
        is_verified=promise.is_verified,
        spec_ratio=_value(spec),
        spec_reason=_reason(spec, "a share of a peak"),
        at_clock_ratio=_value(at_clock),
        at_clock_reason=_reason(at_clock, "a share at clock"),
        energy_per_work_j=_value(energy),
        energy_reason=_reason(energy, "energy"),
        l2_ratio=_value(record.metric("l2_ratio")),
        cycles=_value(record.metric("cycles")),
        power_w=_value(record.metric("power")) or _float(telemetry.power_w),
        power_limit_w=_float(telemetry.power_limit_w),
        sm_clock_mhz=_float(telemetry.sm_clock_mhz),
        temperature_c=_float(telemetry.temperature_end_c),
        limited_by=telemetry.limited_by,
        throttle=throttle[0],
        throttle_ratio=_float(throttle[1]),
        pcie_generation=telemetry.pcie_generation,
        pcie_lanes=telemetry.pcie_lanes,
        settled=telemetry.settled,
    )


def headline_of(record: Record) -> Metric | None:
    """The figure by which a case is compared: its first rate, its median time, or its number."""
    names = {"throughput": ("rate",), "latency": ("time_p50", "time"), "quality": ("quality", "value")}
    found = (record.metric(name) for name in names[record.case.kind])
    return next((metric for metric in found if metric is not None and metric.value is not None), None)


@dataclass(frozen=True)
class _Promise:
    bound: str
    unit: str
    per_s: float | None
    reason: str
    is_verified: bool


def _promise(record: Record, telemetry: Telemetry, sheet: PeakSheet) -> _Promise:
    """The headline's rate at the peak that binds, from the run's own sheet."""
    bound = find_bound(record.case, telemetry, sheet)
    unit = bound.work.unit if bound.work else ""
    is_verified = bound.peak is None or bound.peak.is_verified
    reason = bound.reason or _why_no_promise(record, bound.name, sheet)
    if reason or bound.work is None or bound.peak is None:
        return _Promise(bound.name, unit, None, reason or "nothing is known to bind", is_verified)
    per_s = _promised_per_s(record.case, bound.work.amount, bound.peak)
    return _Promise(bound.name, unit, per_s, "", is_verified)


def _why_no_promise(record: Record, bound: str, sheet: PeakSheet) -> str:
    """Why a peak is known and yet promises nothing for this case: no data sheet, a latency, traffic that L2 serves."""
    if record.case.kind != "throughput":
        return f"a {record.case.kind} is held against no peak"
    if sheet.match == "derived" and bound in sheet.peaks:
        return "the peaks are derived from the device's own facts; no data sheet promises them"
    spec = record.metric("spec_ratio")
    return spec.reason if spec is not None and spec.value is None else ""


def _promised_per_s(case: Case, bound_amount: float, peak: Peak) -> float | None:
    """The headline's amount over the least time that the binding work needs."""
    return case.work[0].amount * peak.value / bound_amount if bound_amount > 0 else None


def _value(metric: Metric | None) -> float | None:
    return _float(metric.value if metric else None)


def _float(value: float | None) -> float | None:
    return None if value is None else float(value)


def _reason(metric: Metric | None, what: str) -> str:
    if metric is None:
        return f"the run file holds no {what.removeprefix('a ')}"
    return metric.reason if metric.value is None else ""
