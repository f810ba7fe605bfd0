"""Run files: composed from a run, saved at once or not at all, and read with suspicion.

A run file is a valid pytest-benchmark JSON: `name` is the key, `stats.data` holds the samples (the only copy), our
record is `extra_info`, and what concerns the whole run stands at the top. Composing needs the standard library
alone, since GPU images seldom have pydantic; reading validates with it. Floor 3 of the suite.
"""

import functools
import itertools
import json
import math
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from harness import journal
from harness.errors import HarnessError
from harness.model import (
    Metric,
    Record,
    Run,
    Samples,
    to_plain,
)
from harness.statistics import pytest_benchmark_stats

if TYPE_CHECKING:
    import pandas
    from pydantic import TypeAdapter

# History of the run file's schema; a change gets a line here and a migration in `_to_run`.
#   1  the first
#   2  adds the ruler and the idle power of workers; of telemetry: the energy cross-check, tensor-pipe and DRAM busy,
#      NVML's utilisation, the burst, a time line that begins with the settling, what happened to the card in the
#      window, a collective's algorithm, protocol, channels and transport, and the NVLinks between a pair of GPUs; a
#      metric's systematic error; of samples: how many single calls they stand for and the slowest, each rank's own
#      mean, the host's cost of a launch, the parts of one, and the queues `loop` and `eager`; in the order, what was
#      slowed down on purpose and the minutes of a soak; of the device, the party of ranks that torchrun started. All
#      may be absent, so that a file of schema 1 reads as one in which they are unknown.
SCHEMA_VERSION = 2

SUITE_NAME = "ofpeak"
# The plugin whose layout this is; its readers look at the file's `version`.
PYTEST_BENCHMARK_VERSION = "5.3.1"

# A run file is composed of a journal, so that neither holds more than the other.
SIZE_LIMIT_BYTES, DEPTH_LIMIT = journal.SIZE_LIMIT_BYTES, journal.DEPTH_LIMIT
# What a run file is called until it is whole: `.run-001.json.<pid>.tmp`.
UNFINISHED_SUFFIX = ".tmp"
# The window is the sum of its groups; rounding the samples moves that by 1e-7.
WINDOW_TOLERANCE_RATIO = 0.01

# Timing varies by 1e-4 at best: seven digits of a sample and six of what follows from it lose nothing.
SAMPLE_DIGITS = 7
FIGURE_DIGITS = 6

# What machine_info tells of the environment, for readers that show it; never a host name.
_SHOWN_FACTS = ("driver", "cuda_runtime", "torch", "triton", "python")


def compose(run: Run) -> dict[str, Any]:
    """The run as pytest-benchmark's JSON. `HarnessError` names the case that holds NaN, infinity or no samples."""
    _check_records(run.records, f"run {run.run_id}")
    benchmarks, not_measured = [], []
    for position, record in enumerate(run.records):
        plain = _shorten_record(record) | {"position": position}
        if record.samples is not None and record.outcome == "measured":
            benchmarks.append(_benchmark(record, record.samples, plain))
        else:
            not_measured.append(plain)
    document = {
        "machine_info": _machine_info(run),
        # What pytest-benchmark itself writes outside a repository; `suite` says what ran.
        "commit_info": {
            "id": "unversioned",
            "time": None,
            "author_time": None,
            "dirty": False,
            "project": SUITE_NAME,
            "branch": "(unknown)",
        },
        "benchmarks": benchmarks,
        "datetime": run.created_at,
        "version": PYTEST_BENCHMARK_VERSION,
        "schema_version": SCHEMA_VERSION,
        "run_id": run.run_id,
        "suite": {"name": SUITE_NAME, "version": run.suite_version, "source_hash": dict(run.source_hash)},
        "order": to_plain(run.order),
        "device": to_plain(run.device),
        "sheet": to_plain(run.sheet),
        "environment": to_plain(run.environment),
        "workers": to_plain(run.workers),
        "partial": run.partial,
        "site_key": run.site_key,
        "not_measured": not_measured,
    }
    for name, value in document.items():
        _refuse_non_finite(value, name)
    return document


def check(run: Run, path: Path) -> None:
    """Raise unless `load` would read what `save` would write there: a run may be put together of damaged parts."""
    _to_run(json.loads(json.dumps(compose(run), allow_nan=False)), path)


def refuse_special(path: Path) -> None:
    """Raise for a device or a pipe: a file that is put in place at once would replace it, also /dev/null."""
    if path.exists() and not path.is_file() and not path.is_dir():
        raise HarnessError(f"{path} is a device or a pipe, not a file; it is kept. Name another file with -o.")


def save(run: Run, path: Path) -> None:
    """Write a run file whole: whoever reads the path finds the old file or the new one, never a part."""
    text = json.dumps(compose(run), allow_nan=False, separators=(",", ":"))
    refuse_special(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_name(f".{path.name}.{os.getpid()}{UNFINISHED_SUFFIX}")
    try:
        with unfinished.open("w", encoding="utf-8") as file:
            file.write(text + "\n")
            file.flush()
            os.fsync(file.fileno())
        unfinished.replace(path)
    finally:
        unfinished.unlink(missing_ok=True)


def load(path: Path) -> Run:
    """Read and validate a run file; whatever is wrong with it is one line of `HarnessError`."""
    document = _read_json(path)
    version = document.get("schema_version")
    if type(version) is not int:
        raise HarnessError(f"{path} is not a run file of {SUITE_NAME}: it has no schema_version. Name another file.")
    if version > SCHEMA_VERSION:
        writer = _field(document, "suite", dict, path).get("version")
        raise HarnessError(
            f"{path} has schema {version}, this {SUITE_NAME} reads up to {SCHEMA_VERSION}. "
            f"Use {SUITE_NAME} {_one_line(writer)} or later, which wrote it."
        )
    if version < 1:
        raise HarnessError(f"{path} has schema {version}; the first was 1. The file is damaged.")
    return _to_run(document, path)


def load_set(paths: Iterable[Path]) -> tuple[Run, ...]:
    """The runs of files and folders (a folder's `*.json`, by name), each once: a copy is no second measurement."""
    seen: dict[str, Path] = {}
    runs = []
    for path in itertools.chain.from_iterable(map(files_of, paths)):
        run = load(path)
        if run.run_id in seen:
            raise HarnessError(
                f"{seen[run.run_id]} and {path} hold the same run {_one_line(run.run_id)}. Remove one of them."
            )
        seen[run.run_id] = path
        runs.append(run)
    return tuple(runs)


def files_of(path: Path) -> list[Path]:
    """The file itself, or the run files of a folder, sorted; `HarnessError` where that holds none."""
    if not path.is_dir():
        return [path]
    found = sorted(path.glob("*.json"))
    if not found:
        raise HarnessError(_why_empty(path))
    return found


def _why_empty(folder: Path) -> str:
    """What a folder without run files holds instead, and what to do with it."""
    said = f"{folder} holds no run files (*.json)"
    if any(folder.glob("run-*.jsonl")):
        return (
            f"{said}, only the journal of a run that did not end. Make its run file with "
            f"`ofpeak recover {folder}`, or go on with `make bench RESUME={folder}`."
        )
    sets = sorted({file.parent for file in folder.glob("*/*.json")})
    if len(sets) == 1:
        return f"{said}; 1 of its folders does. Name {sets[0]}."
    if sets:
        return f"{said}; {len(sets)} of its folders do. Name {folder}/*."
    return f"{said}. Name a folder that `make bench` wrote."


def frame(runs: Iterable[Run]) -> "pandas.DataFrame":
    """One tidy row a record and metric, `param.<name>` for every parameter; a record without metrics has one row."""
    import pandas

    table = pandas.DataFrame([row for run in runs for row in _rows(run)])
    figures = {name: "float64" for name in ("value", "low", "high") if name in table}
    return table.astype(figures)


def schema() -> dict[str, Any]:
    """The JSON Schema of a run file, from the dataclasses; pytest-benchmark's part only as far as readers need it."""
    definitions = _without_prose(_adapter().json_schema())["$defs"]
    run = definitions.pop("Run")["properties"]
    # A measured record's samples stand in stats.data.
    definitions["Samples"]["required"].remove("seconds")
    definitions["Record"]["properties"]["position"] = {"type": "integer", "minimum": 0}
    definitions["Record"]["required"].append("position")
    text, seconds = {"type": "string"}, {"type": "number", "exclusiveMinimum": 0}
    record = {"$ref": "#/$defs/Record"}
    stats = _object({"data": {"type": "array", "items": seconds, "minItems": 1}, "mean": seconds, "total": seconds})
    benchmark = {"name": text, "fullname": text, "group": text, "stats": stats, "extra_info": record}
    suite = {"name": {"const": SUITE_NAME}, "version": text, "source_hash": run["source_hash"]}
    passed_on = ("run_id", "order", "device", "sheet", "environment", "workers", "partial", "site_key")
    properties = {
        "schema_version": {"const": SCHEMA_VERSION},
        "datetime": run["created_at"],
        "suite": _object(suite),
        **{name: run[name] for name in passed_on},
        "benchmarks": {"type": "array", "items": _object(benchmark)},
        "not_measured": {"type": "array", "items": record},
    }
    header = {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": f"{SUITE_NAME} run file"}
    return header | _object(properties) | {"$defs": definitions}


def schema_text() -> str:
    """What harness/run.schema.json holds."""
    return json.dumps(schema(), indent=1, sort_keys=True) + "\n"


# Composing


def _benchmark(record: Record, samples: Samples, plain: dict[str, Any]) -> dict[str, Any]:
    data = _shorten_samples(samples)
    return {
        "group": record.family,
        "name": record.key,
        "fullname": record.key,
        "params": to_plain(record.case.params),
        "param": None,
        "extra_info": plain,
        # pytest-benchmark's own words for how it measured; `timer` is the one that says something here.
        "options": {
            "disable_gc": True,
            "timer": samples.timer,
            "min_rounds": len(data),
            "max_time": samples.window_s,
            "min_time": 0.0,
            "warmup": False,
        },
        "stats": {**pytest_benchmark_stats(data), "data": data, "iterations": samples.launches_per_sample},
    }


def _shorten_record(record: Record) -> dict[str, Any]:
    """The plain record, where it is measured without its samples' seconds; its figures at six digits."""
    plain: dict[str, Any] = to_plain(record)
    if record.samples is not None:
        del plain["samples"]["seconds"]
        if record.outcome != "measured":
            plain["samples"]["seconds"] = _shorten_samples(record.samples)
    for name in ("telemetry", "metrics"):
        if name in plain:
            plain[name] = _shorten_all(plain[name])
    return plain


def _shorten_samples(samples: Samples) -> list[float]:
    return [_shorten(s, SAMPLE_DIGITS) for s in samples.seconds]


def _shorten(value: float, digits: int) -> float:
    return float(f"{value:.{digits}g}")


def _shorten_all(value: Any) -> Any:
    if isinstance(value, dict):
        return {k: _shorten_all(v) for k, v in value.items()}
    if isinstance(value, list):
        return [_shorten_all(v) for v in value]
    return _shorten(value, FIGURE_DIGITS) if isinstance(value, float) else value


def _machine_info(run: Run) -> dict[str, Any]:
    shown = {n: run.environment[n] for n in _SHOWN_FACTS if n in run.environment}
    facts = {n: f.value for n, f in shown.items() if f.role != "sensitive"}
    return {"run_id": run.run_id, "gpu": run.device.name, "gpu_count": run.device.gpu_count, **facts, "cpu": {}}


def _refuse_non_finite(value: Any, where: str) -> None:
    for place, leaf in _leaves(value, where):
        if isinstance(leaf, float) and not math.isfinite(leaf):
            raise HarnessError(f"{place} is {leaf}; a run file holds finite numbers only. Measure that case again.")


def _leaves(value: Any, where: str) -> Iterator[tuple[str, Any]]:
    """Every scalar with its place; a benchmark or record is named by its key."""
    if isinstance(value, Mapping):
        name = value.get("name") or value.get("key")
        inside = f"{where} {name}" if name and where in ("benchmarks", "not_measured") else where
        for key, item in value.items():
            yield from _leaves(item, f"{inside}.{key}")
    elif isinstance(value, list):
        for item in value:
            yield from _leaves(item, where)
    else:
        yield where, value


def _check_records(records: Sequence[Record], where: str) -> None:
    """What types cannot say: one record a key, and samples that are times and add up to their window."""
    keys: set[str] = set()
    for record in records:
        if record.key in keys:
            raise HarnessError(f"{where}: {_one_line(record.key)} is there twice. A run measures a case once.")
        keys.add(record.key)
        if record.key != record.case.key:
            raise HarnessError(f"{where}: {_one_line(record.key)} is not the key of its case {record.case.key}.")
        if record.outcome == "measured":
            problem = "it is measured but has no samples" if record.samples is None else _problem_of(record.samples)
            if problem:
                raise HarnessError(f"{where}: {_one_line(record.key)}: {problem}. Measure that case again.")


def _problem_of(samples: Samples) -> str:
    if not samples.seconds or samples.launches_per_sample < 1 or not 0 <= samples.starved <= len(samples.seconds):
        counts = f"{len(samples.seconds)} samples of {samples.launches_per_sample} launches"
        return f"{counts}, {samples.starved} of them starved, cannot be"
    for seconds in (*samples.seconds, samples.window_s):
        if not (math.isfinite(seconds) and seconds > 0):
            return f"a time of {seconds} s cannot be"
    total_s = sum(samples.seconds) * samples.launches_per_sample
    if abs(total_s - samples.window_s) > WINDOW_TOLERANCE_RATIO * samples.window_s:
        return f"its samples add up to {total_s:.6g} s, its window is {samples.window_s:.6g} s"
    return ""


# Reading


def _read_json(path: Path) -> dict[str, Any]:
    """Strict JSON: UTF-8, finite numbers, no key twice, not too large, not too deep."""
    try:
        with path.open("rb") as file:
            data = file.read(SIZE_LIMIT_BYTES + 1)
    except OSError as error:
        raise HarnessError(f"cannot read {path}: {error.strerror}. Name a run file.") from error
    if len(data) > SIZE_LIMIT_BYTES:
        raise HarnessError(f"{path} is larger than {SIZE_LIMIT_BYTES // 2**20} MiB; run files stay under 1 MiB.")
    try:
        document = json.loads(
            data.decode("utf-8"),
            object_pairs_hook=_unique_keys,
            parse_constant=_finite,
            parse_float=_finite,
            parse_int=_small,
        )
    except RecursionError as error:
        raise HarnessError(f"{path} is nested too deeply for a run file.") from error
    except ValueError as error:
        if path.suffix == ".jsonl":
            raise HarnessError(
                f"{path} is no run file but a run's journal. Name {path.with_suffix('.json')}; "
                f"`ofpeak recover {path}` makes it where it is missing."
            ) from error
        raise HarnessError(
            f"{path} is not a whole JSON file: {_one_line(error)}. It may have been cut short."
        ) from error
    if not isinstance(document, dict):
        raise HarnessError(f"{path} is not a run file of {SUITE_NAME}: it holds no JSON object. Name another file.")
    if journal.is_deeper(document, DEPTH_LIMIT):
        raise HarnessError(f"{path} is nested more than {DEPTH_LIMIT} deep; no run file is.")
    return document


def _unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    content: dict[str, Any] = {}
    for key, value in pairs:
        if key in content:
            raise ValueError(f"the key {key!r} is there twice")
        content[key] = value
    return content


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"{text} is not a finite number")
    return value


def _small(text: str) -> int:
    if len(text) > len(str(2**63)):
        raise ValueError(f"a whole number of {len(text)} digits is none of ours")
    return int(text)


def _one_line(text: object) -> str:
    """Foreign text fit for a terminal: one line, printable, short."""
    return "".join(c if c.isprintable() else "?" for c in " ".join(str(text).split())[:200])


def _field(container: Any, name: str, kind: type, path: Path) -> Any:
    value = container.get(name) if isinstance(container, dict) else None
    if type(value) is not kind:
        raise HarnessError(f"{path}: '{name}' is missing or no {kind.__name__}. The file is damaged or foreign.")
    return value


def _to_run(document: dict[str, Any], path: Path) -> Run:
    suite = _field(document, "suite", dict, path)
    positioned = [_measured_record(b, path) for b in _field(document, "benchmarks", list, path)]
    positioned += [_positioned(r, path) for r in _field(document, "not_measured", list, path)]
    positioned.sort(key=lambda pair: pair[0])
    plain = {
        "created_at": document.get("datetime"),
        "suite_version": suite.get("version"),
        "source_hash": suite.get("source_hash"),
        "records": [record for _, record in positioned],
    }
    same = ("run_id", "schema_version", "order", "device", "sheet", "environment", "workers", "partial", "site_key")
    run = _validate(plain | {name: document.get(name) for name in same}, path)
    if len(run.measured) != len(document["benchmarks"]):
        raise HarnessError(f"{path}: a measured case stands among 'not_measured'. The file is damaged.")
    _check_records(run.records, str(path))
    return run


def _measured_record(benchmark: Any, path: Path) -> tuple[int, dict[str, Any]]:
    """A benchmark's record with its samples put back from `stats.data`."""
    name = _field(benchmark, "name", str, path)
    position, record = _positioned(_field(benchmark, "extra_info", dict, path), path)
    samples = _field(record, "samples", dict, path)
    data = _field(_field(benchmark, "stats", dict, path), "data", list, path)
    if record.get("key") != name or record.get("outcome") != "measured":
        raise HarnessError(f"{path}: the benchmark {name!r} carries another case's record. The file is damaged.")
    return position, record | {"samples": samples | {"seconds": data}}


def _positioned(record: Any, path: Path) -> tuple[int, dict[str, Any]]:
    position = _field(record, "position", int, path)
    return position, {name: value for name, value in record.items() if name != "position"}


def _validate(plain: dict[str, Any], path: Path) -> Run:
    adapter = _adapter()
    from pydantic_core import to_json  # three times as fast as json.dumps

    try:
        run: Run = adapter.validate_json(to_json([plain]), strict=True)[0]
    except ValueError as error:  # pydantic's ValidationError is one
        raise HarnessError(f"{path} is not a run file of {SUITE_NAME}: {_first_problem(error)}") from error
    return run


def _first_problem(error: ValueError) -> str:
    """The first of pydantic's complaints, as `records.3.telemetry.power_w: Input should be ... (1 of 5)`."""
    from pydantic import ValidationError

    if not isinstance(error, ValidationError):
        return _one_line(error)
    problems = error.errors(include_url=False, include_input=False)
    place = _one_line(".".join(str(part) for part in problems[0]["loc"][1:]))
    return f"{place}: {_one_line(problems[0]['msg'])} (problem 1 of {len(problems)})"


@functools.cache
def _adapter() -> "TypeAdapter[list[Run]]":
    """Pydantic's validator of runs. In a list, because settings reach standard dataclasses only from outside."""
    try:
        from pydantic import ConfigDict, TypeAdapter
    except ImportError as error:
        raise HarnessError("reading run files needs pydantic: pip install 'pydantic>=2.7'.") from error
    return TypeAdapter(list[Run], config=ConfigDict(strict=True, extra="forbid", allow_inf_nan=False))


# The table


def _rows(run: Run) -> Iterator[dict[str, Any]]:
    driver = run.environment.get("driver")
    about_run = {
        "run_id": run.run_id,
        "created_at": run.created_at,
        "suite_version": run.suite_version,
        "gpu": run.device.name,
        "driver": None if driver is None else driver.value,
        "label": run.order.label,
        "inject": " ".join(run.order.inject),
    }
    for record in run.records:
        parameters = {f"param.{name}": value for name, value in record.case.params.items()}
        for metric in record.metrics or (None,):
            yield {**about_run, **_record_columns(record), **_metric_columns(metric), **parameters}


def _record_columns(record: Record) -> dict[str, Any]:
    telemetry = record.telemetry
    return {
        "key": record.key,
        "family": record.family,
        "op": record.case.op,
        "kind": record.case.kind,
        "outcome": record.outcome,
        "reason": record.reason,
        "worker": record.worker,
        "settled": None if telemetry is None else telemetry.settled,
        "limited_by": None if telemetry is None else telemetry.limited_by,
    }


def _metric_columns(metric: Metric | None) -> dict[str, Any]:
    if metric is None:
        return dict.fromkeys(("metric", "value", "unit", "better", "low", "high", "convention", "metric_reason"))
    return {
        "metric": metric.name,
        "value": metric.value,
        "unit": metric.unit,
        "better": metric.better,
        "low": metric.low,
        "high": metric.high,
        "convention": metric.label,
        "metric_reason": metric.reason,
    }


# The schema


def _object(properties: dict[str, Any]) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": list(properties)}


def _without_prose(value: Any) -> Any:
    """A schema without pydantic's titles and our docstrings, whose wording is no part of the format."""
    if isinstance(value, dict):
        prose = {name for name in ("title", "description") if isinstance(value.get(name), str)}
        return {name: _without_prose(item) for name, item in value.items() if name not in prose}
    return [_without_prose(item) for item in value] if isinstance(value, list) else value
