"""The ruler is checked before anything is measured with it: timer, events, and the tensor pipe's own rate.

Times come from CUDA events, clocks from `clock64` against `%globaltimer`. If the timer ticked coarsely or ran fast, or
if launches were enqueued so that an event timed the host, every figure of the run would be wrong alike and no
comparison would show it. Four parts, each held against something that does not share its fault.
"""

import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch
import triton
import triton.language as tl

from harness.model import Ruler, RulerPart
from harness.probe.clocks import Stamp, Stamper, clock_between
from harness.probe.load import Launch
from harness.probe.pipe import LEAST_CAPABILITY, ResidentLoop
from harness.probe.timing import choose_pace, open_queue, spin
from harness.ruler import (
    MOST_TICK_S,
    PIPE_LEAST_RATIO,
    PIPE_MOST_RATIO,
    PIPE_PROVEN_CAPABILITY,
    SPINS_S,
    TimerPair,
    conclude,
    judge_pipe,
    judge_rate,
    judge_spin,
    judge_tick,
)

if TYPE_CHECKING:
    from harness.probe.device import CudaDevice

_READINGS = 4096
_PAIR_TRIES = 50
_PIPE_S = 0.3
# Under load a data-centre GPU's clock is about this; it only sets how long the loop runs.
_LIKELY_HZ = 1.6e9
_BLOCK_S = 0.02
_SPIN_SLOTS = 8192
_GROUP_S = 0.0125


@triton.jit
def _timer_kernel(out, READINGS: tl.constexpr):  # type: ignore[no-untyped-def]  # Triton's types are not Python's
    for i in range(READINGS):
        now = tl.inline_asm_elementwise("mov.u64 $0, %globaltimer;", "=l", [], dtype=tl.int64, is_pure=False, pack=1)
        tl.store(out + i, now)


@triton.jit
def _told_spin_kernel(out, duration_ns):  # type: ignore[no-untyped-def]
    """Spins so long and tells how long it really was."""
    start = tl.inline_asm_elementwise("mov.u64 $0, %globaltimer;", "=l", [], dtype=tl.int64, is_pure=False, pack=1)
    now = start
    while now - start < duration_ns:
        now = tl.inline_asm_elementwise("mov.u64 $0, %globaltimer;", "=l", [], dtype=tl.int64, is_pure=False, pack=1)
    tl.store(out, now - start)


class RulerCheck:
    """The check from its first reading of the timer to its verdict; what lies between gives the timer's rate."""

    def __init__(self, device: "CudaDevice", flop_per_clock_per_sm: Mapping[str, int]) -> None:
        self._device = device
        self._rates = flop_per_clock_per_sm
        self._first = pair_timers()

    def conclude(self) -> Ruler:
        """Every part, now. The rate needs five seconds since the check began; the pre-heat is longer.

        A check that breaks off (a kernel that does not compile here) leaves the ruler unknown, and the run goes on.
        """
        try:
            return conclude(self._read_parts())
        except (RuntimeError, triton.TritonError) as error:
            return Ruler("unknown", reason=f"the check broke off: {' '.join(str(error).split())[:120]}")

    def _read_parts(self) -> list[RulerPart]:
        tick = judge_tick(read_timer())
        tick_s = tick.value or MOST_TICK_S
        gap_s = self._read_spin(0.0)[0]
        parts = [tick, judge_rate(self._first, pair_timers())]
        # What a launch of nothing takes: not judged, but what the spins are judged with.
        parts.append(RulerPart("gap", gap_s > 0, gap_s, "s", 0.0, None, "an empty kernel, enqueued as cases are"))
        for name, duration_s in SPINS_S.items():
            parts.append(judge_spin(name, *self._read_spin(duration_s), gap_s, tick_s))
        parts += [self._read_pipe(dtype) for dtype in LEAST_CAPABILITY if self._has_pipe(dtype)]
        return parts

    def _read_spin(self, duration_s: float) -> tuple[float, float]:
        """Seconds a launch as a case would read them, and as the kernels themselves tell."""
        told_ns = torch.full((_SPIN_SLOTS,), -1, dtype=torch.int64, device="cuda")
        duration_ns = round(duration_s * 1e9)

        def launch(i: int) -> None:
            _told_spin_kernel[(1,)](told_ns[i % _SPIN_SLOTS :], duration_ns, num_warps=1)

        launch(0)
        torch.cuda.synchronize()
        _, queue = open_queue(launch, choose_pace(launch, _GROUP_S), self._device.stamper)
        groups = [queue.run_group() for _ in range(5)][1:]
        queue.drain()
        reading_s = sorted(group.seconds / group.launches for group in groups)[len(groups) // 2]
        told = told_ns[told_ns >= 0].double()
        return reading_s, float(told.mean()) * 1e-9

    def _has_pipe(self, dtype: str) -> bool:
        facts = self._device.facts
        return dtype in self._rates and facts.at_least(*LEAST_CAPABILITY[dtype]) and bool(facts.sm_count)

    def _read_pipe(self, dtype: str) -> RulerPart:
        name, capability = f"pipe_{dtype}", self._device.facts.compute_capability or (0, 0)
        sm_count = self._device.facts.sm_count or 0
        try:
            loop = ResidentLoop(dtype, sm_count, capability)
            sqnr_db = loop.sqnr_db()
            witness = watch_pipe(loop, self._device.stamper, self._rates[dtype], _PIPE_S)
        except (RuntimeError, triton.TritonError) as error:
            detail = f"the resident loop does not run here: {' '.join(str(error).split())[:120]}"
            return RulerPart(name, None, None, "ratio", PIPE_LEAST_RATIO, PIPE_MOST_RATIO, detail)
        part = judge_pipe(name, witness.ratio, sqnr_db, capability[:1] == PIPE_PROVEN_CAPABILITY)
        if part.detail:
            return part
        told = f"{witness.flop_per_s * 1e-12:.1f} TFLOP/s at {witness.clock_mhz:.0f} MHz for {witness.seconds:.2f} s"
        return replace(part, detail=told)


@dataclass(frozen=True)
class PipeWitness:
    """The resident loop's FLOP over those possible in the counted cycles, and the two ways in which they are counted.

    `clock_mhz` by the stamps around the launch, as a case has them; `own_cycles` and `own_clock_mhz` by the loop's own
    programs from their first product to their last, which is what a profiler's counters can be held against, beside
    the `own_cycles_needed` by the architecture's rate.
    """

    ratio: float
    flop_per_s: float
    clock_mhz: float
    seconds: float
    own_cycles: float
    own_cycles_needed: float
    own_clock_mhz: float


def empty_launch() -> Launch:
    """Launches of a kernel that does next to nothing: what is left is the launch."""
    told_ns = torch.zeros(_SPIN_SLOTS, dtype=torch.int64, device="cuda")
    return lambda i: _told_spin_kernel[(1,)](told_ns[i % _SPIN_SLOTS :], 0, num_warps=1)


def watch_pipe(loop: ResidentLoop, stamper: Stamper, flop_per_clock_per_sm: int, seconds: float) -> PipeWitness:
    """Run the loop for about so long, between two stamps of every SM."""
    iterations = max(1, int(seconds * _LIKELY_HZ * flop_per_clock_per_sm / loop.tile.flop))
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    spin(_BLOCK_S)
    first = stamper.enqueue()
    start.record()
    loop.launch(iterations)
    end.record()
    last = stamper.enqueue()
    torch.cuda.synchronize()
    opening, closing = stamper.read(first), stamper.read(last)
    clock = clock_between(opening, closing)
    own_opening, own_closing = loop.stamps()
    own = clock_between(own_opening, own_closing)
    if clock is None or own is None or clock.sms_covered < loop.programs:
        raise RuntimeError("the stamps did not come from every SM")
    device_s = start.elapsed_time(end) * 1e-3
    return PipeWitness(
        ratio=loop.flop(iterations) / (loop.programs * flop_per_clock_per_sm * _mean_cycles(opening, closing)),
        flop_per_s=loop.flop(iterations) / device_s,
        clock_mhz=clock.mean_mhz,
        seconds=device_s,
        own_cycles=_mean_cycles(own_opening, own_closing),
        own_cycles_needed=loop.flop(iterations) / (loop.programs * flop_per_clock_per_sm),
        own_clock_mhz=own.mean_mhz,
    )


def _mean_cycles(opening: Stamp, closing: Stamp) -> float:
    cycles = [closing[sm][0] - opening[sm][0] for sm in opening.keys() & closing.keys()]
    return sum(cycles) / len(cycles)


def read_timer() -> list[int]:
    """The timer's readings in ns, one after another by one program as fast as it can."""
    out = torch.zeros(_READINGS, dtype=torch.int64, device="cuda")
    _timer_kernel[(1,)](out, _READINGS, num_warps=1)
    torch.cuda.synchronize()
    readings: list[int] = out.tolist()
    return readings


def pair_timers() -> TimerPair:
    """Both clocks at one time: of many tries the one in which the host waited least."""
    out = torch.zeros(1, dtype=torch.int64, device="cuda")
    clock = getattr(time, "CLOCK_MONOTONIC_RAW", time.CLOCK_MONOTONIC)
    _timer_kernel[(1,)](out, 1, num_warps=1)
    torch.cuda.synchronize()
    best: TimerPair | None = None
    for _ in range(_PAIR_TRIES):
        before_ns = time.clock_gettime_ns(clock)
        _timer_kernel[(1,)](out, 1, num_warps=1)
        torch.cuda.synchronize()
        after_ns = time.clock_gettime_ns(clock)
        if best is None or after_ns - before_ns < best.width_ns:
            best = TimerPair(int(out.item()), (before_ns + after_ns) // 2, after_ns - before_ns)
    assert best is not None
    return best
