"""The two sides of a gate: run files named as files, folders or globs, each run reduced to what the gate looks at."""

import glob
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness import store
from harness.errors import HarnessError
from harness.model import Case, Fact, Record, Run, Samples
from harness.statistics import percentiles

# Beyond these nothing is a time of a launch or an energy of a unit of work.
LEAST, MOST = 1e-30, 1e30
LEAST_S, MOST_S = 1e-10, 1e5
_TAIL_PERCENT = 99


@dataclass(frozen=True, slots=True)
class Nature:
    """What a case is besides its key: two sides of a case must agree in it."""

    family: str
    kind: str
    works: tuple[tuple[float, str], ...]
    is_on_host: bool
    is_between_gpus: bool = False

    @property
    def words(self) -> str:
        """The nature in a message: `throughput of 6e+09 B`."""
        amounts = ", ".join(f"{amount:g} {unit}" for amount, unit in self.works)
        return f"{self.kind} of {amounts}" if amounts else self.kind


@dataclass(frozen=True, slots=True)
class Reading:
    """One case of one run. `log_s` is L; `log_tail` is that of the 99th percentile over the median of its samples."""

    nature: Nature
    log_s: float
    log_tail: float
    energy_j: float | None
    cycles: float | None
    sm_clock_mhz: float | None
    nvml_clock_ratio: float | None
    power_w: float | None
    power_limit_w: float | None
    temperature_c: float | None
    limited_by: str
    is_unsettled: bool


@dataclass(frozen=True, slots=True)
class Absent:
    """A case without a figure in a run."""

    family: str
    outcome: str
    reason: str


@dataclass(frozen=True)
class SideRun:
    """One run as a side of the gate knows it. `card` is site key and hash, `None` where either is unknown."""

    run_id: str
    gpu: str
    card: tuple[str, str] | None
    boot: str
    driver: str
    facts: Mapping[str, Fact]
    source_hash: Mapping[str, str]
    is_partial: bool
    is_ruler_off: bool
    other_processes: int
    readings: Mapping[str, Reading]
    absent: Mapping[str, Absent]
    injected: tuple[str, ...] = ()


def read_side(names: Sequence[str], side: str) -> list[SideRun]:
    """The runs of one side; each file is read, reduced and let go, so that thousands fit in memory.

    Read whole, not leanly: no verdict stands on a file that is damaged in a part nobody compares.
    """
    runs: list[SideRun] = []
    seen: dict[str, Path] = {}
    for file in side_files(names, side):
        run = side_run(store.load(file), str(file))
        if run.run_id in seen:
            raise HarnessError(f"{side}: {seen[run.run_id]} and {file} hold the same run. Name each once.")
        seen[run.run_id] = file
        runs.append(run)
    return runs


def side_files(names: Sequence[str], side: str) -> list[Path]:
    """The run files that these names mean, in order: a file, a folder with its `*.json`, or a glob of either."""
    files = [file for name in names if name.strip() for path in _expand(name, side) for file in store.files_of(path)]
    if not files:
        raise HarnessError(f"the {side} names no run file. Give it run files, folders of them, or globs.")
    return files


def _expand(name: str, side: str) -> list[Path]:
    if Path(name).exists() or not glob.has_magic(name):
        return [Path(name)]
    found = sorted(glob.glob(name))  # noqa: PTH207 - an absolute pattern is not for Path.glob
    if not found:
        raise HarnessError(f"{side}: nothing matches '{name}'. Name run files or folders that `make bench` wrote.")
    return [Path(path) for path in found]


def side_run(run: Run, where: str = "") -> SideRun:
    """What the gate looks at of a run; `HarnessError` where a figure cannot be one."""
    card = _value(run.environment, "card")
    boot, driver = _value(run.environment, "boot"), _value(run.environment, "driver")
    ruler = run.ruler
    return SideRun(
        run_id=run.run_id,
        gpu=run.device.name,
        card=(run.site_key, str(card)) if card and run.site_key else None,
        # A driver that was exchanged without a reboot is another boot of the GPU.
        boot=f"{boot or ''} {driver or ''}",
        driver=str(driver or ""),
        facts={**run.environment, **_facts_of_the_run(run)},
        source_hash=run.source_hash,
        is_partial=bool(run.partial),
        is_ruler_off=ruler is not None and ruler.status == "off",
        other_processes=sum(_processes(run)),
        readings=dict(_readings(run, where or run.run_id)),
        absent={r.key: Absent(r.family, r.outcome, r.reason) for r in run.not_measured},
        injected=run.order.inject,
    )


def _value(facts: Mapping[str, Fact], name: str) -> Any:
    fact = facts.get(name)
    return None if fact is None else fact.value


def _facts_of_the_run(run: Run) -> dict[str, Fact]:
    """What must match and does not stand in the environment, by names of its own."""
    device, order = run.device, run.order
    return {
        "gpu": Fact(device.name or None, "no name"),
        "device_kind": Fact(device.kind),
        "sm_count": Fact(device.sm_count, "CUDA did not tell"),
        "memory_bytes": Fact(device.memory_bytes, "CUDA did not tell"),
        "mig_device": Fact(device.mig),
        "numa_side": Fact(device.numa),
        "profile": Fact(order.profile),
        "declared": Fact(order.declare or "nothing"),
        "concurrent": Fact(order.concurrent),
        "run_schema": Fact(run.schema_version),
    }


def _processes(run: Run) -> Iterator[int]:
    for name in ("other_processes", "other_graphics_processes"):
        value = _value(run.environment, name)
        if isinstance(value, int):
            yield max(0, int(value))


def _readings(run: Run, where: str) -> Iterator[tuple[str, Reading]]:
    for record in run.measured:
        # A quality case is a number of another kind: its time is nobody's question. A soak's mean holds the card's way
        # from cold to hot, which the room decides as well.
        if record.samples is not None and record.case.kind != "quality" and not record.case.is_soak:
            yield record.key, _read(record, record.samples, where)


def _read(record: Record, samples: Samples, where: str) -> Reading:
    compared_s = record.compared_s or 0.0
    for seconds in (min(samples.seconds), max(samples.seconds), compared_s):
        if not LEAST_S <= seconds <= MOST_S:  # also NaN
            raise HarnessError(f"{where}: {record.key}: a launch of {seconds:.3g} s cannot be. Leave that run out.")
    telemetry = record.telemetry
    tail_s, median_s = percentiles(samples.seconds, _TAIL_PERCENT, 50)
    return Reading(
        nature=_nature(record.family, record.case),
        log_s=math.log(compared_s),
        log_tail=math.log(tail_s / median_s),
        energy_j=_positive(_metric(record, "energy_per_work")),
        cycles=_positive(_metric(record, "cycles")),
        sm_clock_mhz=_positive(telemetry.sm_clock_mhz if telemetry else None),
        nvml_clock_ratio=_positive(_metric(record, "nvml_clock_ratio")),
        power_w=_positive(telemetry.power_w if telemetry else None),
        power_limit_w=_positive(telemetry.power_limit_w if telemetry else None),
        temperature_c=_positive(telemetry.temperature_end_c if telemetry else None),
        limited_by=telemetry.limited_by if telemetry else "unknown",
        is_unsettled=telemetry is not None and telemetry.settled is False,
    )


def _nature(family: str, case: Case) -> Nature:
    is_on_host = (
        case.kind == "latency"
        or case.op.startswith("memcpy")
        or any((work.peak or "").startswith("host_link") for work in case.work)
    )
    works = tuple((float(w.amount), w.unit) for w in case.work)
    return Nature(family, case.kind, works, is_on_host, is_between_gpus="ranks" in case.params)


def _metric(record: Record, name: str) -> float | None:
    found = record.metric(name)
    return None if found is None else found.value


def _positive(value: float | None) -> float | None:
    return float(value) if value is not None and LEAST <= value <= MOST else None


def refuse_shared(baseline: Iterable[SideRun], candidate: Iterable[SideRun]) -> None:
    """Refuse a run that stands on both sides: a set against a copy of itself says nothing."""
    shared = {run.run_id for run in baseline} & {run.run_id for run in candidate}
    if shared:
        first = min(shared)
        more = f" and {len(shared) - 1} more" if len(shared) > 1 else ""
        raise HarnessError(
            f"run {first[:60]}{more}: it stands on both sides. Name runs of the baseline or the candidate."
        )
