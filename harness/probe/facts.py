"""How a fact is made: of a reading, a library's answer or a file; unknown is `None` with the reason. No torch here."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

from harness.model import Fact
from harness.probe.nvml import Reading

Role = Literal["match", "informative", "sensitive"]

_LONGEST_REASON = 120
_HARMLESS = re.compile(r"[A-Za-z0-9_.,:+()/ -]{1,64}")


def fact_of(
    reading: Reading, convert: Callable[[Any], Any] = lambda v: v, role: Role = "match", status: str = "ok"
) -> Fact:
    """A reading in our units. `status` qualifies a known value: "of the whole card".

    A driver may answer in a shape that the binding does not promise: that is unknown, and no reason to measure nothing.
    """
    if reading.value is None:
        return Fact(None, reading.status, role)
    try:
        value = convert(reading.value)
        value = value.decode() if isinstance(value, bytes) else value
    except (AttributeError, IndexError, KeyError, TypeError, ValueError) as error:
        return Fact(None, f"unexpected answer ({first_line(error)})", role)
    return Fact(None, "no value", role) if value is None else Fact(value, status, role)


def megahertz(reading: Reading) -> Reading:
    """A clock; 0 MHz is none."""
    return Reading(None, "NVML says 0 MHz") if reading.value == 0 else reading


def attempt(read: Callable[[], Any], role: Role = "match") -> Fact:
    """A fact from a library call that may not exist in this build."""
    try:
        value = read()
    except (AttributeError, RuntimeError, OSError) as error:
        return Fact(None, first_line(error), role)
    return Fact(None, "not in this build", role) if value is None else Fact(value, role=role)


def optional(value: str | int | float | None, absent: str, role: Role = "match") -> Fact:
    """A fact that may be absent or empty, and what that means."""
    return Fact(None, absent, role) if value is None or value == "" else Fact(value, role=role)


def harmless(text: str | None) -> str | None:
    """A short word as systems use it, or nothing: what might carry anything else is not stored."""
    return text if text and _HARMLESS.fullmatch(text) else None


def words_of(path: Path) -> str | None:
    """A small file of the kernel's as one line; `None` where it cannot be read."""
    try:
        return " ".join(path.read_text(errors="replace").split())
    except OSError:
        return None


def first_line(error: Exception) -> str:
    """An error in one short line."""
    return (str(error).splitlines() or [type(error).__name__])[0][:_LONGEST_REASON]
