"""Two implementations of one work, measured in blocks of one run: ratios, and both sides' cycles and joules. Floor 2.

`abba`: blocks A B B A of seconds, each at its own equilibrium, so that a drift that both share cancels. On a card at
its power limit rate is power over joules a unit of work: rate ratio, cycle ratio and both energies belong together.

`short_blocks`: blocks of a tenth of a second in turn, at one clock that both share. What differs there is cycles alone,
and the figure is named so.

The record is that of the implementation under test; what it is held against stands in its metrics, whose names begin
with `against_`.
"""

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Final, Literal

from harness.metrics import BUSY_LEAST_RATIO, LIMITS, OF_A_SLICE
from harness.model import Better, Case, Metric, Samples, Telemetry
from harness.statistics import mean_interval

ABBA: Final = "abba"
SHORT_BLOCKS: Final = "short_blocks"
THIS: Final = "this"
AGAINST: Final = "against"
Side = Literal["this", "against"]
RATE_RATIO, CYCLE_RATIO, ENERGY_RATIO = "rate_ratio", "cycle_ratio", "energy_ratio"
# As many as a record holds.
MOST_SAMPLES = 200
NAMES = (RATE_RATIO, CYCLE_RATIO, ENERGY_RATIO)
_SHARES = ("throttle_ratio", "event_ratio")
_MEANS = (
    *("sm_clock_mhz", "sm_clock_slowest_mhz", "sm_clock_fastest_mhz", "nvml_sm_clock_mhz", "memory_clock_mhz"),
    *("power_w", "power_counter_w", "power_instant_w", "power_samples_w", "busy_ratio"),
    *("tensor_busy_ratio", "dram_busy_ratio", "nvml_busy_ratio"),
)


@dataclass(frozen=True)
class Block:
    """One stretch of one side's launches."""

    side: Side
    samples: Samples
    telemetry: Telemetry

    @property
    def seconds(self) -> float:
        """Of a launch."""
        return self.samples.seconds_per_launch

    @property
    def cycles(self) -> float | None:
        """Of a launch, by the SMs' own counters."""
        clock_mhz = self.telemetry.sm_clock_mhz
        return None if clock_mhz is None else clock_mhz * 1e6 * self.seconds

    @property
    def joules(self) -> float | None:
        """Of a launch."""
        return None if self.telemetry.power_w is None else self.telemetry.power_w * self.seconds


def merged(blocks: Sequence[Block]) -> tuple[Samples, Telemetry]:
    """One side's blocks as one window: every sample of each, and the telemetry of all weighed alike."""
    first = blocks[0]
    size = math.ceil(sum(len(block.samples.seconds) for block in blocks) / MOST_SAMPLES)
    seconds = tuple(mean for block in blocks for mean in _pooled(block.samples.seconds, size))
    launches = first.samples.launches_per_sample * size
    samples = replace(
        first.samples,
        seconds=seconds,
        launches_per_sample=launches,
        window_s=sum(seconds) * launches,
        starved=sum(block.samples.starved for block in blocks),
    )
    means = {name: _mean([getattr(block.telemetry, name) for block in blocks]) for name in _MEANS}
    reasons = {
        name: why
        for block in blocks
        for name, why in block.telemetry.missing.items()
        if (name in means and means[name] is None) or name in _SHARES
    }
    checks = [block.telemetry.energy_check_ratio for block in blocks]
    errors = [block.telemetry.power_error_w for block in blocks]
    error = None if None in errors else math.hypot(*(e for e in errors if e is not None)) / len(blocks)
    settled = [block.telemetry.settled for block in blocks]
    telemetry = replace(
        first.telemetry,
        **means,  # type: ignore[arg-type]  # means of numbers or None
        power_error_w=error,
        settled=None if None in settled else all(settled),
        energy_check_ratio=max((check for check in checks if check is not None), key=abs, default=None),
        throttle_ratio=_throttle_ratios(blocks),
        event_ratio=_event_ratios(blocks),
        limited_by=min((block.telemetry.limited_by for block in blocks), key=LIMITS.index),
        missing={**first.telemetry.missing, **reasons},
        temperature_end_c=blocks[-1].telemetry.temperature_end_c,
        changes=tuple(change for block in blocks for change in block.telemetry.changes),
        timeline={},
        burst={},
    )
    return samples, telemetry


def _throttle_ratios(blocks: Sequence[Block]) -> dict[str, float]:
    """The mean share of each counter over blocks that last equally long, where it answered in all of them."""
    shares = [block.telemetry.throttle_ratio for block in blocks]
    names = [name for name in shares[0] if all(name in share for share in shares)]
    return {name: statistics.fmean(share[name] for share in shares) for name in names}


def _event_ratios(blocks: Sequence[Block]) -> dict[str, float]:
    """The same of events: one that a block looked for and does not name is 0 there; none where a block did not look."""
    if any("event_ratio" in block.telemetry.missing for block in blocks):
        return {}
    shares = [block.telemetry.event_ratio for block in blocks]
    return {name: statistics.fmean(one.get(name, 0.0) for one in shares) for some in shares for name in some}


def _pooled(seconds: Sequence[float], size: int) -> list[float]:
    """Means of so many neighbours; what is left over at the end is dropped."""
    return [statistics.fmean(seconds[i : i + size]) for i in range(0, len(seconds) - size + 1, size)]


def rival_metrics(case: Case, protocol: str, blocks: Sequence[Block], is_slice: bool = False) -> tuple[Metric, ...]:
    """Ratios above 1 speak for this side: faster, fewer cycles. An energy ratio below 1 does.

    Cycles and joules are given where launches fill every block, joules where the power is not that of more than the
    device: a slice of a card has none.
    """
    against = str(case.params.get("against", AGAINST))
    if protocol == SHORT_BLOCKS:
        why = "blocks this short share one clock: neither is at its own equilibrium"
        return (
            _metric(RATE_RATIO, None, "ratio", "higher", reason=why),
            _short_cycle_ratio(blocks, against),
            _metric(ENERGY_RATIO, None, "ratio", "lower", reason=why),
        )
    no_cycles = _why_not_filled(blocks)
    no_joules = OF_A_SLICE if is_slice else no_cycles
    return (
        _ratio(RATE_RATIO, blocks, lambda block: 1 / block.seconds, "higher", f"over {against}"),
        _ratio(CYCLE_RATIO, blocks, _per_cycle, "higher", f"work a cycle over {against}", no_cycles),
        _ratio(ENERGY_RATIO, blocks, lambda block: block.joules, "lower", f"over {against}", no_joules),
        *_of_the_other(case, [block for block in blocks if block.side == AGAINST], against, no_cycles, no_joules),
        _metric(
            "block_spread", _block_spread(blocks), "ratio", "lower", label="the farthest two blocks of one side, apart"
        ),
    )


def _per_cycle(block: Block) -> float | None:
    return None if block.cycles is None else 1 / block.cycles


def _why_not_filled(blocks: Sequence[Block]) -> str:
    """Why clock and watts of a block are not its launches' alone; "" if they are."""
    emptiest = min((b.telemetry.busy_ratio for b in blocks if b.telemetry.busy_ratio is not None), default=1.0)
    return "" if emptiest >= BUSY_LEAST_RATIO else f"launches fill only {100 * emptiest:.0f} % of a block"


def _ratio(
    name: str,
    blocks: Sequence[Block],
    figure: Callable[[Block], float | None],
    better: Better,
    label: str,
    reason: str = "",
) -> Metric:
    """This side's geometric mean over the other's, with what the samples of each block leave to chance."""
    if reason:
        return _metric(name, None, "ratio", better, reason=reason)
    logs: dict[Side, list[float]] = {THIS: [], AGAINST: []}
    for block in blocks:
        value = figure(block)
        if value is None:
            what = "true clock" if name == CYCLE_RATIO else "power"
            return _metric(name, None, "ratio", better, reason=f"the {what} of a block was not measured")
        logs[block.side].append(math.log(value))
    centre = statistics.fmean(logs[THIS]) - statistics.fmean(logs[AGAINST])
    half = _half_width(blocks, has_watts=name == ENERGY_RATIO)
    low, high = (None, None) if half is None else (math.exp(centre - half), math.exp(centre + half))
    return _metric(name, math.exp(centre), "ratio", better, low=low, high=high, label=label)


def _half_width(blocks: Sequence[Block], has_watts: bool) -> float | None:
    """Half of the 95 % interval of the ratio's logarithm: within blocks by batch means, or between blocks of a side.

    Joules carry the error of their watts as well.
    """
    parts = []
    for side in (THIS, AGAINST):
        own = [block for block in blocks if block.side == side]
        within = []
        for block in own:
            interval, error_w = mean_interval(block.samples.seconds), block.telemetry.power_error_w
            if interval is None or (has_watts and error_w is None):
                return None
            within.append((interval.high - interval.low) / 2 / statistics.fmean(block.samples.seconds))
            if has_watts:
                within.append(1.96 * (error_w or 0.0) / (block.telemetry.power_w or math.inf))
        values = [(block.joules if has_watts else None) or block.seconds for block in own]
        between = math.log(max(values) / min(values)) / 2
        parts.append(max(math.hypot(*within) / len(own), between))
    return math.hypot(*parts)


def _of_the_other(
    case: Case, blocks: Sequence[Block], against: str, no_cycles: str, no_joules: str
) -> tuple[Metric, ...]:
    """The other side's own rate, cycles, clock, power and joules a unit of work."""
    work = case.work[0]
    seconds = math.exp(statistics.fmean(math.log(block.seconds) for block in blocks))
    clock_mhz = _mean([block.telemetry.sm_clock_mhz for block in blocks])
    power_w = _mean([block.telemetry.power_w for block in blocks])
    no_clock, no_power = "the true clock was not measured", "the power was not measured"
    cycles = None if clock_mhz is None or no_cycles else clock_mhz * 1e6 * seconds
    joules = None if power_w is None or no_joules else power_w * seconds / work.amount
    return (
        _metric("against_rate", work.amount / seconds, f"{work.unit}/s", "higher", label=against),
        _metric("against_cycles", cycles, "cycles", "lower", label=against, reason=no_cycles or no_clock),
        _metric("against_sm_clock", clock_mhz, "MHz", "", label=against, reason=no_clock),
        _metric("against_power", power_w, "W", "", label=against, reason=no_power),
        _metric(
            "against_energy_per_work", joules, f"J/{work.unit}", "lower", label=against, reason=no_joules or no_power
        ),
    )


def _short_cycle_ratio(blocks: Sequence[Block], against: str) -> Metric:
    """The other side's cycles over this side's, pair by pair; times stand for them where no clock was read."""
    is_counted = all(block.cycles is not None for block in blocks)
    logs = []
    for i in range(0, len(blocks) - 1, 2):
        this, other = sorted(blocks[i : i + 2], key=lambda block: block.side != THIS)
        logs.append(
            math.log((other.cycles or 1.0) / (this.cycles or 1.0) if is_counted else other.seconds / this.seconds)
        )
    interval = mean_interval(logs, batches=len(logs))
    low, high = (None, None) if interval is None else (math.exp(interval.low), math.exp(interval.high))
    what = "cycles" if is_counted else "time at one clock"
    value = math.exp(statistics.fmean(logs))
    return _metric(
        CYCLE_RATIO, value, "ratio", "higher", low=low, high=high, label=f"{what} of {against}, short blocks"
    )


def _block_spread(blocks: Sequence[Block]) -> float:
    sides = [[block.seconds for block in blocks if block.side == side] for side in (THIS, AGAINST)]
    return max(max(seconds) / min(seconds) - 1 for seconds in sides)


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return statistics.fmean(known) if len(known) == len(values) else None


def _metric(
    name: str,
    value: float | None,
    unit: str,
    better: Better,
    *,
    low: float | None = None,
    high: float | None = None,
    label: str = "",
    reason: str = "",
) -> Metric:
    return Metric(name, value, unit, better, low, high, label, reason if value is None else "")
