"""An external power meter beside what the card says of itself: the only check of its sensor's gain. Floor 3."""

import csv
import datetime
import io
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from harness.errors import HarnessError
from harness.model import Record, Run
from harness.statistics import hold_mean

SIZE_LIMIT_BYTES = 64 * 2**20
# A meter that reads once a second still tells the mean of a window of two, if the readings lie in it.
LEAST_READINGS = 2
_TIME_COLUMNS = ("time", "utc", "timestamp", "unix_s")
_WATT_COLUMNS = ("power_w", "watts", "w")


@dataclass(frozen=True)
class MeterRecord:
    """What a meter wrote: Unix seconds and watts, in the order of time."""

    times_s: tuple[float, ...]
    watts: tuple[float, ...]


@dataclass(frozen=True)
class Beside:
    """One case's window by the meter and by the card; `ratio` is the card over the meter, `None` with its reason."""

    key: str
    meter_w: float | None
    readings: int
    card_w: float | None
    ratio: float | None
    reason: str = ""


def read_meter(path: Path) -> MeterRecord:
    """A CSV with a head: a column `time` (ISO 8601 with its zone, or Unix seconds) and a column `power_w`.

    Raises HarnessError with the line for what cannot be read, or runs backwards.
    """
    try:
        with path.open("rb") as file:
            data = file.read(SIZE_LIMIT_BYTES + 1)
        text = data.decode("utf-8-sig")
    except OSError as error:
        raise HarnessError(f"cannot read {path}: {error.strerror}. Name a meter's CSV.") from error
    except UnicodeDecodeError as error:
        raise HarnessError(f"{path} is no UTF-8 text. Export the meter's record as CSV.") from error
    if len(data) > SIZE_LIMIT_BYTES:
        raise HarnessError(f"{path} is larger than {SIZE_LIMIT_BYTES // 2**20} MiB. Cut the record to the run.")
    rows = csv.DictReader(io.StringIO(text))
    names = {name.strip().lower(): name for name in rows.fieldnames or () if name}
    time_name = next((names[name] for name in _TIME_COLUMNS if name in names), None)
    watt_name = next((names[name] for name in _WATT_COLUMNS if name in names), None)
    if time_name is None or watt_name is None:
        raise HarnessError(f"{path} has no columns 'time' and 'power_w' in its first line. Add a head to the CSV.")
    times: list[float] = []
    watts: list[float] = []
    try:
        for row in rows:
            times.append(_unix_s(row[time_name] or ""))
            watts.append(_finite(row[watt_name] or ""))
            if len(times) > 1 and times[-1] < times[-2]:
                raise ValueError("its time lies before the line above")
    except (ValueError, csv.Error) as error:
        raise HarnessError(f"{path}, line {rows.line_num}: {str(error)[:120]}.") from error
    if not times:
        raise HarnessError(f"{path} holds no reading.")
    return MeterRecord(tuple(times), tuple(watts))


def lay_beside(meter: MeterRecord, run: Run) -> list[Beside]:
    """Every measured case of a run that says when its window began."""
    return [_beside(meter, record) for record in run.measured]


def _beside(meter: MeterRecord, record: Record) -> Beside:
    telemetry, samples = record.telemetry, record.samples
    if telemetry is None or samples is None or not telemetry.window_began_at:
        return Beside(record.key, None, 0, None, None, "the run file does not say when the window began")
    try:
        start_s = _unix_s(telemetry.window_began_at)
    except ValueError:
        return Beside(record.key, None, 0, None, None, "the run file does not say when the window began")
    end_s = start_s + samples.window_s / (telemetry.busy_ratio or 1.0)
    readings = sum(1 for at_s in meter.times_s if start_s <= at_s <= end_s)
    if readings < LEAST_READINGS:
        reason = f"{readings} readings of the meter lie in the window of {end_s - start_s:.1f} s"
        return Beside(record.key, None, readings, telemetry.power_w, None, reason)
    meter_w = hold_mean(meter.times_s, meter.watts, start_s, end_s)
    if meter_w is None:
        return Beside(record.key, None, readings, telemetry.power_w, None, "the meter's record begins in the window")
    if telemetry.power_w is None:
        reason = telemetry.missing.get("power_w", "the card's power is unknown")
        return Beside(record.key, meter_w, readings, None, None, reason)
    if meter_w <= 0:
        return Beside(record.key, meter_w, readings, telemetry.power_w, None, "the meter reads nothing")
    return Beside(record.key, meter_w, readings, telemetry.power_w, telemetry.power_w / meter_w)


def median_ratio(found: Sequence[Beside]) -> float | None:
    """The card over the meter in the middle of all cases that have both."""
    ratios = sorted(row.ratio for row in found if row.ratio is not None)
    return ratios[len(ratios) // 2] if ratios else None


def _unix_s(text: str) -> float:
    try:
        return _finite(text)
    except ValueError:
        pass
    try:
        when = datetime.datetime.fromisoformat(text.strip())
    except ValueError as error:
        raise ValueError(f"'{text[:40]}' is neither ISO 8601 nor Unix seconds") from error
    if when.tzinfo is None:
        raise ValueError(f"'{text[:40]}' has no time zone")
    return when.timestamp()


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"'{text[:40]}' is not a finite number")
    return value
