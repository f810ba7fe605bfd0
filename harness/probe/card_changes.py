"""What happened to the card while a case was loaded: errors, remapped rows, limits and clocks set by others, tenants.

Counters and states are read at both edges of a window; only their difference is told. What NVML does not tell at either
edge is not judged.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from harness.probe.nvml import CLOCK_SM, Gpu, Reading, scaled

_CORRECTED, _UNCORRECTED = 0, 1
_SINCE_RESET = 0
_CLOCK_TARGET = 1
# Each counter with what its growth is called.
_COUNTERS = {
    "ecc_corrected": "corrected ECC errors",
    "ecc_uncorrected": "uncorrected ECC errors",
    "remapped_rows": "rows of memory remapped",
}
_SETTINGS = {"power_limit_w": ("power limit", "W"), "application_sm_clock_mhz": ("application clock", "MHz")}


def read_state(gpu: Gpu) -> dict[str, Reading]:
    """Counters and states now; some tenths of a millisecond."""
    rows = gpu.ask("GetRemappedRows")
    processes = gpu.ask("GetComputeRunningProcesses")
    return {
        "ecc_corrected": gpu.ask("GetTotalEccErrors", _CORRECTED, _SINCE_RESET),
        "ecc_uncorrected": gpu.ask("GetTotalEccErrors", _UNCORRECTED, _SINCE_RESET),
        "remapped_rows": rows if rows.value is None else Reading(int(rows.value[0] + rows.value[1])),
        "power_limit_w": scaled(gpu.ask("GetEnforcedPowerLimit"), 1e-3),
        "application_sm_clock_mhz": gpu.ask("GetClock", CLOCK_SM, _CLOCK_TARGET),
        "processes": processes if processes.value is None else Reading(frozenset(p.pid for p in processes.value)),
    }


def changes_between(first: Mapping[str, Reading], last: Mapping[str, Reading]) -> tuple[str, ...]:
    """What changed between two states, the most serious first; nothing where either edge does not know."""
    return tuple(_changes(first, last))


def _changes(first: Mapping[str, Reading], last: Mapping[str, Reading]) -> Iterator[str]:
    for name in ("ecc_uncorrected", "remapped_rows", "ecc_corrected"):
        before, after = _pair(name, first, last)
        if before is not None and after > before:
            yield f"{after - before} {_COUNTERS[name]}"
        elif before is not None and after < before:
            yield f"the count of {_COUNTERS[name]} was reset: the driver was reloaded, or somebody cleared it"
    for name, (what, unit) in _SETTINGS.items():
        before, after = _pair(name, first, last)
        if before is not None and after != before:
            yield f"the {what} went from {before:g} to {after:g} {unit}"
    before, after = _pair("processes", first, last)
    if before is not None:
        came, left = len(after - before), len(before - after)
        if came:
            yield f"{came} process{'es' * (came > 1)} came onto the GPU"
        if left:
            yield f"{left} process{'es' * (left > 1)} left the GPU"


def _pair(name: str, first: Mapping[str, Reading], last: Mapping[str, Reading]) -> tuple[Any, Any]:
    """Both values, or twice nothing where either is unknown."""
    before, after = (edge[name].value if name in edge else None for edge in (first, last))
    return (None, None) if before is None or after is None else (before, after)
