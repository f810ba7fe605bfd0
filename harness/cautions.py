"""What a reader must know before trusting a case's figures: warnings from samples, telemetry and metrics. Floor 2."""

from collections.abc import Sequence

from harness.bounds import Bound, find_bound, quoted_gpu, why_missing
from harness.model import Case, Metric, PeakSheet, Samples, Telemetry
from harness.nccl_settings import warning_of
from harness.units import format_percent, format_rate

# A tensor pipe cannot do more than its rate at the counted clock; clock and time are each read to 0.1 %.
IMPLAUSIBLE_AT_CLOCK_RATIO = 1.005
# No byte can cross memory or a link faster than the peak.
IMPLAUSIBLE_SPEC_RATIO = 1.0
# DECLARE=clocks=locked:1410 stands in the key as clocks=locked-1410.
LOCKED_CLOCKS = "locked-"
DECLARED_CLOCK_TOLERANCE_RATIO = 0.01
ENERGY_CHECK_RATIO = 0.03
# Over a window the SMs of an H200 agree within 0.5 % under copies and cuBLAS, and were 0.8 to 1.5 % apart under a
# persistent Triton GEMM on three cards: worth a word, no fault.
SM_SPREAD_RATIO = 0.01


def warnings_of(
    case: Case,
    samples: Samples,
    telemetry: Telemetry,
    sheet: PeakSheet,
    metrics: tuple[Metric, ...],
) -> tuple[str, ...]:
    """What a reader must know before trusting the figures; each begins with its kind and a colon."""
    bound = find_bound(case, telemetry, sheet)
    candidates = (
        _implausible(metrics, bound, samples),
        _unsettled(telemetry),
        _starved(samples),
        _unverified(bound, sheet),
        _undeclared_clock(case, telemetry),
        warning_of(case, telemetry),
        _energy_check(telemetry),
        _clock_spread(telemetry),
        *card_changed(telemetry.changes),
    )
    return tuple(w for w in candidates if w)


def _implausible(metrics: tuple[Metric, ...], bound: Bound, samples: Samples) -> str:
    values = {m.name: m.value for m in metrics}
    at_clock, spec = values.get("at_clock_ratio"), values.get("spec_ratio")
    if at_clock is not None and at_clock > IMPLAUSIBLE_AT_CLOCK_RATIO:
        return (
            f"implausible: {format_percent(at_clock)} of what the SMs can do in the counted cycles, above "
            f"{format_percent(IMPLAUSIBLE_AT_CLOCK_RATIO)}. Time, clock or work is wrong: do not use this figure."
        )
    if spec is None or spec <= IMPLAUSIBLE_SPEC_RATIO or bound.work is None or bound.peak is None:
        return ""
    if bound.work.unit != "B":  # A card may honestly clock higher than its data sheet assumes.
        return ""
    rate = format_rate(bound.work.amount / samples.seconds_per_launch, "B")
    peak = format_rate(bound.peak.value, "B")
    return (
        f"implausible: {rate} over {bound.name} whose peak is {peak}. "
        "Time, byte count, caching or the peak is wrong: do not use this figure."
    )


def _unsettled(telemetry: Telemetry) -> str:
    if telemetry.settled is not False:
        return ""
    waited = "" if telemetry.settle_s is None else f" after {telemetry.settle_s:.1f} s"
    return (
        f"unsettled: power or clock still moved by 0.2 %/s or more{waited}. "
        "Compare temperature_start_c and temperature_end_c, or pre-heat longer."
    )


def _starved(samples: Samples) -> str:
    if samples.starved <= 0:
        return ""
    return (
        f"starved: the launch queue had run dry before {samples.starved} of {len(samples.seconds)} groups, "
        "so host time may be in them. Free the host's cores or launch through a graph."
    )


def _unverified(bound: Bound, sheet: PeakSheet) -> str:
    if bound.work is None or bound.peak is None or bound.peak.is_verified:
        return ""
    peak = format_rate(bound.peak.value, bound.peak.unit)
    return (
        f"unverified peak: '{bound.name}' of {quoted_gpu(sheet.gpu)}, {peak}, was recalled and read nowhere. "
        "Check it against the data sheet and correct harness/specs.toml."
    )


def _undeclared_clock(case: Case, telemetry: Telemetry) -> str:
    """What the operator declared against what the SMs' own counters say; locked clocks do not hold at a power limit."""
    declared = str(case.params.get("clocks", ""))
    if not declared.startswith(LOCKED_CLOCKS):
        return ""
    declared_mhz, true_mhz = float(declared.removeprefix(LOCKED_CLOCKS)), telemetry.sm_clock_mhz
    if true_mhz is None:
        return (
            f"declared clock: {declared_mhz:.0f} MHz were declared and not verified: "
            f"{why_missing(telemetry, 'sm_clock_mhz', 'true clock')}."
        )
    if abs(true_mhz / declared_mhz - 1) <= DECLARED_CLOCK_TOLERANCE_RATIO:
        return ""
    return (
        f"declared clock: the SMs ran at {true_mhz:.0f} MHz, {declared_mhz:.0f} MHz were declared. "
        "Look at what limits it, or declare what is set."
    )


def _energy_check(telemetry: Telemetry) -> str:
    """The counter against the other sources of power: apart by more than 3 %, or by so much that none is given."""
    ratio, counter_w = telemetry.energy_check_ratio, telemetry.power_counter_w
    if ratio is None or counter_w is None or (abs(ratio) <= ENERGY_CHECK_RATIO and telemetry.power_w is not None):
        return ""
    told = f"energy check: the counter says {counter_w:.1f} W, {format_percent(abs(ratio))}"
    told += f" {'more' if ratio > 0 else 'less'} than another source"
    if telemetry.power_w is None:
        return f"{told}: no power and no energy are given. Look at power_instant_w and power_samples_w."
    return f"{told}. Compare joules with care."


def _clock_spread(telemetry: Telemetry) -> str:
    slowest, fastest = telemetry.sm_clock_slowest_mhz, telemetry.sm_clock_fastest_mhz
    if slowest is None or fastest is None or fastest <= slowest * (1 + SM_SPREAD_RATIO):
        return ""
    return (
        f"true clock: the SMs ran at {slowest:.0f} to {fastest:.0f} MHz, "
        f"{format_percent(fastest / slowest - 1)} apart. Shares at clock are of their mean."
    )


def card_changed(changes: Sequence[str]) -> tuple[str, ...]:
    """The warning of a case that something happened to; none where nothing did."""
    if not changes:
        return ()
    return (f"card changed: while this was measured, {'; '.join(changes)}. Measure it again on a quiet card.",)
