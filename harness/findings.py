"""What the doctor says: findings with cause and remedy, and what could not be judged.

A blocker makes figures wrong, or the next reboot would change them. A key finding belongs beside every figure: they
hold under that condition only. A note is good to know. What is unknown is said to be not judged, never fine.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal

from harness.machine import Machine, SeenGpu

Level = Literal["blocker", "key", "note"]
LEVELS: tuple[Level, ...] = ("blocker", "key", "note")


@dataclass(frozen=True)
class Finding:
    """What was found, with both numbers; why; and what the operator would do. The suite itself changes nothing."""

    level: Level
    what: str
    cause: str
    remedy: str
    gpus: tuple[int, ...] = ()


@dataclass(frozen=True)
class Unjudged:
    """What could not be judged, and why."""

    what: str
    why: str
    gpus: tuple[int, ...] = ()


Said = Iterator[Finding | Unjudged]
MachineCheck = Callable[[Machine], Said]
GpuCheck = Callable[[SeenGpu, Machine], Said]


def on_or_off(is_on: bool) -> str:
    """A switch in words."""
    return "on" if is_on else "off"


def number_of(number: float, noun: str, plural: str = "s") -> str:
    """A number with its noun: '1 replay', '3 replays'."""
    return f"{number:.0f} {noun}" if number == 1 else f"{number:.0f} {noun}{plural}"


def sentence(text: str) -> str:
    """Somebody else's words as a sentence of ours."""
    text = text.strip()
    return f"{text[:1].upper()}{text[1:]}{'' if text.endswith(('.', '!', '?')) else '.'}"
