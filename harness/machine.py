"""A machine as the probe saw it, for the doctor: facts, each GPU, a short load. Read with suspicion."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from harness.asking import read_answer, refuse_answer
from harness.model import Fact

_LONGEST_TEXT = 400
# Beyond 2**60 a JSON number is no quantity of a machine, and may not fit a float.
_MOST = 2.0**60


@dataclass(frozen=True)
class Facts:
    """Facts by name, asked for as what they should be; anything else is unknown."""

    by_name: Mapping[str, Fact] = field(default_factory=dict)

    def number(self, name: str) -> float | None:
        """A quantity."""
        value = self._value(name)
        return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None

    def flag(self, name: str) -> bool | None:
        """Yes or no."""
        value = self._value(name)
        return value if isinstance(value, bool) else None

    def word(self, name: str) -> str | None:
        """A text."""
        value = self._value(name)
        return value if isinstance(value, str) and value else None

    def why(self, *names: str) -> str:
        """Why the first unknown of these is unknown."""
        for name in names:
            fact = self.by_name.get(name)
            if fact is None:
                return "not read"
            if fact.value is None:
                return fact.status
        return "no such value"

    def _value(self, name: str) -> Any:
        fact = self.by_name.get(name)
        return None if fact is None else fact.value


@dataclass(frozen=True)
class Load:
    """What a GPU showed while pinned memory was copied to it for about a second; `missing` says why nothing."""

    pcie_generation: int | None = None
    pcie_lanes: int | None = None
    sm_clock_least_mhz: float | None = None
    sm_clock_most_mhz: float | None = None
    memory_clock_mhz: float | None = None
    events: frozenset[str] = frozenset()
    missing: str = ""


@dataclass(frozen=True)
class SeenGpu:
    """One GPU: its facts, who else was on it before the probe came, and what it showed under load."""

    name: str
    facts: Facts
    capability: tuple[int, int] | None = None
    processes: int | None = None
    processes_mib: float | None = None
    load: Load = Load(missing="no load was made")


@dataclass(frozen=True)
class SeenTorch:
    """torch as installed: empty without it. `problem` is why it cannot use a GPU, in its own words."""

    version: str = ""
    cuda: str = ""
    architectures: tuple[str, ...] = ()
    problem: str = ""


@dataclass(frozen=True)
class Machine:
    """Everything that the doctor judges. `reason` is why NVML lists no GPU, `driver_problem` why it does not start."""

    gpus: tuple[SeenGpu, ...]
    facts: Facts = field(default_factory=Facts)
    torch: SeenTorch = field(default_factory=SeenTorch)
    reason: str = ""
    driver_problem: str = ""
    site_key_problem: str = ""

    @property
    def is_empty(self) -> bool:
        """Whether there is neither a GPU nor a driver to judge."""
        return not self.gpus and not self.driver_problem


def read_machine(answer: str) -> Machine:
    """The machine in the probe's answer; nonsense counts as unknown, another shape is refused."""
    data = read_answer(answer, "doctor")
    gpus = data.get("gpus")
    if not isinstance(gpus, list) or not all(isinstance(gpu, dict) for gpu in gpus):
        refuse_answer("doctor", "it lists no GPUs")
    return Machine(
        gpus=tuple(_gpu(gpu) for gpu in gpus),
        facts=_facts(data.get("facts")),
        torch=_torch(data.get("torch")),
        reason=_text(data.get("reason")),
        driver_problem=_text(data.get("driver_problem")),
        site_key_problem=_text(data.get("site_key_problem")),
    )


def _gpu(data: Mapping[str, Any]) -> SeenGpu:
    pair = data.get("compute_capability")
    is_pair = isinstance(pair, list) and len(pair) == 2 and all(type(part) is int for part in pair)
    return SeenGpu(
        name=_text(data.get("name")) or "a GPU without a name",
        facts=_facts(data.get("facts")),
        capability=(pair[0], pair[1]) if is_pair and isinstance(pair, list) else None,
        processes=_whole(data.get("processes")),
        processes_mib=_number(data.get("processes_mib")),
        load=_load(data.get("load")),
    )


def _load(data: Any) -> Load:
    if not isinstance(data, dict):
        return Load(missing="no load was made")
    events = data.get("events")
    return Load(
        pcie_generation=_whole(data.get("pcie_generation")),
        pcie_lanes=_whole(data.get("pcie_lanes")),
        sm_clock_least_mhz=_number(data.get("sm_clock_least_mhz")),
        sm_clock_most_mhz=_number(data.get("sm_clock_most_mhz")),
        memory_clock_mhz=_number(data.get("memory_clock_mhz")),
        events=frozenset(e for e in events if isinstance(e, str)) if isinstance(events, list) else frozenset(),
        missing=_text(data.get("missing")),
    )


def _torch(data: Any) -> SeenTorch:
    if not isinstance(data, dict):
        return SeenTorch()
    architectures = data.get("architectures")
    return SeenTorch(
        version=_text(data.get("version")),
        cuda=_text(data.get("cuda")),
        architectures=tuple(a for a in architectures if isinstance(a, str)) if isinstance(architectures, list) else (),
        problem=_text(data.get("problem")),
    )


def _facts(data: Any) -> Facts:
    if not isinstance(data, dict):
        return Facts()
    return Facts({str(name): _fact(fact) for name, fact in data.items() if isinstance(fact, dict)})


def _fact(data: Mapping[str, Any]) -> Fact:
    value = data.get("value")
    status = _text(data.get("status")) or "not told"
    if isinstance(value, bool):
        return Fact(value, status)
    if isinstance(value, str):
        return Fact(value[:_LONGEST_TEXT], status)
    return Fact(_number(value), status if _number(value) is not None or value is None else "no number")


def _number(value: Any) -> float | None:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return float(value) if is_number and abs(value) < _MOST and math.isfinite(value) else None


def _whole(value: Any) -> int | None:
    number = _number(value)
    return int(number) if number is not None and number >= 0 else None


def _text(value: Any) -> str:
    return value[:_LONGEST_TEXT] if isinstance(value, str) else ""
