"""Run files without their time lines, read several times as fast as by `store`. Floor 3 of the suite.

What comparing many runs needs is validated as strictly as there, the rest is skipped; a file in which any of it is odd
is read and explained by `store`. No verdict of the gate stands on this reading.
"""

import functools
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from harness import store
from harness.errors import HarnessError
from harness.model import (
    Case,
    DeviceFacts,
    Fact,
    Metric,
    Order,
    Outcome,
    PeakSheet,
    QueueKind,
    Record,
    Ruler,
    Run,
    Samples,
    Telemetry,
    Worker,
)

if TYPE_CHECKING:
    from pydantic import TypeAdapter


def load(file: Path) -> Run:
    """A run without time lines, bursts, checks and warnings; whatever is wrong with the file is `store`'s to say."""
    return read_lean(file) or store.load(file)


def read_lean(file: Path) -> Run | None:
    """The lean reading, or `None` where it does not take the file."""
    lean = _lean_file(file)
    return None if lean is None else _lean_run(lean)


@dataclass(frozen=True)
class _LeanSamples:
    launches_per_sample: int
    window_s: float
    timer: str
    queue: QueueKind
    starved: int = 0


@dataclass(frozen=True)
class _LeanTelemetry:
    """`Telemetry` without its time lines, which are most of a run file: the fields that comparing looks at."""

    settled: bool | None = None
    sm_clock_mhz: float | None = None
    nvml_sm_clock_mhz: float | None = None
    power_w: float | None = None
    power_limit_w: float | None = None
    temperature_end_c: float | None = None
    throttle_ratio: Mapping[str, float] = field(default_factory=dict)
    limited_by: str = "unknown"
    pcie_generation: int | None = None
    pcie_lanes: int | None = None
    nvlink_links: int | None = None
    algorithm: str = ""
    protocol: str = ""
    transport: str = ""
    missing: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class _LeanRecord:
    key: str
    family: str
    case: Case
    outcome: Outcome
    position: int
    reason: str = ""
    samples: _LeanSamples | None = None
    telemetry: _LeanTelemetry | None = None
    metrics: tuple[Metric, ...] = ()


@dataclass(frozen=True)
class _LeanStats:
    data: tuple[float, ...]


@dataclass(frozen=True)
class _LeanBenchmark:
    name: str
    extra_info: _LeanRecord
    stats: _LeanStats


@dataclass(frozen=True)
class _LeanSuite:
    name: str
    version: str
    source_hash: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class _LeanWorker:
    number: int
    started_at: str
    ended: str = ""
    ruler: Ruler | None = None


@dataclass(frozen=True)
class _LeanFile:
    schema_version: int
    run_id: str
    datetime: str
    suite: _LeanSuite
    order: Order
    device: DeviceFacts
    sheet: PeakSheet
    environment: Mapping[str, Fact]
    workers: tuple[_LeanWorker, ...]
    partial: str
    site_key: str
    benchmarks: tuple[_LeanBenchmark, ...]
    not_measured: tuple[_LeanRecord, ...]


def _lean_file(file: Path) -> _LeanFile | None:
    try:
        with file.open("rb") as opened:
            data = opened.read(store.SIZE_LIMIT_BYTES + 1)
        if len(data) > store.SIZE_LIMIT_BYTES:
            return None
        found: list[_LeanFile] = _adapter().validate_json(b"[" + data + b"]")
    except (OSError, ValueError):
        return None
    return found[0] if len(found) == 1 and _is_sound(found[0]) else None


def _is_sound(lean: _LeanFile) -> bool:
    """What types cannot say, as in `store`: a schema we read, one record a key, samples that add up to their window."""
    records = [b.extra_info for b in lean.benchmarks] + list(lean.not_measured)
    return (
        1 <= lean.schema_version <= store.SCHEMA_VERSION  # the lean fields are the same since the first
        and lean.suite.name == store.SUITE_NAME
        and len({record.key for record in records}) == len(records)
        and all(record.key == record.case.key for record in records)
        and all(record.outcome != "measured" for record in lean.not_measured)
        and all(_is_sound_benchmark(b) for b in lean.benchmarks)
    )


def _is_sound_benchmark(benchmark: _LeanBenchmark) -> bool:
    record, data = benchmark.extra_info, benchmark.stats.data
    if record.key != benchmark.name or record.outcome != "measured" or record.samples is None or not data:
        return False
    launches, window_s = record.samples.launches_per_sample, record.samples.window_s
    if launches < 1 or window_s <= 0 or min(data) <= 0 or not 0 <= record.samples.starved <= len(data):
        return False
    return abs(sum(data) * launches - window_s) <= store.WINDOW_TOLERANCE_RATIO * window_s


def _lean_run(lean: _LeanFile) -> Run:
    placed = [(b.extra_info, b.stats.data) for b in lean.benchmarks] + [(r, ()) for r in lean.not_measured]
    placed.sort(key=lambda pair: pair[0].position)
    return Run(
        run_id=lean.run_id,
        created_at=lean.datetime,
        schema_version=lean.schema_version,
        suite_version=lean.suite.version,
        order=lean.order,
        device=lean.device,
        sheet=lean.sheet,
        environment=lean.environment,
        workers=tuple(Worker(w.number, w.started_at, w.ended, ruler=w.ruler) for w in lean.workers),
        records=tuple(_lean_record(record, data) for record, data in placed),
        partial=lean.partial,
        site_key=lean.site_key,
        source_hash=lean.suite.source_hash,
    )


def _lean_record(lean: _LeanRecord, data: tuple[float, ...]) -> Record:
    telemetry = None if lean.telemetry is None else Telemetry(**vars(lean.telemetry))
    samples = None if lean.samples is None or not data else Samples(data, **vars(lean.samples))
    return Record(
        lean.key,
        lean.family,
        lean.case,
        lean.outcome,
        lean.reason,
        samples=samples,
        telemetry=telemetry,
        metrics=lean.metrics,
    )


@functools.cache
def _adapter() -> "TypeAdapter[list[_LeanFile]]":
    """Pydantic's validator; in a list, because settings reach standard dataclasses only from outside."""
    try:
        from pydantic import ConfigDict, TypeAdapter
    except ImportError as error:
        raise HarnessError("reading run files needs pydantic: pip install 'pydantic>=2.7'.") from error
    return TypeAdapter(list[_LeanFile], config=ConfigDict(strict=True, extra="ignore", allow_inf_nan=False))
