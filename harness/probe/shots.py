"""Single calls by the host's clock: for what a driver does while the host waits, which no event on the device times."""

import gc
import time
from fractions import Fraction

from harness.probe.load import Launch

TIMER = "perf_counter"


def time_shots(shot: Launch, shots: int, before: Launch | None = None, held: Fraction = Fraction(0)) -> list[float]:
    """Seconds of each call; `before` runs before each, outside its time. Python's garbage collector waits meanwhile.

    Nothing is subtracted: a Python call and two looks at the clock, 0.1 to 0.3 µs, are in every one of them. A call is
    `held` for that share of its own time longer, to within a look at the clock: a slowdown that is asked for.
    """
    seconds = []
    factor = 1 + float(held)
    collects = gc.isenabled()
    gc.disable()
    try:
        for i in range(shots):
            if before is not None:
                before(i)
            began_s = time.perf_counter()
            told = shot(i)
            took_s = time.perf_counter() - began_s
            if isinstance(told, float):
                took_s = told * factor
            elif held:
                ends_s = began_s + took_s * factor
                while time.perf_counter() < ends_s:
                    pass
                took_s = time.perf_counter() - began_s
            seconds.append(took_s)
    finally:
        if collects:
            gc.enable()
    return seconds
