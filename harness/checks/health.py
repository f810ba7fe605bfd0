"""The card's health: ECC, errors, repairs that wait for a reset, heat."""

from harness.findings import Finding, GpuCheck, Said, Unjudged, number_of, on_or_off
from harness.machine import Machine, SeenGpu

_THERMAL = frozenset(("thermal_sw", "thermal_hw"))
_BRAKE = "brake_hw"
# An H200 rests at about 30 °C and slows down some 60 °C above.
_COOL_MARGIN_C = 20
_HOT_AT_REST_C = 65


def _ecc(gpu: SeenGpu, machine: Machine) -> Said:
    now, later = gpu.facts.flag("ecc"), gpu.facts.flag("ecc_after_reboot")
    if now is None or later is None:
        yield Unjudged("ECC", gpu.facts.why("ecc", "ecc_after_reboot"))
        return
    if now != later:
        yield Finding(
            "blocker",
            f"ECC is {on_or_off(now)} and will be {on_or_off(later)} after a reboot",
            "The next reboot changes the memory's size and speed.",
            f"Reboot now, or set it back (`nvidia-smi -e {int(now)}`).",
        )
    if not now:
        yield Finding(
            "key",
            "ECC is off, cards are delivered with it on",
            "Memory is larger, some cards' is faster, and errors stay unseen.",
            "`nvidia-smi -e 1` as root and a reboot; or compare with runs without ECC only.",
        )


def _errors(gpu: SeenGpu, machine: Machine) -> Said:
    now, ever = gpu.facts.number("ecc_uncorrected"), gpu.facts.number("ecc_uncorrected_lifetime")
    if now is None:
        yield Unjudged("ECC errors", gpu.facts.why("ecc_uncorrected"))
    elif now:
        yield Finding(
            "blocker",
            f"{number_of(now, 'uncorrected ECC error')} since the driver was loaded, none may be",
            "Memory gave back what was not written.",
            "Drain and reset the GPU (`nvidia-smi -r`); if they come back, have it replaced.",
        )
    elif ever:
        yield Finding(
            "note",
            f"{number_of(ever, 'uncorrected ECC error')} in the card's life, none since the driver was loaded",
            "Rows were replaced, or a run was lost.",
            "Nothing now; watch `nvidia-smi -q -d ECC`.",
        )
    if gpu.facts.flag("sram_threshold_exceeded"):
        yield Finding(
            "blocker",
            "SRAM errors are above the threshold",
            "The card itself asks for its replacement.",
            "Have it replaced; `nvidia-smi -q -d ECC` shows the counters.",
        )


def _repairs(gpu: SeenGpu, machine: Machine) -> Said:
    """Row remapping since Ampere, page retirement before."""
    pending, failed = gpu.facts.flag("remapped_rows_pending"), gpu.facts.flag("remapped_rows_failed")
    pages = gpu.facts.flag("retired_pages_pending")
    if pending is None and pages is None:
        yield Unjudged("row remapping", gpu.facts.why("remapped_rows_pending"))
    rows = gpu.facts.number("remapped_rows") or 0
    for is_found, what in (
        (pending, f"a row remapping is pending, {rows:.0f} done"),
        (pages, f"page retirements are pending, {gpu.facts.number('retired_pages') or 0:.0f} done"),
        (gpu.facts.flag("repair_pending"), "a repair of the memory or a TPC is pending"),
    ):
        if is_found:
            yield Finding(
                "blocker",
                what,
                "The faulty memory is in use until the next reset.",
                "Drain and reset the GPU (`nvidia-smi -r`) or reboot.",
            )
    if failed:
        yield Finding(
            "blocker",
            f"a row remapping failed after {rows:.0f}",
            "No spare rows are left where one is needed.",
            "Have the card replaced.",
        )


def _heat(gpu: SeenGpu, machine: Machine) -> Said:
    events = gpu.load.events | set((gpu.facts.word("clock_events") or "").split(", "))
    temperature_c, margin_c = gpu.facts.number("temperature_c"), gpu.facts.number("temperature_margin_c")
    slowdown_c = gpu.facts.number("threshold_slowdown_c")
    shown = f"{temperature_c:.0f} °C" if temperature_c is not None else "an unknown temperature"
    limit = f", it slows down at {slowdown_c:.0f} °C" if slowdown_c is not None else ""
    if events & _THERMAL:
        yield Finding(
            "blocker",
            f"thermal slowdown is active at {shown}{limit}",
            "The cooling is measured, not the card.",
            "Look at fans, inlet temperature and the heat sink; let it cool.",
        )
    if _BRAKE in events:
        yield Finding(
            "blocker",
            "the power brake is active",
            "The power supply or the chassis slows the card down from outside.",
            "Look at the power supplies and the chassis' event log.",
        )
    if temperature_c is None:
        yield Unjudged("temperature at rest", gpu.facts.why("temperature_c"))
        return
    if margin_c is None and slowdown_c is not None:
        margin_c = slowdown_c - temperature_c
    is_hot = margin_c < _COOL_MARGIN_C if margin_c is not None else temperature_c >= _HOT_AT_REST_C
    if is_hot and not events & _THERMAL:
        room = f", {margin_c:.0f} °C below the slowdown" if margin_c is not None else f", {_HOT_AT_REST_C} °C is much"
        yield Finding(
            "key",
            f"{shown} at rest{room}",
            "It is badly cooled or was loaded a moment ago; it will slow down early.",
            "Let it cool, look at the air flow, and measure again.",
        )


GPU_CHECKS: tuple[GpuCheck, ...] = (_ecc, _errors, _repairs, _heat)
