"""Soaks as a table: what minutes of full load did to rate, clocks, power and temperature, and when it throttled."""

from collections.abc import Iterator, Sequence

from harness import units
from harness.model import Metric, Record, Run, Telemetry
from harness.report.header import by_machine
from harness.report.sections import Block, Section
from harness.report.text import clean

_HEADS = (
    *("rate", "drift/a minute", "±/95 %", "first/throttle", "power/capped"),
    *("°C/from", "/to", "/most", "W", "MHz/true", "/NVML"),
)


def soak_sections(runs: Sequence[Run]) -> tuple[Section, ...]:
    """What there is of them on each card and environment: a line a case and run."""
    return tuple(section for where, alike in by_machine(runs) for section in _sections(alike, where))


def _sections(runs: Sequence[Run], where: str) -> Iterator[Section]:
    cases: dict[str, list[Record]] = {}
    for run in runs:
        for record in run.measured:
            if record.case.is_soak and record.case.work:
                cases.setdefault(record.key, []).append(record)
    if not cases:
        return
    blocks = tuple(Block(clean(key), tuple(_cells(record) for record in same)) for key, same in cases.items())
    records = [record for same in cases.values() for record in same]
    subtitle = "one load for minutes, from its first launch on"
    on = f", on {where}" if where else ""
    yield Section("soak", subtitle + on, _HEADS, blocks, tuple(_remarks(records)))


def _cells(record: Record) -> tuple[str, ...]:
    telemetry = record.telemetry or Telemetry()
    rate, drift = _metric(record, "rate"), _metric(record, "drift_per_minute")
    work, start_c, end_c = record.case.work[0], telemetry.temperature_start_c, telemetry.temperature_end_c
    return (
        units.format_rate(rate.value, work.unit),
        drift_text(drift),
        half_width_text(drift),
        first_text(record, "throttle"),
        capped_text(record),
        units.format_number(start_c),
        units.format_number(end_c),
        units.format_number(_metric(record, "temperature_max").value),
        units.format_number(telemetry.power_w),
        units.format_number(telemetry.sm_clock_mhz),
        units.format_number(telemetry.nvml_sm_clock_mhz),
    )


def drift_text(drift: Metric) -> str:
    """The drift with its sign: `-0.052 %`."""
    return units.UNKNOWN if drift.value is None else f"{100 * drift.value:+.3f} %"


def half_width_text(drift: Metric) -> str:
    """Half of its 95 % interval."""
    if drift.low is None or drift.high is None:
        return units.UNKNOWN
    return f"{100 * (drift.high - drift.low) / 2:.3f} %"


def first_text(record: Record, what: str) -> str:
    """When it came first, `never` where counters say that it did not come at all, or the dash where nobody knows."""
    first, total = _metric(record, f"first_{what}"), _metric(record, f"{what}_total")
    if first.value is not None:
        return f"{first.value:.0f} s" if first.value >= 10 else f"{first.value:.1f} s"
    return "never" if total.value == 0 else units.UNKNOWN


def capped_text(record: Record) -> str:
    """The share of the load in which the power limit held the clock down."""
    total, timeline = _metric(record, "power_cap_total").value, record.telemetry.timeline if record.telemetry else {}
    ends_s = [end_s for end_s in timeline.get("time_s", ()) if end_s]
    return units.UNKNOWN if total is None or not ends_s else units.format_percent(total / ends_s[-1])


def _metric(record: Record, name: str) -> Metric:
    """The figure, or one that is unknown: a file may lack it."""
    return record.metric(name) or Metric(name, None, "", reason="not in the run file")


def _remarks(records: Sequence[Record]) -> Iterator[str]:
    """Over what a drift holds, what throttled and when, and why figures are missing; each said once."""
    said: dict[str, None] = {}
    for record in records:
        drift, throttle = _metric(record, "drift_per_minute"), _metric(record, "first_throttle")
        if drift.value is None:
            said[f"{record.key} has no drift: {drift.reason}"] = None
        else:
            said[f"drift: the slope of the rate {drift.label}; the other figures are of the whole load"] = None
        if throttle.value is not None:
            total = _metric(record, "throttle_total")
            held = f"{units.significant(total.value)} s in all" if total.value is not None else total.reason
            said[f"{record.key} throttled: {throttle.label}; {held}"] = None
        elif first_text(record, "throttle") == units.UNKNOWN:
            said[f"no first throttle: {throttle.reason}"] = None
    return (clean(remark) for remark in said)
