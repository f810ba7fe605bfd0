"""What the instrument's check of itself must find: watching's cost, energy's sources, the two clocks. Pure; floor 2."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean, stdev

from scipy.special import stdtrit

from harness.model import Ruler, RulerPart, Telemetry

WATCHING_LIMIT_RATIO = 0.002
ENERGY_LIMIT_RATIO = 0.03
# Without tensor load both clocks must agree; under it their gap is a finding, not a fault.
CLOCKS_LIMIT_RATIO = 0.005
SM_SPREAD_LIMIT_RATIO = 0.01
LEAST_PAIRS = 5


@dataclass(frozen=True)
class Block:
    """Launches of some tenths of a second, watched or not: seconds a launch, and cycles where the SMs told them."""

    is_watched: bool
    launch_s: float
    cycles: float | None = None


@dataclass(frozen=True)
class SelfCheck:
    """Everything that was found on one GPU, each group of parts by its name."""

    gpu: str
    conditions: Mapping[str, str]
    ruler: Ruler
    parts: Mapping[str, tuple[RulerPart, ...]]

    @property
    def failed(self) -> tuple[RulerPart, ...]:
        """The parts that are out of their bounds."""
        return tuple(p for group in (self.ruler.parts, *self.parts.values()) for p in group if p.passed is False)

    @property
    def undecided(self) -> tuple[RulerPart, ...]:
        """The parts with bounds that could not be judged."""
        parts = (p for group in (self.ruler.parts, *self.parts.values()) for p in group)
        return tuple(p for p in parts if p.passed is None and p.high is not None)


def judge_watching(name: str, blocks: Sequence[Block], by_cycles: bool = False) -> RulerPart:
    """By how much watching slows a load, from pairs of neighbouring blocks: its mean, judged by its upper 95 % bound.

    `by_cycles` compares cycles a launch, from which the swings of a power-limited clock have dropped out.
    """
    changes = [_change(pair, by_cycles) for pair in zip(blocks[::2], blocks[1::2], strict=False)]
    known = [change for change in changes if change is not None]
    if len(known) < LEAST_PAIRS:
        return RulerPart(name, None, None, "ratio", None, WATCHING_LIMIT_RATIO, f"only {len(known)} pairs of blocks")
    mean = fmean(known)
    half = float(stdtrit(len(known) - 1, 0.95)) * stdev(known) / math.sqrt(len(known))
    told = f"at most {_percent(mean + half)} (95 %, {len(known)} pairs)"
    passed = True if mean + half < WATCHING_LIMIT_RATIO else False if mean - half > WATCHING_LIMIT_RATIO else None
    detail = told if passed is not None else f"{told}: the load's own noise hides it"
    return RulerPart(name, passed, mean, "ratio", None, WATCHING_LIMIT_RATIO, detail)


def unbounded(part: RulerPart) -> RulerPart:
    """The part as information: what was read, judged by nothing."""
    return replace(part, passed=None, high=None)


def _change(pair: tuple[Block, Block], by_cycles: bool) -> float | None:
    watched, alone = sorted(pair, key=lambda block: not block.is_watched)
    if watched.is_watched == alone.is_watched:
        raise ValueError("a pair holds one watched block and one that is not")
    if not by_cycles:
        return watched.launch_s / alone.launch_s - 1
    return None if watched.cycles is None or alone.cycles is None else watched.cycles / alone.cycles - 1


def judge_energy(name: str, telemetry: Telemetry) -> RulerPart:
    """The energy counter over the other source of power that is farthest from it, minus 1."""
    bounds = (-ENERGY_LIMIT_RATIO, ENERGY_LIMIT_RATIO)
    sources = {
        "counter": telemetry.power_counter_w,
        "instant field": telemetry.power_instant_w,
        "20 ms samples": telemetry.power_samples_w,
    }
    told = ", ".join(f"{source} {watts:.1f} W" for source, watts in sources.items() if watts is not None)
    ratio = telemetry.energy_check_ratio
    if ratio is None:
        why = telemetry.missing.get("power_w") or telemetry.missing.get("power_instant_w") or "one source alone"
        return RulerPart(name, None, None, "ratio", *bounds, f"{told} ({why})" if told else why)
    return RulerPart(name, abs(ratio) <= ENERGY_LIMIT_RATIO, ratio, "ratio", *bounds, told)


def judge_clocks(name: str, telemetry: Telemetry, has_tensor_load: bool) -> RulerPart:
    """NVML's mean clock over the true one, minus 1: a bound without tensor load, a finding with it."""
    true_mhz, nvml_mhz = telemetry.sm_clock_mhz, telemetry.nvml_sm_clock_mhz
    bounds: tuple[float | None, float | None] = (
        (None, None) if has_tensor_load else (-CLOCKS_LIMIT_RATIO, CLOCKS_LIMIT_RATIO)
    )
    if true_mhz is None or nvml_mhz is None:
        lacking = "sm_clock_mhz" if true_mhz is None else "nvml_sm_clock_mhz"
        return RulerPart(name, None, None, "ratio", *bounds, telemetry.missing.get(lacking, "not measured"))
    gap = nvml_mhz / true_mhz - 1
    told = f"true {true_mhz:.0f} MHz, NVML {nvml_mhz:.0f} MHz"
    passed = None if has_tensor_load else abs(gap) <= CLOCKS_LIMIT_RATIO
    return RulerPart(name, passed, gap, "ratio", *bounds, told)


def judge_sm_spread(name: str, telemetry: Telemetry) -> RulerPart:
    """How far the fastest SM's clock is above the slowest's."""
    slowest, fastest = telemetry.sm_clock_slowest_mhz, telemetry.sm_clock_fastest_mhz
    if slowest is None or fastest is None:
        reason = telemetry.missing.get("sm_clock_mhz", "not measured")
        return RulerPart(name, None, None, "ratio", None, SM_SPREAD_LIMIT_RATIO, reason)
    spread = fastest / slowest - 1
    told = f"{telemetry.sms_covered} SMs, {slowest:.1f} to {fastest:.1f} MHz"
    return RulerPart(name, spread <= SM_SPREAD_LIMIT_RATIO, spread, "ratio", None, SM_SPREAD_LIMIT_RATIO, told)


def _percent(ratio: float) -> str:
    return f"{100 * ratio:+.3f} %"
