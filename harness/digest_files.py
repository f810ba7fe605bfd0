"""Digests of run files, fast: a lean reading of each, and a cache that may be thrown away at any time. Floor 3.

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
from dataclasses import fields
from pathlib import Path
from typing import Any, get_args, get_type_hints

from harness import lean_files, store
from harness.digests import Absent, CaseDigest, RunDigest, digest_run
from harness.errors import HarnessError

# What this suite version's digests are made of; another number makes every cached digest stale.
DIGEST_VERSION = 2

_TABLES: Mapping[str, type] = {"cases": CaseDigest, "absent": Absent}


def read_digests(paths: Sequence[Path], *, use_cache: bool = True) -> list[tuple[RunDigest, ...]]:
    """The digests of the runs at each path, a file or a folder of `*.json`; within a path each run once."""
    cache = _Cache(cache_folder()) if use_cache else None
    return [tuple(_distinct(store.files_of(path), cache)) for path in paths]


def cache_folder() -> Path:
    """Where digests are kept: the user's cache folder, as the XDG base directories say."""
    base = os.environ.get("XDG_CACHE_HOME", "")
    root = Path(base) if Path(base).is_absolute() else Path.home() / ".cache"
    return root / "ofpeak" / "digests"


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
    digest = digest_run(lean_files.load(file))
    if cache is not None and identity is not None and identity == _identity(file):
        cache.keep(file, identity, digest)
    return digest


def _identity(file: Path) -> tuple[int, int] | None:
    try:
        about = file.stat()
    except OSError:
        return None
    return about.st_size, about.st_mtime_ns


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
