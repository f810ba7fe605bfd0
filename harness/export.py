"""Runs for other programs: Parquet and CSV of the tidy table, OpenMetrics for a node exporter. Floor 3."""

import io
import math
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from harness import store
from harness.errors import HarnessError
from harness.model import Metric, Record, Run

if TYPE_CHECKING:
    import pandas

# Prometheus names end in base units; what is a count of clock cycles has no unit of its own.
_UNITS = {
    "B/s": "bytes_per_second",
    "FLOP/s": "flop_per_second",
    "s": "seconds",
    "W": "watts",
    "J": "joules",
    "J/B": "joules_per_byte",
    "J/FLOP": "joules_per_flop",
    "ratio": "ratio",
    "cycles": "cycles",
}
_HELP = {
    "rate": "Rate of the case's work; `convention` says what is counted.",
    "time": "Mean device time of one launch.",
    "time_p50": "Median device time of one launch.",
    "time_p99": "99th percentile of the device time of one launch.",
    "spec_ratio": "Rate over the data sheet's dense peak, 0 to 1.",
    "at_clock_ratio": "Share of what the SMs could do in the cycles that passed, 0 to 1.",
    "clock_ratio": "True SM clock over the clock that the data sheet assumes.",
    "cycles": "SM clock cycles of one launch.",
    "power": "Mean power in the measured window.",
    "energy": "Energy of one launch.",
    "energy_per_work": "Energy per byte or FLOP of the case's work.",
    "l2_ratio": "Share of the traffic that L2 could serve at most.",
    "nvml_clock_ratio": "The SM clock that NVML tells over the true one.",
}
_PREFIX = "ofpeak"


@dataclass(frozen=True)
class _Sample:
    """One line of OpenMetrics: of the family `name`, whose unit its name ends in ("" where it has none)."""

    name: str
    unit: str
    help: str
    labels: tuple[tuple[str, str], ...]
    value: float


def table(runs: Sequence[Run]) -> "pandas.DataFrame":
    """`store.frame` with the card's hash, and one type a column: parameters are whole numbers where all of them are.

    A run file may come from anyone: text without control characters.
    """
    if not any(run.records for run in runs):
        raise HarnessError("these runs hold no case, so there is no row to export. Name others.")
    frame = store.frame(runs)
    cards = {run.run_id: _fact(run, "card") for run in runs}
    frame.insert(4, "card", [cards[run_id] for run_id in frame["run_id"]])
    for name in frame.columns:
        if name in ("value", "low", "high", "worker"):
            continue
        if name == "settled":
            frame[name] = frame[name].astype("boolean")
        elif name.startswith("param.") and _is_whole(frame[name]):
            frame[name] = frame[name].astype("Int64")
        else:
            frame[name] = frame[name].map(_text).astype("string")
    return frame


def _is_whole(column: "pandas.Series") -> bool:
    return all(
        _is_missing(value) or (float(value).is_integer()) for value in column if not isinstance(value, str)
    ) and (not any(isinstance(value, str) for value in column))


def _is_missing(value: object) -> bool:
    return value is None or (isinstance(value, float) and math.isnan(value))


def _text(value: object) -> str | None:
    return None if _is_missing(value) else _printable(str(value))


def _printable(text: str) -> str:
    return "".join(c if c.isprintable() else "?" for c in text)


def to_parquet(runs: Sequence[Run]) -> bytes:
    """A row a record and metric, for pandas, DuckDB and whatever else reads Parquet."""
    buffer = io.BytesIO()
    try:
        table(runs).to_parquet(buffer, index=False)
    except ImportError as error:
        raise HarnessError("Parquet needs pyarrow: pip install 'pyarrow>=15', or use --format csv.") from error
    return buffer.getvalue()


def to_csv(runs: Sequence[Run]) -> bytes:
    """The same table; what is unknown is empty."""
    text: str = table(runs).to_csv(index=False, lineterminator="\n")
    return text.encode()


def to_openmetrics(runs: Sequence[Run]) -> bytes:
    """Gauges of the newest run of each card, driver and case, with a base unit in their name; unknown ones are absent.

    Gauges without times of their own, so that a node exporter's textfile collector takes the file as well.
    """
    families: dict[str, list[_Sample]] = {}
    for run, record in _newest(runs):
        for sample in _samples(run, record):
            families.setdefault(sample.name, []).append(sample)
    lines = [line for samples in families.values() for line in _family(samples)]
    return "\n".join([*lines, "# EOF", ""]).encode()


WRITERS: Mapping[str, Callable[[Sequence[Run]], bytes]] = {
    "parquet": to_parquet,
    "csv": to_csv,
    "openmetrics": to_openmetrics,
}


def write_whole(content: bytes, path: Path, option: str = "-o") -> None:
    """Write at once: a collector that reads the path finds the old file or the new one, never a part."""
    store.refuse_special(path)
    unfinished = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with unfinished.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        unfinished.replace(path)
    except OSError as error:
        raise HarnessError(f"cannot write {path}: {error.strerror}. Name another file with {option}.") from error
    finally:
        with suppress(OSError):
            unfinished.unlink()


# OpenMetrics


def _newest(runs: Iterable[Run]) -> Iterator[tuple[Run, Record]]:
    newest: dict[tuple[tuple[str, str], ...], tuple[Run, Record]] = {}
    for run in sorted(runs, key=lambda r: (r.created_at, r.run_id)):
        for record in run.records:
            newest[_labels(run, record)] = (run, record)
    yield from newest.values()


def _samples(run: Run, record: Record) -> Iterator[_Sample]:
    labels = _labels(run, record)
    is_measured = float(record.outcome == "measured")
    yield _Sample(f"{_PREFIX}_case_measured", "", "1 where the newest run has figures, else 0.", labels, is_measured)
    for metric in record.metrics if record.outcome == "measured" else ():
        if metric.value is not None and math.isfinite(metric.value):
            yield _metric_sample(metric, labels)


def _metric_sample(metric: Metric, labels: tuple[tuple[str, str], ...]) -> _Sample:
    stem, unit = _identifier(metric.name.partition(".")[0]), _UNITS.get(metric.unit, _identifier(metric.unit))
    # energy_per_work in J/B: the unit says "per byte" itself.
    base = stem.removesuffix("_per_work").removesuffix(f"_{unit}")
    name = f"{_PREFIX}_{base}_{unit}" if unit and base != unit else f"{_PREFIX}_{base}"
    if stem == "rate":
        labels = (*labels, ("convention", _printable(metric.label)))
    assert metric.value is not None
    return _Sample(name, unit, _HELP.get(stem, "A figure of one case."), labels, metric.value)


def _identifier(text: str) -> str:
    return re.sub(r"[^a-z0-9_]+", "_", text.lower()).strip("_")


def _labels(run: Run, record: Record) -> tuple[tuple[str, str], ...]:
    driver, card = _fact(run, "driver"), _fact(run, "card")
    said = (("gpu", run.device.name), ("card", card), ("key", record.key), ("family", record.family))
    injected = (("injected", " ".join(run.order.inject)),) if run.order.inject else ()
    return tuple((name, _printable(value or "")) for name, value in (*said, ("driver", driver), *injected))


def _fact(run: Run, name: str) -> str | None:
    value = run.fact(name)
    return None if value is None else str(value)


def _family(samples: Sequence[_Sample]) -> Iterator[str]:
    """One family's lines; of two figures under the same labels the first stands, since there can be only one."""
    first = samples[0]
    yield f"# HELP {first.name} {_escaped(first.help)}"
    yield f"# TYPE {first.name} gauge"
    if first.unit:
        yield f"# UNIT {first.name} {first.unit}"
    seen = set()
    for sample in samples:
        if sample.labels not in seen:
            seen.add(sample.labels)
            labels = ",".join(f'{name}="{_escaped(value)}"' for name, value in sample.labels)
            yield f"{sample.name}{{{labels}}} {sample.value!r}"


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace("\n", "\\n").replace('"', '\\"')
