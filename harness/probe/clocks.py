"""The true clock of the SMs: `clock64` against `%globaltimer`, read on every SM around the work.

NVML's SM clock reads 9 to 10 % high under tensor load on an H200, so a share "at clock" needs this one. One small
kernel stamps (SM id, cycles, nanoseconds) from every SM; two stamps give each SM's mean clock in between.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import triton
import triton.language as tl

# Two programs an SM: enough that every SM gets one even if the scheduler doubles up somewhere.
_PROGRAMS_PER_SM = 2


@triton.jit
def _stamp_kernel(out):  # type: ignore[no-untyped-def]  # Triton's types are not Python's
    program = tl.program_id(0)
    sm = tl.inline_asm_elementwise("mov.u32 $0, %smid;", "=r", [], dtype=tl.int32, is_pure=False, pack=1)
    cycles = tl.inline_asm_elementwise("mov.u64 $0, %clock64;", "=l", [], dtype=tl.int64, is_pure=False, pack=1)
    nanoseconds = tl.inline_asm_elementwise(
        "mov.u64 $0, %globaltimer;", "=l", [], dtype=tl.int64, is_pure=False, pack=1
    )
    tl.store(out + program * 3, sm.to(tl.int64))
    tl.store(out + program * 3 + 1, cycles)
    tl.store(out + program * 3 + 2, nanoseconds)


@dataclass(frozen=True)
class ClockReading:
    """Mean SM clock between two stamps, over the SMs that both covered, in MHz."""

    mean_mhz: float
    slowest_mhz: float
    fastest_mhz: float
    sms_covered: int


Stamp = dict[int, tuple[int, int]]
"""One stamp: SM id -> (cycles, nanoseconds)."""


def clock_between(first: Stamp, last: Stamp) -> ClockReading | None:
    """Each SM's cycles over its own nanoseconds; `None` if no SM is in both stamps or time did not move."""
    clocks = []
    for sm in first.keys() & last.keys():
        cycles = last[sm][0] - first[sm][0]
        elapsed_ns = last[sm][1] - first[sm][1]
        if elapsed_ns > 0 and cycles > 0:
            clocks.append(1e3 * cycles / elapsed_ns)
    if not clocks:
        return None
    return ClockReading(sum(clocks) / len(clocks), min(clocks), max(clocks), len(clocks))


def as_stamp(rows: Sequence[Sequence[int]]) -> Stamp:
    """Rows of (SM id, cycles, nanoseconds) by SM; of two programs on one SM the first row counts."""
    stamp: Stamp = {}
    for sm, cycles, nanoseconds in rows:
        stamp.setdefault(sm, (cycles, nanoseconds))
    return stamp


class Stamper:
    """A ring of stamps on the device, written on the stream under test and read back on another one."""

    def __init__(self, sm_count: int, slots: int = 2048) -> None:
        self._programs = _PROGRAMS_PER_SM * sm_count
        self._ring = torch.zeros((slots, self._programs, 3), dtype=torch.int64, device="cuda")
        self._side = torch.cuda.Stream()
        self._count = 0

    def enqueue(self) -> int:
        """Enqueue one stamp on the current stream; the number to `read` it by once it has run."""
        number = self._count
        _stamp_kernel[(self._programs,)](self._ring[number % len(self._ring)], num_warps=1)
        self._count += 1
        return number

    def read(self, number: int) -> Stamp:
        """A stamp that has run, copied without waiting for what is queued behind it."""
        if self._count - number > len(self._ring):
            raise IndexError(f"stamp {number} has been overwritten: the ring holds {len(self._ring)}")
        with torch.cuda.stream(self._side):
            rows: Any = self._ring[number % len(self._ring)].to("cpu", non_blocking=True)
            self._side.synchronize()
        return as_stamp(rows.tolist())
