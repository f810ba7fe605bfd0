"""The self-check as lines: a part a line with what was read, its bounds, and whether it is within them."""

from collections.abc import Iterator, Sequence

from harness import units
from harness.model import RulerPart
from harness.report.text import clean
from harness.selfcheck import SelfCheck

_VERDICTS = {True: "ok", False: "OFF", None: "–"}
_TITLES = {
    "ruler": "ruler: the timer, launches of known length, the tensor pipe's rate",
    "watching": "watching: how much longer a launch takes while NVML is read (on / off - 1)",
    "energy": "energy: the counter against the driver's other sources of power",
    "clocks": "clocks: NVML's over the SMs' own - 1, and how far apart the SMs are",
}
_NAMES = {
    "tick": "timer's tick",
    "rate": "timer's rate",
    "gap": "gap between launches",
    "spin_20us": "spin of 20 µs",
    "spin_200us": "spin of 200 µs",
    "spin_2ms": "spin of 2 ms",
    "spin_20ms": "spin of 20 ms",
    "pipe_bf16": "tensor pipe, bf16",
    "pipe_fp8": "tensor pipe, fp8",
    "gemm_cycles": "bf16 GEMM, cycles",
    "gemm_time": "bf16 GEMM, time",
    "gemm_fp32_time": "fp32 GEMM, time",
    "copy_time": "copy, time",
    "launch_time": "empty kernel, time",
    "all_reduce_time": "all-reduce of 8 B, time",
    "samples_step": "20 ms samples, rise",
    "instant_step": "instant field, rise",
    "at_rest": "card at rest",
    "gemm": "GEMM",
    "copy": "copy",
    "gemm_nvml": "GEMM, NVML / true",
    "gemm_sms": "GEMM, SMs apart",
    "copy_nvml": "copy, NVML / true",
    "copy_sms": "copy, SMs apart",
}
_NAME_WIDTH, _VALUE_WIDTH, _BOUNDS_WIDTH = 24, 10, 24


def selfcheck_lines(found: SelfCheck) -> list[str]:
    """The whole check; the last line alone says what came of it."""
    conditions = ", ".join(f"{clean(name)} {clean(value)}" for name, value in found.conditions.items())
    lines = [f"{clean(found.gpu)}: {conditions}"]
    for group, parts in {"ruler": found.ruler.parts, **found.parts}.items():
        lines += ["", _TITLES.get(group, clean(group)), *_group_lines(parts)]
    return [*lines, "", _conclusion(found)]


def _group_lines(parts: Sequence[RulerPart]) -> Iterator[str]:
    for part in parts:
        name, value, bounds = _NAMES.get(part.name, clean(part.name)), format_value(part), _bounds(part)
        line = f"  {_VERDICTS[part.passed]:<4}{name:<{_NAME_WIDTH}}{value:>{_VALUE_WIDTH}}  {bounds:<{_BOUNDS_WIDTH}}"
        yield f"{line}{clean(part.detail)}".rstrip()


def format_value(part: RulerPart) -> str:
    """What was read, in the unit that people read it in."""
    return _format(part, part.value)


def _bounds(part: RulerPart) -> str:
    if part.high is None:
        return ""
    if part.low is None or part.low == 0:
        return f"at most {_format(part, part.high)}"
    if part.low == -part.high:
        return f"within ± {_format(part, part.high).lstrip('+')}"
    return f"{_format(part, part.low)} to {_format(part, part.high)}"


def _format(part: RulerPart, value: float | None) -> str:
    if value is None:
        return units.UNKNOWN
    if part.unit == "s":
        return units.format_time(value)
    if part.unit == "W":
        return units.format_number(value, "W", 1)
    if part.name == "rate":
        return f"{value * 1e6:+.1f} ppm"
    if part.name.startswith("pipe"):
        return units.format_percent(value, 2)
    return f"{100 * value:+.3f} %"


def _conclusion(found: SelfCheck) -> str:
    def named(parts: Sequence[RulerPart]) -> str:
        return "; ".join(_NAMES.get(part.name, clean(part.name)) for part in parts)

    if found.failed:
        return f"OFF: {named(found.failed)}. Figures of this machine are not to be used until that is explained."
    if found.undecided:
        return f"NOT DECIDED: {named(found.undecided)}. Everything else is within its bounds."
    return "OK: everything is within its bounds."
