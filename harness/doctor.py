"""Is this machine fit to measure? Facts and a short load become findings, each with its cause and a remedy."""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import TypeVar

from harness.checks import health, host, limits, links, sharing, software
from harness.findings import LEVELS, Finding, Level, Unjudged
from harness.machine import Machine

_MACHINE_CHECKS = (*software.MACHINE_CHECKS, *host.MACHINE_CHECKS)
_GPU_CHECKS = (
    *sharing.GPU_CHECKS,
    *software.GPU_CHECKS,
    *limits.GPU_CHECKS,
    *health.GPU_CHECKS,
    *links.GPU_CHECKS,
)

One = TypeVar("One", Finding, Unjudged)


@dataclass(frozen=True)
class Diagnosis:
    """All findings, the gravest first, and all that is unknown."""

    findings: tuple[Finding, ...]
    not_judged: tuple[Unjudged, ...]

    @property
    def is_fit(self) -> bool:
        """Whether nothing stands against measuring; what is unknown does not."""
        return not self.of("blocker")

    def of(self, level: Level) -> tuple[Finding, ...]:
        """The findings of one level."""
        return tuple(finding for finding in self.findings if finding.level == level)


def examine(machine: Machine, declared_mhz: float | None = None) -> Diagnosis:
    """Judge a machine. `declared_mhz` is the clock that the operator has locked, and says so."""
    said: list[tuple[Finding | Unjudged, int | None]] = []
    for check in _MACHINE_CHECKS:
        said += [(one, None) for one in check(machine)]
    for index, gpu in enumerate(machine.gpus):
        for gpu_check in _GPU_CHECKS:
            said += [(one, index) for one in gpu_check(gpu, machine)]
        said += [(one, index) for one in limits.clocks(gpu, declared_mhz)]
    findings = _merged((one, index) for one, index in said if isinstance(one, Finding))
    not_judged = _merged((one, index) for one, index in said if isinstance(one, Unjudged))
    return Diagnosis(tuple(sorted(findings, key=lambda finding: LEVELS.index(finding.level))), tuple(not_judged))


def _merged(said: Iterable[tuple[One, int | None]]) -> list[One]:
    """What several GPUs have in common is said once."""
    gpus: dict[One, list[int]] = {}
    for one, index in said:
        gpus.setdefault(one, []).extend(() if index is None else (index,))
    return [replace(one, gpus=tuple(indices)) for one, indices in gpus.items()]
