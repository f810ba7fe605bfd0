"""The card at rest with the context open: what is taken off for net energy.

An open context keeps the clocks up (119 W on an H200), so this is what a launch adds to; a sleeping card (81 W) is not.
"""

import time

from harness.probe.nvml import Gpu
from harness.statistics import counter_power

# Opening the context wakes the card: what it draws meanwhile is not counted.
_WAKING_S = 0.5
_LEAST_S = 1.5


class Rest:
    """Reads the energy counter from now until `end`; nothing may be launched in between."""

    def __init__(self, gpu: Gpu | None) -> None:
        from harness.probe.telemetry import Watch

        self._gpu = gpu
        self._watch = Watch(gpu) if gpu else None
        self._began_s = time.monotonic()

    def end(self) -> dict[str, float | bool | str | None]:
        """Wait until a second and a half was watched; mean power, how long, how warm, or why it is unknown."""
        if self._gpu is None or self._watch is None:
            return {"power_w": None, "seconds": None, "temperature_c": None, "reason": "NVML does not list this GPU"}
        first_s = self._began_s + _WAKING_S
        time.sleep(max(0.0, first_s + _LEAST_S - time.monotonic()))
        last_s = time.monotonic()
        self._watch.stop()
        watched = self._watch.watched
        fit = counter_power([t for t, _ in watched.energy_j], [e for _, e in watched.energy_j], first_s, last_s)
        temperature = self._gpu.temperature_c().value
        return {
            "power_w": None if fit.power_w is None else round(fit.power_w, 2),
            "seconds": round(last_s - first_s, 1),
            "temperature_c": None if temperature is None else float(temperature),
            "reason": "" if fit.power_w is not None else watched.missing.get("energy", "") or fit.reason,
        }
