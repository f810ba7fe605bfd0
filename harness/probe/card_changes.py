"""What happened to the card between two looks: errors, remapped rows, limits and clocks set by others, tenants.

Counters and states are read at both edges of a window, and more of them around the case (`card_watch`); only their
difference is told. What NVML does not tell at either edge is not judged.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from harness.probe.nvml import CLOCK_SM, Gpu, Reading, scaled

_CORRECTED, _UNCORRECTED = 0, 1
_SINCE_RESET = 0
_CLOCK_TARGET = 1
# Each counter with what its growth is called, the most serious first.
_COUNTERS = {
    "ecc_uncorrected": "uncorrected ECC errors",
    "remapped_rows": "rows of memory remapped",
    "ecc_corrected": "corrected ECC errors",
    "nvlink_recoveries": "NVLink recoveries",
    "nvlink_integrity_errors": "NVLink integrity errors",
    "nvlink_effective_errors": "NVLink errors left after correction",
    "nvlink_receive_errors": "NVLink packets received with errors",
    "nvlink_crc_errors": "NVLink CRC errors",
    "nvlink_replays": "NVLink replays",
}
SETTINGS = {"power_limit_w": ("power limit", "W"), "application_sm_clock_mhz": ("application clock", "MHz")}
# What NVML answers of a driver or card that is gone: uninitialised, no driver, lost, to be reset, mismatch, unknown.
_GONE = (1, 9, 15, 16, 18, 999)


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
    yield from _driver_changes(first, last)
    for name, what in _COUNTERS.items():
        before, after = _pair(name, first, last)
        if before is not None and after > before:
            yield f"{after - before} {what}"
        elif before is not None and after < before:
            yield f"the count of {what} was reset: the driver was reloaded, or somebody cleared it"
    before, after = _pair("nvlink_active", first, last)
    if before is not None and after != before:
        yield f"active NVLinks went from {before} to {after}"
    for name, (what, unit) in SETTINGS.items():
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


def _driver_changes(first: Mapping[str, Reading], last: Mapping[str, Reading]) -> Iterator[str]:
    """A driver that was exchanged, reloaded, or does not answer any more."""
    answered = any(reading.value is not None for reading in first.values())
    gone = next((reading.status for reading in last.values() if reading.code in _GONE), "")
    if answered and gone:
        yield f"NVML stopped answering: {gone}"
    before, after = _pair("driver", first, last)
    if before is not None and after != before:
        yield f"the driver went from {before} to {after}"
    before, after = _pair("energy_j", first, last)
    if before is not None and after < before:
        yield "the energy counter began anew: the driver was reloaded, or the card was reset"


def _pair(name: str, first: Mapping[str, Reading], last: Mapping[str, Reading]) -> tuple[Any, Any]:
    """Both values, or twice nothing where either is unknown."""
    before, after = (edge[name].value if name in edge else None for edge in (first, last))
    return (None, None) if before is None or after is None else (before, after)
