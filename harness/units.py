"""Quantities at the edge: inside ofpeak they are seconds, bytes, FLOP, watts, joules; people read these."""

import math

KIB = 2**10
MIB = 2**20
GIB = 2**30

UNKNOWN = "–"

_SI_STEPS = ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"), (1.0, ""))
_TIME_STEPS = ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs"), (1e-9, "ns"))


def significant(value: float, digits: int = 4) -> str:
    """A number to so many significant digits, never in exponent form: 4231.4 -> '4231', 0.51234 -> '0.5123'."""
    if value == 0 or not math.isfinite(value):
        return f"{value:g}"
    rounded = float(f"{value:.{digits - 1}e}")  # first, so that 999.96 is 1000 and not 1000.0
    return f"{rounded:.{max(0, digits - 1 - math.floor(math.log10(abs(rounded))))}f}"


def format_rate(per_second: float | None, unit: str) -> str:
    """A rate in SI steps: (4.27e12, 'B') -> '4.270 TB/s', (6.7e14, 'FLOP') -> '670.0 TFLOP/s'.

    Bytes stop at GB/s below 1 TB/s, FLOP at TFLOP/s, so that one column keeps one unit.
    """
    if per_second is None:
        return UNKNOWN
    largest = [step for step in _SI_STEPS if step[0] <= 1e12]
    for scale, prefix in largest:
        if abs(per_second) >= scale:
            return f"{significant(per_second / scale)} {prefix}{unit}/s"
    return f"{significant(per_second)} {unit}/s"


def format_size(size_bytes: float | None) -> str:
    """A buffer size in binary steps: 268435456 -> '256 MiB', 8 -> '8 B'."""
    if size_bytes is None:
        return UNKNOWN
    for scale, name in ((GIB, "GiB"), (MIB, "MiB"), (KIB, "KiB")):
        if size_bytes >= scale:
            return f"{size_bytes / scale:.4g} {name}"
    return f"{size_bytes:.4g} B"


def format_time(seconds: float | None) -> str:
    """A duration in the step that keeps it above 1: 0.00163 -> '1.630 ms'."""
    if seconds is None:
        return UNKNOWN
    for scale, name in _TIME_STEPS:
        if abs(seconds) >= scale:
            return f"{significant(seconds / scale)} {name}"
    return f"{significant(seconds / 1e-9)} ns"


def format_percent(ratio: float | None, decimals: int = 1) -> str:
    """A ratio as people say it: 0.6812 -> '68.1 %'."""
    return UNKNOWN if ratio is None else f"{100 * ratio:.{decimals}f} %"


def format_number(value: float | None, unit: str = "", decimals: int = 0) -> str:
    """A plain number with its unit, or the dash for unknown."""
    if value is None:
        return UNKNOWN
    return f"{value:.{decimals}f} {unit}".rstrip()


def format_energy_per(joules_per_unit: float | None, unit: str) -> str:
    """Energy per FLOP or byte in picojoules: (1.03e-12, 'FLOP') -> '1.030 pJ/FLOP'."""
    return UNKNOWN if joules_per_unit is None else f"{significant(joules_per_unit * 1e12)} pJ/{unit}"
