"""One pre-heat a run: the same load for everyone, until the card's temperature stands still.

A cold card leaks less and clocks higher, so its first cases would look better than its last.
"""

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch

from harness.statistics import rise_time

if TYPE_CHECKING:
    from harness.probe.device import CudaDevice

_SIZE = 8192
_STEADY_C = 0.5
_STEADY_S = 10.0
_EDGE_S = 2.0
# Without a temperature to look at: long enough for an air-cooled card's die, if not for its heat sink.
_BLIND_S = 15.0
# Before the step lies a rest, so that it is one step; around it, the part of the load in which it is judged.
_REST_S = 0.3
_STEP_BEFORE_S, _STEP_AFTER_S = 0.2, 3.0


def preheat(device: "CudaDevice", cap_s: float) -> dict[str, float | bool | str | None]:
    """Multiply bfloat16 matrices until the temperature is steady; how long it took and what was reached."""
    a, b, out = (torch.randn(_SIZE, _SIZE, device=device.facts.torch_device).bfloat16() for _ in range(3))
    load = device.start(lambda _: torch.mm(a, b, out=out), group_s=0.02, rest_s=_REST_S)
    temperatures: list[tuple[float, float]] = []
    began_s = time.monotonic()
    steady = False
    try:
        while not steady and time.monotonic() - began_s < (cap_s if device.gpu else min(cap_s, _BLIND_S)):
            at_s = load.run_group().ended_s
            reading = device.gpu.temperature_c() if device.gpu else None
            if reading is not None and reading.value is not None:
                temperatures.append((at_s, reading.value))
                steady = is_steady(temperatures)
    finally:
        load.finish()
    return {
        "seconds": round(time.monotonic() - began_s, 1),
        "steady": steady if temperatures else None,
        "start_c": temperatures[0][1] if temperatures else None,
        "end_c": temperatures[-1][1] if temperatures else None,
        "samples_rise_s": _rise(load.watched.samples_w, began_s),
        "instant_rise_s": _rise(load.watched.power_w, began_s),
    }


def _rise(readings: Sequence[tuple[float, float]], began_s: float) -> float | None:
    """How long a source of power took to follow the step from rest to full load."""
    step = [(at_s, watts) for at_s, watts in readings if began_s - _STEP_BEFORE_S <= at_s <= began_s + _STEP_AFTER_S]
    rise_s = rise_time([at_s for at_s, _ in step], [watts for _, watts in step])
    return None if rise_s is None else round(rise_s, 3)


def is_steady(temperatures: Sequence[tuple[float, float]]) -> bool:
    """Whether the means of the first and the last two of the trailing ten seconds differ by less than 0.5 °C."""
    end_s = temperatures[-1][0]
    recent = [(at_s, value) for at_s, value in temperatures if at_s >= end_s - _STEADY_S]
    first = [value for at_s, value in recent if at_s <= end_s - _STEADY_S + _EDGE_S]
    if end_s - temperatures[0][0] < _STEADY_S or not first:
        return False
    last = [value for at_s, value in recent if at_s >= end_s - _EDGE_S]
    return abs(sum(last) / len(last) - sum(first) / len(first)) < _STEADY_C
