"""The gate's policy: margins and which runs count, read from TOML with suspicion. Floor 3 of the suite."""

import math
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness.errors import HarnessError

DEFAULT_FILE = Path(__file__).with_name("policy.toml")
SIZE_LIMIT_BYTES = 2**20
# What a telemetry's `limited_by` may say and a policy may drop.
LIMITS = ("thermal", "brake", "user's clock", "power model", "unknown")

_PERCENT = re.compile(r"([0-9]+(?:\.[0-9]+)?)\s*%")
_NAME = re.compile(r"[A-Za-z0-9_.+-]+")
_MARGINS = ("latency", "family_mean", "energy", "tail")
_SWITCHES = ("ruler_off", "other_processes", "partial", "unsettled")


@dataclass(frozen=True)
class Policy:
    """Margins as ratios (0.01 is 1 % slower), and the causes for which runs are dropped."""

    by_family: Mapping[str, float]
    default: float
    latency: float
    family_mean: float
    energy: float
    tail: float
    drop: frozenset[str]
    throttled: frozenset[str]

    def margin(self, family: str, kind: str) -> float:
        """The margin of a case."""
        return self.latency if kind == "latency" else self.by_family.get(family, self.default)


def load_policy(file: Path | None = None) -> Policy:
    """The shipped policy, with what the operator's file says instead; one line for whatever is wrong with that."""
    shipped = _read(DEFAULT_FILE)
    own = {} if file is None else _read(file)
    _refuse_unknown(file, "", own, shipped)
    tables = {name: dict(table) for name, table in shipped.items()}
    for name, table in own.items():
        if not isinstance(table, dict):
            raise _wrong(file, f"'{name}' is no table; write [{name}]")
        if name != "margin":
            _refuse_unknown(file, f"{name}.", table, shipped[name])
        tables[name] |= table
    margins = {name: _ratio(file, f"margin.{name}", value) for name, value in tables["margin"].items()}
    others = {name: _ratio(file, f"margin_of.{name}", tables["margin_of"][name]) for name in _MARGINS}
    drop = tables["drop"]
    return Policy(
        by_family=margins,
        default=margins["default"],
        **others,
        drop=frozenset(name for name in _SWITCHES if _switch(file, name, drop[name])),
        throttled=_limits(file, drop["throttled"]),
    )


def parse_percent(text: str) -> float:
    """`0.3%` or `0.3 %` as 0.003; `ValueError` for what is no percentage from 0 to 100."""
    found = _PERCENT.fullmatch(text.strip())
    if found is None or not float(found.group(1)) <= 100:
        raise ValueError(f"{text[:40]!r} is no percentage from 0 to 100: write it as 0.3%")
    return float(found.group(1)) / 100


def _read(file: Path) -> dict[str, Any]:
    try:
        with file.open("rb") as opened:
            data = opened.read(SIZE_LIMIT_BYTES + 1)
    except OSError as error:
        raise HarnessError(f"cannot read the policy {file}: {error.strerror}. Name a TOML file.") from error
    if len(data) > SIZE_LIMIT_BYTES:
        raise _wrong(file, "it is larger than 1 MiB")
    try:
        return tomllib.loads(data.decode("utf-8"))
    except (ValueError, RecursionError) as error:  # TOMLDecodeError and UnicodeDecodeError are ValueErrors
        raise _wrong(file, f"it is no TOML: {str(error)[:120]}") from error


def _refuse_unknown(file: Path | None, where: str, given: Mapping[str, Any], known: Mapping[str, Any]) -> None:
    unknown = next((name for name in given if name not in known), None)
    if unknown is not None:
        raise _wrong(file, f"there is no '{where}{unknown[:40]}'; use {', '.join(f'{where}{name}' for name in known)}")


def _ratio(file: Path | None, name: str, value: Any) -> float:
    if not _NAME.fullmatch(name.partition(".")[2]):
        raise _wrong(file, f"'{name[:60]}' is no family's name")
    try:
        ratio = parse_percent(value) if isinstance(value, str) else math.nan
    except ValueError:
        ratio = math.nan
    if not 0 < ratio <= 1:
        raise _wrong(file, f'{name} is {str(value)[:40]!r}; write a percentage above 0 as "1.5 %"')
    return ratio


def _switch(file: Path | None, name: str, value: Any) -> bool:
    if not isinstance(value, bool):
        raise _wrong(file, f"drop.{name} is {str(value)[:40]!r}; write true or false")
    return value


def _limits(file: Path | None, value: Any) -> frozenset[str]:
    if not isinstance(value, list) or any(name not in LIMITS for name in value):
        raise _wrong(file, f"drop.throttled is {str(value)[:60]!r}; write a list of {', '.join(LIMITS)}")
    return frozenset(value)


def _wrong(file: Path | None, what: str) -> HarnessError:
    return HarnessError(f"policy {file}: {what}.")
