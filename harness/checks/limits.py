"""Power limit and clocks: what the card was allowed, against what it could have."""

from harness.findings import Finding, GpuCheck, Said, Unjudged
from harness.machine import Load, Machine, SeenGpu
from harness.units import format_percent

# Below this share of the default limit a card is one of its own.
_LOWERED_RATIO = 0.95
_CLOCK_TOLERANCE_RATIO = 0.02
# NVIDIA's clocks move in steps of 15 MHz.
_CLOCK_STEP_MHZ = 15
# Events that explain a low clock without anybody having set it.
_CLOCK_REASONS = frozenset(("power_cap", "hw_slowdown", "thermal_sw", "thermal_hw", "brake_hw", "sync_boost"))


def _power_limit(gpu: SeenGpu, machine: Machine) -> Said:
    limit_w, default_w = gpu.facts.number("power_limit_w"), gpu.facts.number("power_limit_default_w")
    if limit_w is None or not default_w:
        yield Unjudged("power limit", gpu.facts.why("power_limit_w", "power_limit_default_w"))
        return
    if limit_w == default_w:
        return
    requested_w = gpu.facts.number("power_limit_requested_w")
    is_held = requested_w is not None and limit_w < requested_w
    if is_held:
        cause = (
            f"{requested_w:g} W are requested: something above the operator's setting holds it (module, chassis, rack)."
        )
    elif limit_w > default_w:
        cause = "Somebody raised it: rates are better than those of other cards of this model."
    elif limit_w < _LOWERED_RATIO * default_w:
        cause = "Somebody lowered it, and by more than 5 %: compute-bound rates are the limit's, not the model's."
    else:
        cause = "Somebody lowered it a little: compute-bound rates are slightly below the model's."
    remedy = (
        "Look at the power capping of the chassis and at `nvidia-smi -q -d POWER`."
        if is_held
        else f"`nvidia-smi -pl {default_w:.0f}` as root; or compare with runs under {limit_w:g} W only."
    )
    share = format_percent(limit_w / default_w)
    yield Finding("key", f"power limit {limit_w:g} W, default {default_w:g} W ({share})", cause, remedy)


def clocks(gpu: SeenGpu, declared_mhz: float | None) -> Said:
    """Whether clocks are set below the maximum; a declared clock is checked instead."""
    yield from _memory_clock(gpu)
    if declared_mhz is not None:
        yield from _declared_clock(gpu.load, declared_mhz)
        return
    set_below = list(_domain_clock(gpu, "sm", "SM clock", ", or declare it: clocks=locked:{:.0f}"))
    yield from set_below
    most_mhz, seen_mhz, least_mhz = (
        gpu.facts.number("max_sm_clock_mhz"),
        gpu.load.sm_clock_most_mhz,
        gpu.load.sm_clock_least_mhz,
    )
    if most_mhz is None or seen_mhz is None or least_mhz is None:
        why = gpu.facts.why("max_sm_clock_mhz") if most_mhz is None else gpu.load.missing or "the clock was not read"
        yield Unjudged("locked clocks", why)
        return
    is_flat = seen_mhz - least_mhz <= _CLOCK_STEP_MHZ
    is_low = seen_mhz < (1 - _CLOCK_TOLERANCE_RATIO) * most_mhz
    if is_flat and is_low and not gpu.load.events & _CLOCK_REASONS and not set_below:
        yield Finding(
            "key",
            f"SM clock stood at {seen_mhz:.0f} MHz under load, maximum {most_mhz:.0f} MHz",
            "Nothing else held it, so clocks are probably locked or capped; NVML has no call that tells.",
            f"`nvidia-smi -rgc` as root, or declare it: clocks=locked:{seen_mhz:.0f}.",
        )


def _memory_clock(gpu: SeenGpu) -> Said:
    """Targets, and the clock that the memory really had under load."""
    set_below = list(_domain_clock(gpu, "memory", "memory clock"))
    yield from set_below
    most_mhz, seen_mhz = gpu.facts.number("max_memory_clock_mhz"), gpu.load.memory_clock_mhz
    if most_mhz is None or seen_mhz is None:
        why = (
            gpu.facts.why("max_memory_clock_mhz") if most_mhz is None else gpu.load.missing or "the clock was not read"
        )
        yield Unjudged("memory clock", why)
    elif seen_mhz < (1 - _CLOCK_TOLERANCE_RATIO) * most_mhz and not set_below:
        yield Finding(
            "key",
            f"memory clock {seen_mhz:.0f} MHz under load, maximum {most_mhz:.0f} MHz",
            "It is locked or capped, or this card computes in a state below its first (P2 on consumer cards).",
            "`nvidia-smi -rmc` as root; or compare with runs at this clock only.",
        )


def _domain_clock(gpu: SeenGpu, name: str, words: str, declaring: str = "") -> Said:
    """Targets that were set below the maximum; a target at its factory default is no setting."""
    most_mhz = gpu.facts.number(f"max_{name}_clock_mhz")
    target_mhz = gpu.facts.number(f"application_{name}_clock_mhz")
    default_mhz = gpu.facts.number(f"application_{name}_clock_default_mhz")
    boost_mhz = gpu.facts.number(f"customer_boost_{name}_clock_mhz")
    if most_mhz is None:
        return
    if target_mhz is not None and target_mhz < most_mhz and target_mhz != default_mhz:
        yield Finding(
            "key",
            f"application {words} {target_mhz:.0f} MHz, maximum {most_mhz:.0f} MHz",
            "Somebody set a target below the maximum.",
            f"`nvidia-smi -rac` as root{declaring.format(target_mhz)}.",
        )
    if boost_mhz is not None and boost_mhz < most_mhz:
        yield Finding(
            "key",
            f"{words} may boost to {boost_mhz:.0f} MHz, maximum {most_mhz:.0f} MHz",
            "The customer's maximum boost is below the card's.",
            f"Ask whoever delivers the card; rates are those of {boost_mhz:.0f} MHz.",
        )


def _declared_clock(load: Load, declared_mhz: float) -> Said:
    """A declaration is believed where it can be true: no clock seen is not one to complain of."""
    if load.sm_clock_most_mhz is None:
        yield Unjudged(f"the declared {declared_mhz:.0f} MHz", load.missing or "the clock was not read")
    elif abs(load.sm_clock_most_mhz / declared_mhz - 1) > _CLOCK_TOLERANCE_RATIO:
        yield Finding(
            "blocker",
            f"{declared_mhz:.0f} MHz declared, the SM clock reached {load.sm_clock_most_mhz:.0f} MHz under load",
            "The clocks are not locked where the declaration says: every key of the run would be wrong.",
            f"`nvidia-smi -lgc {declared_mhz:.0f},{declared_mhz:.0f}` as root, or leave the declaration out.",
        )


GPU_CHECKS: tuple[GpuCheck, ...] = (_power_limit,)
