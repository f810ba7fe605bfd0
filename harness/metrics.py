"""From samples and telemetry to figures: rates, shares of the peak, energy, and what limits. Floor 2."""

import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from harness.bounds import Bound, find_bound, why_missing
from harness.model import Better, Case, DeviceFacts, Metric, PeakSheet, Samples, Telemetry, Work
from harness.statistics import Interval, mean_interval, percentile, rate_interval
from harness.units import format_percent

# Above this share that L2 could serve, a rate says nothing about the memory.
L2_LIMIT_RATIO = 0.02
# Below this many samples the 99th percentile is their maximum by another name.
LEAST_SAMPLES_FOR_P99 = 100

POWER_CAP_LEAST_RATIO = 0.20
POWER_NEAR_LIMIT_RATIO = 0.95
THERMAL_LEAST_RATIO = 0.01
POWER_CAP_ACTS_RATIO = 0.01
USER_CLOCK_LEAST_RATIO = 0.20
# What a board's power sensor reads beside a meter: gains of -7 to +4 % between cards, repeating within 1 % on each
# (Yang, Adamek, Armour: "Part-time Power Measurements: nvidia-smi's Lack of Attention", SC24).
SENSOR_ERROR_RATIO = 0.05
# Below it, a launch's energy and cycles would carry more of what lies between launches than their own error.
BUSY_LEAST_RATIO = 0.97
OF_A_SLICE = "the power is that of the whole card, of which this is a MIG instance"
# What `limiting_factor` tells, the most serious first: of several GPUs, what holds up all. Unknown is not "none".
LIMITS = ("brake", "thermal", "power", "power model", "user's clock", "unknown", "none")
_DECISIVE_COUNTERS = {"power_cap", "thermal_sw", "thermal_hw", "brake_hw"}


@dataclass(frozen=True)
class Items:
    """What a launch handles that users count: tokens, images. Their number is the product of those parameters."""

    name: str
    factors: tuple[str, ...]
    label: str


_OF_ATTENTION, _OF_BLOCK, _OF_RESNET = "through one layer's attention", "through one block", "through the whole model"
ITEMS_BY_OP = {
    "decode_attention": Items("token", ("batch",), _OF_ATTENTION),
    "decode_latency": Items("token", ("batch",), _OF_ATTENTION),
    "prefill_attention": Items("token", ("batch", "context"), _OF_ATTENTION),
    "transformer_block": Items("token", ("batch", "context"), _OF_BLOCK),
    "resnet50_inference": Items("image", ("batch",), _OF_RESNET),
    "resnet50_latency": Items("image", ("batch",), _OF_RESNET),
}


def derive_metrics(
    case: Case, samples: Samples, telemetry: Telemetry, sheet: PeakSheet, facts: DeviceFacts
) -> tuple[Metric, ...]:
    """Every figure of one case, the same names for every case; what is unknown is `None` with its reason.

    Only what exists between ranks, or in a launch that the host waits for, is left out elsewhere.
    """
    bound = find_bound(case, telemetry, sheet)
    energies = _energies(case, samples, telemetry, facts)
    return (
        *_rates(case, samples),
        *_times(samples),
        _spec_ratio(case, samples, bound, facts),
        _at_clock_ratio(samples, telemetry, bound, sheet, facts),
        _clock_ratio(telemetry, bound, sheet, facts),
        _cycles(samples, telemetry),
        *energies,
        *_of_items(case, samples, energies),
        _l2_ratio(case, facts),
        _nvml_clock_ratio(telemetry),
        *_of_ranks(samples),
    )


def limiting_factor(telemetry: Telemetry, is_held_below_max: bool = False) -> str:
    """What held the clock down in the window, the most serious cause first, from NVML's throttle counters.

    A large GEMM at its power limit is normal, so the cap counts from a fifth of the window; "power model" is the
    cap acting while the card draws less than 95 % of its limit. "none" needs every counter to have answered.

    A locked clock raises no counter and no event: `is_held_below_max` says that NVML's clock stood still below the
    card's maximum, which is the user's doing where nothing else acts.
    """
    throttle, event = telemetry.throttle_ratio, telemetry.event_ratio
    if throttle.get("brake_hw", 0.0) > 0:
        return "brake"
    if throttle.get("thermal_sw", 0.0) + throttle.get("thermal_hw", 0.0) >= THERMAL_LEAST_RATIO:
        return "thermal"
    if throttle.get("power_cap", 0.0) >= POWER_CAP_LEAST_RATIO:
        if telemetry.power_w is None or telemetry.power_limit_w is None:
            return "unknown"
        near_limit = telemetry.power_w >= POWER_NEAR_LIMIT_RATIO * telemetry.power_limit_w
        return "power" if near_limit else "power model"
    users = (throttle.get("sync_boost"), event.get("sync_boost"), event.get("applications_clocks"))
    if max(share or 0.0 for share in users) >= USER_CLOCK_LEAST_RATIO:
        return "user's clock"
    if not throttle.keys() >= _DECISIVE_COUNTERS:
        return "unknown"
    return "user's clock" if is_held_below_max and throttle["power_cap"] < POWER_CAP_ACTS_RATIO else "none"


def _rates(case: Case, samples: Samples) -> list[Metric]:
    """`rate` for the headline, `rate.<label as a slug>` for every further convention, as in `rate.one_way`."""
    metrics: list[Metric] = []
    for number, work in enumerate(case.work):
        name = "rate" if number == 0 else f"rate.{_slug(work.label) or number + 1}"
        if any(m.name == name for m in metrics):
            name = f"{name}_{number + 1}"
        metrics.append(_rate(name, work, samples))
    return metrics


def _rate(name: str, work: Work, samples: Samples) -> Metric:
    interval = rate_interval(work.amount, samples.seconds)
    rate = work.amount / samples.seconds_per_launch
    return _metric(name, rate, f"{work.unit}/s", "higher", label=work.label, interval=interval)


def _slug(label: str) -> str:
    return re.sub(r"[^a-z0-9]+", "_", label.lower()).strip("_")


def _times(samples: Samples) -> tuple[Metric, ...]:
    count, grouped = len(samples.seconds), samples.launches_per_sample
    # A percentile of groups hides single slow launches; the label says over what it was taken.
    label = "" if grouped == 1 else f"of means of {grouped} launches"
    if samples.shots:
        label = f"of {samples.shots} calls" + ("" if grouped == 1 else f" for {grouped} each")
    p99 = percentile(samples.seconds, 99, samples.shots) if count >= LEAST_SAMPLES_FOR_P99 else None
    few = f"{count} samples; {LEAST_SAMPLES_FOR_P99} are needed for a 99th percentile"
    return (
        _metric("time", samples.seconds_per_launch, "s", "lower", interval=mean_interval(samples.seconds)),
        _metric("time_p50", percentile(samples.seconds, 50, samples.shots), "s", "lower", label=label),
        _metric("time_p99", p99, "s", "lower", label=label, reason=few),
    )


def _spec_ratio(case: Case, samples: Samples, bound: Bound, facts: DeviceFacts) -> Metric:
    """Share of the binding peak; its label is that peak's name."""
    reason = bound.reason or (_why_not_memory(case, facts) if bound.name == "memory" else "")
    if bound.work is None or bound.peak is None or reason:
        return _metric("spec_ratio", None, "ratio", "higher", label=bound.name, reason=reason)
    amount, peak_per_s = bound.work.amount, bound.peak.value
    ratio = amount / samples.seconds_per_launch / peak_per_s
    interval = rate_interval(amount / peak_per_s, samples.seconds)
    return _metric("spec_ratio", ratio, "ratio", "higher", label=bound.name, interval=interval)


def _why_not_memory(case: Case, facts: DeviceFacts) -> str:
    share, reason = _l2_share(case, facts)
    if share is None:
        return reason
    if share <= L2_LIMIT_RATIO:
        return ""
    served, limit = format_percent(share), format_percent(L2_LIMIT_RATIO, 0)
    return f"L2 could serve {served} of the traffic; above {limit} no share of the memory's peak is given"


def _l2_share(case: Case, facts: DeviceFacts) -> tuple[float | None, str]:
    """The share of the traffic that L2 could serve at most: what fits in it of all that is rotated through."""
    if facts.l2_bytes is None:
        return None, "the L2 size of this device is unknown"
    if case.footprint_bytes <= 0:
        return None, "the case declares no footprint, so the share that L2 could serve is unknown"
    return min(1.0, facts.l2_bytes / case.footprint_bytes), ""


def _l2_ratio(case: Case, facts: DeviceFacts) -> Metric:
    share, reason = _l2_share(case, facts)
    return _metric("l2_ratio", share, "ratio", reason=reason)


@dataclass(frozen=True)
class _TensorRate:
    """FLOP a clock of the whole device, and the clock at which that makes the data sheet's peak."""

    flop_per_clock: float | None
    spec_clock_mhz: float | None
    reason: str = ""


def _tensor_rate(bound: Bound, sheet: PeakSheet, facts: DeviceFacts) -> _TensorRate:
    if bound.work is None or bound.peak is None:
        return _TensorRate(None, None, bound.reason)
    if bound.work.unit != "FLOP":
        return _TensorRate(None, None, f"bound by {bound.name}, not by compute")
    per_sm = sheet.flop_per_clock_per_sm.get(bound.name)
    sm_count = facts.sm_count or sheet.sm_count
    if per_sm is None or sm_count is None:
        missing = "SM count" if per_sm is not None else f"'{bound.name}' rate per clock and SM"
        return _TensorRate(None, bound.peak.clock_mhz, f"the {missing} of this device is unknown")
    flop_per_clock = sm_count * per_sm
    return _TensorRate(flop_per_clock, bound.peak.clock_mhz or bound.peak.value / flop_per_clock / 1e6)


def _launch_clock(telemetry: Telemetry) -> tuple[float | None, str]:
    """The true clock where it is that of the launches, or why it is not: between them a card clocks as it likes."""
    if telemetry.sm_clock_mhz is None:
        return None, why_missing(telemetry, "sm_clock_mhz", "true clock")
    if telemetry.busy_ratio is not None and telemetry.busy_ratio < BUSY_LEAST_RATIO:
        return None, f"launches fill only {100 * telemetry.busy_ratio:.0f} % of the window in which cycles were counted"
    return telemetry.sm_clock_mhz, ""


def _at_clock_ratio(
    samples: Samples, telemetry: Telemetry, bound: Bound, sheet: PeakSheet, facts: DeviceFacts
) -> Metric:
    """Share of what the SMs could do in the cycles that passed: a property of the kernel, not of the clock."""
    rate = _tensor_rate(bound, sheet, facts)
    clock_mhz, no_clock = _launch_clock(telemetry)
    if bound.work is None or rate.flop_per_clock is None or clock_mhz is None:
        reason = rate.reason or no_clock
        return _metric("at_clock_ratio", None, "ratio", "higher", label=bound.name, reason=reason)
    possible = rate.flop_per_clock * clock_mhz * 1e6 * samples.seconds_per_launch
    return _metric("at_clock_ratio", bound.work.amount / possible, "ratio", "higher", label=bound.name)


def _clock_ratio(telemetry: Telemetry, bound: Bound, sheet: PeakSheet, facts: DeviceFacts) -> Metric:
    """True clock over the clock that the peak assumes, so that spec_ratio = at_clock_ratio x clock_ratio."""
    rate = _tensor_rate(bound, sheet, facts)
    clock_mhz, no_clock = _launch_clock(telemetry)
    if rate.spec_clock_mhz is None or clock_mhz is None:
        reason = rate.reason if rate.spec_clock_mhz is None else no_clock
        return _metric("clock_ratio", None, "ratio", reason=reason)
    return _metric("clock_ratio", clock_mhz / rate.spec_clock_mhz, "ratio", label=f"of {rate.spec_clock_mhz:.0f} MHz")


def _cycles(samples: Samples, telemetry: Telemetry) -> Metric:
    clock_mhz, no_clock = _launch_clock(telemetry)
    if clock_mhz is None:
        return _metric("cycles", None, "cycles", "lower", reason=no_clock)
    return _metric("cycles", clock_mhz * 1e6 * samples.seconds_per_launch, "cycles", "lower")


def _energies(case: Case, samples: Samples, telemetry: Telemetry, facts: DeviceFacts) -> tuple[Metric, ...]:
    """Mean power, energy a launch, and energy a unit of the headline work: gross, and net of the card at rest.

    Energy is given only where the launches fill window and card: elsewhere the power is partly that of something else.
    """
    power_w, method, busy_ratio = telemetry.power_w, telemetry.power_method, telemetry.busy_ratio
    no_power = why_missing(telemetry, "power_w", "power")
    no_energy = no_power if power_w is None else ""
    if not no_energy and facts.mig:
        no_energy = OF_A_SLICE
    if not no_energy and busy_ratio is not None and busy_ratio < BUSY_LEAST_RATIO:
        no_energy = f"launches fill only {100 * busy_ratio:.0f} % of the window in which power was read"
    idle_w = telemetry.idle_power_w
    no_net = no_energy or ("" if idle_w is not None else why_missing(telemetry, "idle_power_w", "card's power at rest"))
    net_w = None if power_w is None or idle_w is None else power_w - idle_w
    power = _metric("power", power_w, "W", label=method, interval=_power_interval(telemetry), reason=no_power)
    return (
        _with_sensor_error(power),
        *_energy_of("energy", None if no_energy else power_w, case, samples, telemetry, no_energy),
        *_energy_of("energy_net", None if no_net else net_w, case, samples, telemetry, no_net),
    )


def _energy_of(
    name: str, watts: float | None, case: Case, samples: Samples, telemetry: Telemetry, reason: str
) -> tuple[Metric, Metric]:
    """Joules a launch and joules a unit of work for so many watts, each with what chance does to it.

    Watts and seconds are taken as independent: under a power limit they are not, and the interval is on the safe side.
    """
    label, seconds = telemetry.power_method, samples.seconds_per_launch
    energy_j = None if watts is None else watts * seconds
    half_j: float | None = None
    time = mean_interval(samples.seconds)
    if watts is not None and time is not None and telemetry.power_error_w is not None:
        of_power = 1.96 * telemetry.power_error_w / abs(watts) if watts else 0.0
        half_j = abs(watts * seconds) * math.hypot(of_power, (time.high - time.low) / 2 / seconds)
    each = _metric(name, energy_j, "J", "lower", label=label, interval=_around(energy_j, half_j), reason=reason)
    if not case.work:
        no_work = reason or f"a {case.kind} case declares no work"
        return _with_sensor_error(each), _metric(f"{name}_per_work", None, "J", "lower", label=label, reason=no_work)
    amount, unit = case.work[0].amount, f"J/{case.work[0].unit}"
    per_j = None if energy_j is None else energy_j / amount
    interval = _around(per_j, None if half_j is None else half_j / amount)
    per_work = _metric(f"{name}_per_work", per_j, unit, "lower", label=label, interval=interval, reason=reason)
    return _with_sensor_error(each), _with_sensor_error(per_work)


def _of_items(case: Case, samples: Samples, energies: Sequence[Metric]) -> Iterator[Metric]:
    """Tokens or images a second, and what one costs; nothing for what handles neither."""
    items = ITEMS_BY_OP.get(case.op)
    if items is None:
        return
    count = math.prod(int(case.params[name]) for name in items.factors)
    rate, interval = count / samples.seconds_per_launch, rate_interval(count, samples.seconds)
    yield _metric(f"{items.name}s", rate, f"{items.name}/s", "higher", label=items.label, interval=interval)
    (energy,) = (metric for metric in energies if metric.name == "energy")
    low, high = (None if bound is None else bound / count for bound in (energy.low, energy.high))
    value = None if energy.value is None else energy.value / count
    yield replace(energy, name=f"energy_per_{items.name}", value=value, unit=f"J/{items.name}", low=low, high=high)


def _power_interval(telemetry: Telemetry) -> Interval | None:
    return _around(telemetry.power_w, None if telemetry.power_error_w is None else 1.96 * telemetry.power_error_w)


def _around(centre: float | None, half: float | None) -> Interval | None:
    return None if centre is None or half is None else Interval(centre - half, centre + half)


def _with_sensor_error(metric: Metric) -> Metric:
    return metric if metric.value is None else replace(metric, systematic_ratio=SENSOR_ERROR_RATIO)


def _of_ranks(samples: Samples) -> Iterator[Metric]:
    """What the host pays for a launch, and how far the fastest rank is from the slowest, as a share of its time.

    Of a launch that has parts, also the time of each by itself.
    """
    if samples.host_s is not None:
        yield _metric("host_time", samples.host_s, "s", "lower", label="until the call returns, of the slowest rank")
    if len(samples.rank_seconds) > 1:
        slowest_s, fastest_s = max(samples.rank_seconds), min(samples.rank_seconds)
        label = f"{len(samples.rank_seconds)} ranks' means over the window"
        yield _metric("rank_spread", 1 - fastest_s / slowest_s, "ratio", "lower", label=label)
    for part, seconds in samples.part_seconds.items():
        mean_s = sum(seconds) / len(seconds)
        label = "of the slowest rank, from when it could start to its end"
        yield _metric(f"time.{part}", mean_s, "s", "lower", label=label, interval=mean_interval(seconds))


def _nvml_clock_ratio(telemetry: Telemetry) -> Metric:
    """NVML's SM clock over the true one: 1.09 to 1.10 under tensor load on an H200, driver 580."""
    true_mhz, nvml_mhz = telemetry.sm_clock_mhz, telemetry.nvml_sm_clock_mhz
    if true_mhz is None:
        return _metric("nvml_clock_ratio", None, "ratio", reason=why_missing(telemetry, "sm_clock_mhz", "true clock"))
    if nvml_mhz is None:
        no_nvml = why_missing(telemetry, "nvml_sm_clock_mhz", "NVML clock")
        return _metric("nvml_clock_ratio", None, "ratio", reason=no_nvml)
    return _metric("nvml_clock_ratio", nvml_mhz / true_mhz, "ratio")


def _metric(
    name: str,
    value: float | None,
    unit: str,
    better: Better = "",
    *,
    label: str = "",
    interval: Interval | None = None,
    reason: str = "",
) -> Metric:
    """A metric whose reason is kept only where its value is unknown; there it must be given."""
    if value is not None:
        low, high = interval if interval is not None else (None, None)
        return Metric(name, value, unit, better, low, high, label)
    if not reason:
        raise ValueError(f"metric '{name}' is unknown without a reason")
    return Metric(name, None, unit, better, label=label, reason=reason)
