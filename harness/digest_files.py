"""Digests of run files, fast: a lean reading of the file, and a cache that may be thrown away at any time. Floor 3.

The cache is JSON that is checked value by value as any foreign file is; it lies in a folder that is this user's alone.
"""

import functools
import hashlib
import itertools
import json
import math
import os
import stat
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args, get_type_hints

from harness import store
from harness.digests import Absent, CaseDigest, RunDigest, digest_run
from harness.errors import HarnessError
from harness.model import (
    Case,
    DeviceFacts,
    Fact,
    Metric,
    Order,
    Outcome,
    PeakSheet,
    Record,
    Run,
    Telemetry,
)

if TYPE_CHECKING:
    from pydantic import TypeAdapter

# What this suite version's digests are made of; another number makes every cached digest stale.
DIGEST_VERSION = 1

_TABLES: Mapping[str, type] = {"cases": CaseDigest, "absent": Absent}


def read_digests(paths: Sequence[Path], *, use_cache: bool = True) -> list[tuple[RunDigest, ...]]:
    """The digests of the runs at each path, a file or a folder of `*.json`; within a path each run once."""
    cache = _Cache(cache_folder()) if use_cache else None
    return [tuple(_distinct(_files(path), cache)) for path in paths]


def cache_folder() -> Path:
    """Where digests are kept: the user's cache folder, as the XDG base directories say."""
    base = os.environ.get("XDG_CACHE_HOME", "")
    root = Path(base) if Path(base).is_absolute() else Path.home() / ".cache"
    return root / "ofpeak" / "digests"


def _files(path: Path) -> list[Path]:
    if not path.is_dir():
        return [path]
    found = sorted(path.glob("*.json"))
    if not found:
        raise HarnessError(f"{path} holds no run files (*.json). Name a folder that `make bench` wrote.")
    return found


def _distinct(files: Iterable[Path], cache: "_Cache | None") -> Iterator[RunDigest]:
    seen: dict[str, Path] = {}
    for file in files:
        digest = _read(file, cache)
        if digest.run_id in seen:
            raise HarnessError(f"{seen[digest.run_id]} and {file} hold the same run. Remove one of them.")
        seen[digest.run_id] = file
        yield digest


def _read(file: Path, cache: "_Cache | None") -> RunDigest:
    found = cache.find(file) if cache else None
    if found is not None:
        return found
    identity = _identity(file)
    digest = _lean_digest(file)
    if cache is not None and identity is not None and identity == _identity(file):
        cache.keep(file, identity, digest)
    return digest


def _identity(file: Path) -> tuple[int, int] | None:
    try:
        about = file.stat()
    except OSError:
        return None
    return about.st_size, about.st_mtime_ns


# Lean reading: what a digest needs is validated as strictly as in `store`, the rest is skipped.


@dataclass(frozen=True)
class _LeanSamples:
    launches_per_sample: int
    window_s: float


@dataclass(frozen=True)
class _LeanTelemetry:
    """`Telemetry` without its time lines, which are most of a run file: the fields that `digest_run` looks at."""

    settled: bool | None = None
    sm_clock_mhz: float | None = None
    power_w: float | None = None
    power_limit_w: float | None = None
    temperature_end_c: float | None = None
    throttle_ratio: Mapping[str, float] = field(default_factory=dict)
    limited_by: str = "unknown"
    pcie_generation: int | None = None
    pcie_lanes: int | None = None
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
    partial: str
    site_key: str
    benchmarks: tuple[_LeanBenchmark, ...]
    not_measured: tuple[_LeanRecord, ...]


def _lean_digest(file: Path) -> RunDigest:
    """The digest of a run file; whatever the lean reading does not take, `store` reads and explains."""
    lean = _lean_file(file)
    return digest_run(store.load(file) if lean is None else _lean_run(lean))


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
    if launches < 1 or window_s <= 0 or min(data) <= 0:
        return False
    return abs(sum(data) * launches - window_s) <= store.WINDOW_TOLERANCE_RATIO * window_s


def _lean_run(lean: _LeanFile) -> Run:
    records = sorted([*(b.extra_info for b in lean.benchmarks), *lean.not_measured], key=lambda r: r.position)
    return Run(
        run_id=lean.run_id,
        created_at=lean.datetime,
        schema_version=lean.schema_version,
        suite_version=lean.suite.version,
        order=lean.order,
        device=lean.device,
        sheet=lean.sheet,
        environment=lean.environment,
        workers=(),
        records=tuple(_lean_record(r) for r in records),
        partial=lean.partial,
        site_key=lean.site_key,
    )


def _lean_record(lean: _LeanRecord) -> Record:
    telemetry = None if lean.telemetry is None else Telemetry(**vars(lean.telemetry))
    return Record(
        lean.key, lean.family, lean.case, lean.outcome, lean.reason, telemetry=telemetry, metrics=lean.metrics
    )


@functools.cache
def _adapter() -> "TypeAdapter[list[_LeanFile]]":
    """Pydantic's validator; in a list, because settings reach standard dataclasses only from outside."""
    try:
        from pydantic import ConfigDict, TypeAdapter
    except ImportError as error:
        raise HarnessError("reading run files needs pydantic: pip install 'pydantic>=2.7'.") from error
    return TypeAdapter(list[_LeanFile], config=ConfigDict(strict=True, extra="ignore", allow_inf_nan=False))


# The cache


class _Cache:
    """One small JSON file a run file. Whatever is odd about it is a miss; whatever cannot be written is not kept."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._is_ours = _make_private(folder)

    def find(self, file: Path) -> RunDigest | None:
        """The digest of a file that has not changed since, or `None`."""
        identity = _identity(file)
        if not self._is_ours or identity is None:
            return None
        try:
            held = json.loads(self._place(file).read_bytes(), parse_constant=_refuse)
            if held["of"] != _stamp(file, identity):
                return None
            return _decode(held["run"])
        except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
            return None

    def keep(self, file: Path, identity: tuple[int, int], digest: RunDigest) -> None:
        """Write a digest whole or not at all."""
        if not self._is_ours:
            return
        place = self._place(file)
        unfinished = place.with_name(f".{place.name}.{os.getpid()}")
        try:
            held = {"of": _stamp(file, identity), "run": _encode(digest)}
            unfinished.write_text(json.dumps(held, separators=(",", ":"), allow_nan=False))
            unfinished.replace(place)
        except (OSError, ValueError):
            with suppress(OSError):
                unfinished.unlink()

    def _place(self, file: Path) -> Path:
        return self._folder / (hashlib.sha256(os.fsencode(file.absolute())).hexdigest()[:40] + ".json")


def _make_private(folder: Path) -> bool:
    """Whether the folder is there, this user's, and writable for nobody else."""
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        about = folder.lstat()
    except OSError:
        return False
    is_private = not about.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
    return stat.S_ISDIR(about.st_mode) and about.st_uid == os.getuid() and is_private


def _stamp(file: Path, identity: tuple[int, int]) -> list[Any]:
    return [DIGEST_VERSION, store.SCHEMA_VERSION, str(file.absolute()), *identity]


def _encode(digest: RunDigest) -> dict[str, Any]:
    """The digest's plain fields, and its tables by column: a column is checked at once."""
    plain: dict[str, Any] = {f.name: getattr(digest, f.name) for f in fields(digest) if f.name not in _TABLES}
    for name, cls in _TABLES.items():
        rows = getattr(digest, name)
        columns = [[getattr(row, f.name) for row in rows] for f in fields(cls)]
        plain[name] = [len(rows), [_shorten(column) for column in columns]]
    return plain


def _shorten(column: list[Any]) -> list[Any]:
    """A column of equal values as that value alone: most reasons, links and limits are the same in a whole run."""
    return column[:1] if column and all(value == column[0] for value in column) else column


def _decode(plain: dict[str, Any]) -> RunDigest:
    """The inverse of `_encode`; `ValueError` or its kin for anything that `_encode` does not write."""
    tables = {name: _decode_table(cls, plain[name]) for name, cls in _TABLES.items()}
    allowed = _allowed_types(RunDigest)
    values: dict[str, Any] = {name: plain[name] for name in allowed if name not in _TABLES}
    for name, value in values.items():
        _check_column([value], allowed[name])
    return RunDigest(**(values | tables))


def _decode_table(cls: type, table: list[Any]) -> tuple[Any, ...]:
    count, columns = table
    if type(count) is not int or type(columns) is not list:
        raise ValueError("no table")
    # The keys are never one value: a count that they do not back could be any number.
    if not columns or len(columns[0]) != count:
        raise ValueError("keys of another count")
    whole = []
    for column, types in zip(columns, _allowed_types(cls).values(), strict=True):
        _check_column(column, types)
        if len(column) not in (count, 1):
            raise ValueError("columns of unequal length")
        whole.append(column if len(column) == count else itertools.repeat(column[0], count))
    return tuple(map(cls, *whole))


def _check_column(column: list[Any], types: frozenset[type]) -> None:
    if type(column) is not list or not types.issuperset(map(type, column)):
        raise ValueError("a value of another type")
    if float in types and not all(map(math.isfinite, filter(None, column))):
        raise ValueError("a number that is not finite")


@functools.cache
def _allowed_types(cls: type) -> dict[str, frozenset[type]]:
    """The exact types that each field may have."""
    return {name: frozenset(get_args(hint) or (hint,)) for name, hint in get_type_hints(cls).items()}


def _refuse(text: str) -> float:
    raise ValueError(f"{text} is not a finite number")
