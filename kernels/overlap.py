"""A step of computing beside communicating, as each rank runs it: a GEMM and a collective, alone, in turn, or at once.

The collective moves a buffer of its own, as large as the GEMM's result: what the layer before has made, which training
sends while the next layer computes. So nothing in a step waits for anything else in it, and both results can be
checked.
"""

import math
import os
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import torch

from kernels import gemm_torch
from kernels.collectives import DTYPES, collective, poison
from kernels.reference import fill_normal, gemm_rows

MODES = ("compute", "communicate", "serial", "overlap")
GEMM, COLLECTIVE = "gemm", "collective"

_UNLIMITED = 10**6
_SETS = 2
_CHUNK = 2**26
# One row in every tile of 128, and of small matrices more; every column.
_TILE_ROWS = 128
_LEAST_ROWS = 64
# What summing in float32 may add to a result of a size of sqrt(k): 1/1024 of it, 16 times what 512 roundings do.
_SUM_ERROR = 2.0**-10
# Longer than a step takes: a rank that is so late shows who did not wait for it.
_LATE_S = 0.02


class TwoStreams:
    """A second stream of a GPU beside the current one, joined by events, so that a CUDA graph holds both.

    With `async_op=False` torch launches NCCL's kernel on the current stream (since 2.8; before, on one of its own that
    waits for the current stream and is waited for). The second stream has the higher priority, as torch's FSDP gives
    its all-gathers: where blocks of both wait for an SM, the collective's few come first.
    """

    def __init__(self, device: str) -> None:
        self._side = torch.cuda.Stream(torch.device(device), priority=-1)

    def fork(self, work: Callable[[], None]) -> None:
        """Queue the work beside what comes next, after all that came before."""
        self._side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self._side):
            work()

    def join(self) -> None:
        """What comes next waits for the work."""
        torch.cuda.current_stream().wait_stream(self._side)


class TwoThreads:
    """The same on a CPU, where a collective holds the thread that calls it.

    Each rank computes with its share of the processors, or ranks would wait for one another's threads.
    """

    def __init__(self, ranks: int) -> None:
        torch.set_num_threads(max(1, len(os.sched_getaffinity(0)) // ranks))
        self._pool = ThreadPoolExecutor(1)
        self._running: Future[None] | None = None

    def fork(self, work: Callable[[], None]) -> None:
        """Start the work beside what comes next."""
        self._running = self._pool.submit(work)

    def join(self) -> None:
        """Wait for the work; raises what went wrong in it."""
        if self._running is not None:
            self._running.result()


class Spans:
    """When each part of a launch began and ended: events on its own stream of a GPU, the host's clock on a CPU."""

    def __init__(self, is_gpu: bool) -> None:
        self._is_gpu = is_gpu
        self._seen: dict[tuple[str, int], tuple[Any, Any]] = {}

    @contextmanager
    def around(self, part: str, launch: int) -> Iterator[None]:
        """Keep the span of what is queued inside; in a graph that is captured there is none."""
        if self._is_gpu and torch.cuda.is_current_stream_capturing():
            yield
            return
        began = self._mark()
        yield
        self._seen[part, launch] = began, self._mark()

    def seconds(self, part: str, launches: range) -> list[float]:
        """The part's seconds in each of these launches, all of which have ended; empty where it is not in them."""
        seen = [self._seen[part, i] for i in launches if (part, i) in self._seen]
        if len(seen) < len(launches):
            return []
        return [began.elapsed_time(ended) * 1e-3 if self._is_gpu else ended - began for began, ended in seen]

    def _mark(self) -> Any:
        if not self._is_gpu:
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event


class Gemm:
    """out[m, n] = a[m, k] @ b[n, k]^T by the vendor's library, on normal random data; launches rotate through sets."""

    def __init__(self, device: str, rank: int, m: int, n: int, k: int, dtype: str) -> None:
        self._rank, self._k = rank, k
        self._a, self._b, self._out = (
            [torch.empty(rows, columns, dtype=DTYPES[dtype], device=device) for _ in range(_SETS)]
            for rows, columns in ((m, k), (n, k), (m, n))
        )
        self._launches = [gemm_torch.plan(*operands) for operands in zip(self._a, self._b, self._out, strict=True)]
        self._rows = torch.linspace(0, m - 1, max(min(m, _LEAST_ROWS), m // _TILE_ROWS), device=device).long()

    def launch(self, i: int) -> None:
        """Multiply set i."""
        self._launches[i % _SETS]()

    def fill(self, seed: int) -> None:
        """New operands on every rank, and no result."""
        for number, operand in enumerate((*self._a, *self._b)):
            fill_normal(operand, (seed * 1000 + self._rank) * 2 * _SETS + number)
        for out in self._out:
            out.fill_(math.nan)

    def wrong_elements(self, i: int) -> int:
        """In sampled rows of set i what differs from float64 by more than rounding; anywhere, what is not finite.

        Rounding to the type changes a value by half its epsilon at most.
        """
        a, b, out = (operands[i % _SETS] for operands in (self._a, self._b, self._out))
        expected = gemm_rows(a, b, self._rows)
        allowed = expected.abs() * torch.finfo(out.dtype).eps / 2 + math.sqrt(self._k) * _SUM_ERROR
        is_right = (out[self._rows].double() - expected).abs() <= allowed
        return int((~is_right).sum()) + sum(int((~piece.isfinite()).sum()) for piece in out.view(-1).split(_CHUNK))


class Step:
    """One launch: the GEMM (`compute`), the collective (`communicate`), both in turn (`serial`) or at once (`overlap`).

    All modes hold the same buffers, and their ranks meet before a group of launches, so that they differ in nothing
    else.
    """

    def __init__(
        self,
        device: str,
        rank: int,
        ranks: int,
        op: str,
        shape: tuple[int, int, int],
        size_bytes: int,
        dtype: str,
        mode: str,
    ) -> None:
        self.rank, self.ranks, self.mode = rank, ranks, mode
        is_gpu = device != "cpu"
        self._lanes = TwoStreams(device) if is_gpu else TwoThreads(ranks)
        self._spans = Spans(is_gpu)
        self._gemm = Gemm(device, rank, *shape, dtype)
        buffers = "in_place" if op == "all_reduce" else "out_of_place"
        self._collective = collective(device, rank, ranks, op, size_bytes, dtype, buffers)

    def launch(self, i: int) -> None:
        """Run the step once. Overlapped, the collective is queued first: it is what the step before has left to do."""
        if self.mode == "overlap":
            self._lanes.fork(lambda: self._communicate(i))
            self._compute(i)
            self._lanes.join()
            return
        if self.mode != "communicate":
            self._compute(i)
        if self.mode != "compute":
            self._communicate(i)

    def part_seconds(self, launches: range) -> dict[str, list[float]]:
        """The time that each part took by itself in these launches, from when it could start to when it had ended."""
        found = {part: self._spans.seconds(part, launches) for part in (GEMM, COLLECTIVE)}
        return {part: seconds for part, seconds in found.items() if seconds}

    def fill(self, seed: int) -> None:
        """New data for both parts."""
        self._gemm.fill(seed)
        self._collective.fill(seed)

    def restore(self) -> None:
        """This rank's data for the collective again, and no rank runs ahead."""
        self._collective.restore()

    def launches_before_overflow(self) -> int:
        """How often the collective can follow itself before values leave the type's range."""
        return _UNLIMITED if self.mode == "compute" else self._collective.launches_before_overflow()

    def launches_that_can_be_checked(self) -> int:
        """How often the collective can follow itself so that its result is still known exactly."""
        return _UNLIMITED if self.mode == "compute" else self._collective.launches_that_can_be_checked()

    def wrong_elements(self) -> int:
        """Launch once for each set and rank, one rank coming late, and count what is wrong as soon as each has ended.

        The ranks that wait for the late one have multiplied long before their collective ends, so that a step that does
        not wait for both of its parts is seen.
        """
        wrong = 0
        for i in range(max(_SETS, self.ranks)):
            if not self._collective.is_in_place:
                poison(self._collective.result)
            self._collective.restore()
            if self.rank == i % self.ranks:
                time.sleep(_LATE_S)
            self.launch(i)
            if self.mode != "compute":
                wrong += self._collective.wrong_after(1)
            if self.mode != "communicate":
                wrong += self._gemm.wrong_elements(i)
        return wrong

    def wrong_after(self, launches: int) -> int:
        """How many elements are wrong after so many launches that followed one another."""
        wrong = 0 if self.mode == "compute" else self._collective.wrong_after(launches)
        sets = 0 if self.mode == "communicate" else min(launches, _SETS)
        return wrong + sum(self._gemm.wrong_elements(i) for i in range(sets))

    def _compute(self, i: int) -> None:
        with self._spans.around(GEMM, i):
            self._gemm.launch(i)

    def _communicate(self, i: int) -> None:
        with self._spans.around(COLLECTIVE, i):
            self._collective.launch(i)


def step(
    device: str, rank: int, ranks: int, op: str, shape: tuple[int, int, int], size_bytes: int, dtype: str, mode: str
) -> Step:
    """The body that a rank runs for one mode of a step; `shape` is m, n, k."""
    return Step(device, rank, ranks, op, shape, size_bytes, dtype, mode)
