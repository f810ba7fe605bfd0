"""The best shape, measured: what the pure search of harness/peak.py asks for, on a GPU and checked first.

Operands are views of three pools that were filled once, so that a shape costs its launches and little else.
"""

import contextlib
import importlib
import json
import math
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
import triton

from harness.errors import ExitCode, HarnessError
from harness.model import Telemetry
from harness.peak import Effort, PeakReport, RefusedError, Search, Shape
from harness.probe.device import CudaDevice, discover, environment_of
from harness.probe.measure import Protocol, Subject, time_window
from harness.probe.protocols import FLUSHED_BYTES, MAMF, PeerProtocols
from harness.specs import lookup

OURS = "ours"
PROTOCOLS = (OURS, MAMF)
DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp8_e4m3": torch.float8_e4m3fn}
PEAKS = {"bf16": "bf16", "fp16": "fp16", "fp8_e4m3": "fp8"}
LEAST_CAPABILITY = {"bf16": (8, 0), "fp16": (7, 0), "fp8_e4m3": (8, 9)}
# Kernels come with a checkout and not with the wheel; the probe knows them by name alone.
PLANS = {"torch": "kernels.gemm_torch", "triton": "kernels.gemm"}

# A turn of the finals under our own protocol: the load never pauses, so that 0.8 s bring the clock down to what
# the power limit allows the next shape.
TURN = Protocol(window_s=0.8, settle_s=0.8, settle_cap_s=0.8, preheat_cap_s=0.0)
# Finalists, and seconds that a turn of one takes with what lies around it.
FINALS = {OURS: (3, 1.8), MAMF: (5, 0.3)}
# Launches untimed and timed after a flush each, or seconds without one.
MAMF_LAUNCHES = {"scout": (3, 9), "screen": (10, 30)}
OURS_SECONDS = {"scout": (0.007, 0.013), "screen": (0.05, 0.10)}
_LIKELY_FLOP_PER_S = 5e14

_POOL_BYTES = 2 * 2**30
_L2_MULTIPLES = 20
_SEED, _FRESH_SEED = 20250601, 20250611
_ROWS, _COLUMNS = 16, 64
# Against float64: what rounding to the output leaves, or fast sums in fp8 over depths of up to 20480.
_LEAST_SQNR_DB = {"bf16": 50.0, "fp16": 60.0, "fast": 30.0, "fp8_e4m3": 28.0}
_SHOWN = ("driver", "cuda_runtime", "torch", "triton", "card", "power_limit_w", "virtualization")


@dataclass(frozen=True)
class Asked:
    """What the command asks of the probe; `began_s` is the host's monotonic clock when the user's time began."""

    dtype: str = "bf16"
    impl: str = "torch"
    protocol: str = OURS
    seconds: float = 60.0
    began_s: float = field(default_factory=time.monotonic)
    gpu: int = 0

    @property
    def accumulation(self) -> str:
        """mamf-finder leaves torch's default, which is the exact one."""
        if self.dtype != "fp8_e4m3":
            return ""
        return "slow" if (self.impl, self.protocol) == ("torch", MAMF) else "fast"

    @property
    def out(self) -> str:
        """The result's type: the operands', or for fp8 bfloat16, but for mamf-finder, whose result is fp8."""
        return "bf16" if self.accumulation == "fast" else self.dtype


def read_asked(text: str) -> Asked:
    """What the command wrote; HarnessError names what is not known."""
    asked = Asked(**json.loads(text)) if text else Asked()
    for name, value, known in (
        ("dtype", asked.dtype, DTYPES),
        ("impl", asked.impl, PLANS),
        ("protocol", asked.protocol, PROTOCOLS),
    ):
        if value not in known:
            raise HarnessError(f"{name} is '{value}'. Choose from {', '.join(known)}.")
    return asked


def peak(asked: Asked) -> PeakReport:
    """Search on one GPU until the time is over. Raises HarnessError (exit code 2) where there is none that can."""
    device = discover(index=asked.gpu)
    if not isinstance(device, CudaDevice):
        raise HarnessError("no NVIDIA GPU here: the best shape of a CPU is not looked for.", ExitCode.INCONCLUSIVE)
    least = LEAST_CAPABILITY[asked.dtype]
    if not device.facts.at_least(*least) or not device.facts.sm_count:
        needed = f"{asked.dtype} needs compute capability {least[0]}.{least[1]}"
        raise HarnessError(f"{needed}, {device.facts.name} lacks it.", ExitCode.INCONCLUSIVE)
    environment = environment_of(device)
    sheet = lookup(device.facts)
    bench = Bench(device, asked)
    seconds = asked.seconds - (time.monotonic() - asked.began_s)
    if seconds <= 0:
        raise HarnessError(f"{asked.seconds:g} s were over before the first launch. Allow more with --seconds.")
    say(f"{asked.dtype} by {asked.impl}, protocol {asked.protocol}: {seconds:.0f} s of searching")
    finals = FINALS[asked.protocol]
    found = Search(device.facts.sm_count, bench.measure, time.monotonic, seconds, *finals, bench.is_possible).run()
    if found.best is None:
        why = next(iter(found.refused.values()), "no shape fits into its memory")
        raise HarnessError(f"no shape could be measured: {why}", ExitCode.INCONCLUSIVE)
    bench.check_again(found.best.shape)
    promised = sheet.peaks.get(PEAKS[asked.dtype])
    last = bench.telemetry.get(found.best.shape, Telemetry())
    return PeakReport(
        gpu=device.facts.name,
        dtype=asked.dtype,
        impl=asked.impl,
        protocol=asked.protocol,
        accumulation=asked.accumulation,
        out=asked.out,
        conditions={name: str(environment[name].value) for name in _SHOWN if name in environment},
        found=found,
        total_s=time.monotonic() - asked.began_s,
        promised_flop_per_s=promised.value if promised else None,
        sm_clock_mhz=last.sm_clock_mhz,
        power_w=last.power_w,
        wrong=tuple(bench.wrong),
    )


def say(doing: str) -> None:
    """Tell on standard error what takes so long."""
    sys.stderr.write(f"peak: {doing}\n")
    sys.stderr.flush()


class Bench:
    """Measures one shape after another on the same memory; right before fast, at every shape."""

    def __init__(self, device: CudaDevice, asked: Asked) -> None:
        self.telemetry: dict[Shape, Telemetry] = {}
        self.wrong: list[str] = []
        self._device, self._asked = device, asked
        self._dtype, self._out_dtype = DTYPES[asked.dtype], DTYPES[asked.out]
        self._plan = plan_of(asked)
        self._peers = PeerProtocols(is_mamf_warm=True, again_s=0.0)
        self._flush = device.flusher(FLUSHED_BYTES)
        free = device.facts.free_bytes or device.facts.memory_bytes or 8 * _POOL_BYTES
        self._pool_bytes = min(_POOL_BYTES, free // 8)
        place = device.facts.torch_device
        self._a, self._b = (
            torch.empty(self._pool_bytes // self._dtype.itemsize, dtype=self._dtype, device=place) for _ in range(2)
        )
        self._fill(_SEED)
        self._out = torch.empty(self._pool_bytes // self._out_dtype.itemsize, dtype=self._out_dtype, device=place)
        self._right: set[Shape] = set()

    def is_possible(self, shape: Shape) -> bool:
        """Whether two sets of its operands and results fit into the pools."""
        operand = max(shape.m, shape.n) * shape.k * self._dtype.itemsize
        return 2 * max(operand, shape.m * shape.n * self._out_dtype.itemsize) <= self._pool_bytes

    def measure(self, shape: Shape, effort: Effort) -> float:
        """FLOP/s of that shape, checked before it is timed for the first time. Raises RefusedError."""
        try:
            launches = self._launches_of(shape)
            if shape not in self._right:
                self._check(shape, launches)
            seconds = self._time(shape, launches, effort)
        except (ValueError, RuntimeError, triton.TritonError) as error:
            if not self._device.is_usable():
                raise
            raise RefusedError(" ".join(str(error).split())[:200]) from error
        return shape.flop / seconds

    def check_again(self, shape: Shape) -> None:
        """Once more on fresh data; what is wrong then stands in `wrong`."""
        self._fill(_FRESH_SEED)
        with contextlib.suppress(ValueError):
            self._check(shape, self._launches_of(shape))

    def _fill(self, seed: int) -> None:
        for number, pool in enumerate((self._a, self._b)):
            fill_normal(pool, seed + number)

    def _launches_of(self, shape: Shape) -> list[Callable[[], object]]:
        """One launch for each set that rotation needs; mamf-finder flushes instead, and has one set."""
        is_mamf = self._asked.protocol == MAMF
        m, n, k = shape.m, shape.n, shape.k
        moved = (m + n) * k * self._dtype.itemsize + m * n * self._out_dtype.itemsize
        wanted = 1 if is_mamf else max(2, self._device.facts.sets(moved, _L2_MULTIPLES))
        sets = min(wanted, *(len(pool) // size for pool, size in self._sizes(shape)))
        return [self._plan(*self._views(shape, i)) for i in range(sets)]

    def _sizes(self, shape: Shape) -> list[tuple[torch.Tensor, int]]:
        return [(self._a, shape.m * shape.k), (self._b, shape.n * shape.k), (self._out, shape.m * shape.n)]

    def _views(self, shape: Shape, i: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        views = [pool[i * size : (i + 1) * size] for pool, size in self._sizes(shape)]
        return views[0].view(shape.m, shape.k), views[1].view(shape.n, shape.k), views[2].view(shape.m, shape.n)

    def _check(self, shape: Shape, launches: list[Callable[[], object]]) -> None:
        """Every element written, and some rows and columns against float64."""
        a, b, out = self._views(shape, 0)
        poison(out)
        launches[0]()
        self._device.synchronize()
        bound = "fast" if self._asked.accumulation == "fast" else self._asked.out
        told = wrong_about(a, b, out, _LEAST_SQNR_DB[bound])
        if told:
            self.wrong.append(f"{shape}: {told}")
            raise ValueError(told)
        self._right.add(shape)

    def _time(self, shape: Shape, launches: list[Callable[[], object]], effort: Effort) -> float:
        """Seconds a launch."""

        def launch(i: int) -> None:
            launches[i % len(launches)]()

        if effort == "final":
            samples, self.telemetry[shape] = self._time_turn(shape, launch)
            return float(samples.seconds_per_launch)
        if self._asked.protocol == MAMF:
            return mean_after_flush(launch, self._flush, *MAMF_LAUNCHES[effort])
        likely_s = shape.flop / _LIKELY_FLOP_PER_S
        return mean_back_to_back(launch, *(max(2, math.ceil(s / likely_s)) for s in OURS_SECONDS[effort]))

    def _time_turn(self, shape: Shape, launch: Callable[[int], None]) -> Any:
        if self._asked.protocol == MAMF:
            _, _, out = self._views(shape, 0)
            other = torch.empty_like(out).view(torch.uint8).fill_(0x30).view(out.dtype)
            subject = Subject(launch, [], [], lambda i: [], before=lambda i: out.copy_(other))
            return self._peers.time(MAMF, self._device, subject, launch)
        return time_window(self._device, launch, TURN)


def plan_of(asked: Asked) -> Callable[..., Callable[[], object]]:
    """The implementation's plan for a, b and out, with the sums that the type asks for."""
    try:
        module = importlib.import_module(PLANS[asked.impl])
    except ModuleNotFoundError as error:
        if error.name not in ("kernels", PLANS[asked.impl]):
            raise
        raise HarnessError("`peak` measures kernels, which come with a checkout: run it there.") from error
    if asked.accumulation == "slow":
        return module.plan_fp8_output
    how: Mapping[str, Any] = {"accumulation": "fast"} if asked.accumulation else {}
    return lambda a, b, out: module.plan(a, b, out, **how)


def fill_normal(pool: torch.Tensor, seed: int) -> None:
    """Normal random data, the same for the same seed."""
    generator = torch.Generator(device=pool.device).manual_seed(seed)
    for piece in pool.split(2**26):
        piece.copy_(torch.randn(piece.shape, generator=generator, device=pool.device))


def poison(out: torch.Tensor) -> None:
    """NaN everywhere."""
    if out.element_size() == 1:
        out.view(torch.uint8).fill_(0x7F)
    else:
        out.fill_(math.nan)


def wrong_about(a: torch.Tensor, b: torch.Tensor, out: torch.Tensor, least_sqnr_db: float) -> str:
    """What is wrong with out[m, n] = a[m, k] @ b[n, k]^T; "" where nothing is."""
    unwritten = int(
        (out.view(torch.uint8) & 0x7F == 0x7F).sum() if out.element_size() == 1 else (~out.isfinite()).sum()
    )
    if unwritten:
        return f"{unwritten} elements are not finite"
    rows = torch.linspace(0, out.shape[0] - 1, _ROWS, device=out.device).long()
    columns = torch.linspace(0, out.shape[1] - 1, _COLUMNS, device=out.device).long()
    expected = taken(a, rows).double() @ taken(b, columns).double().t()
    if out.element_size() == 1:
        most = torch.finfo(out.dtype).max
        expected = expected.clamp(-most, most)
    error = taken(out, rows).double()[:, columns] - expected
    sqnr_db = float(10 * torch.log10(expected.square().sum() / error.square().sum()))
    if not sqnr_db >= least_sqnr_db:
        return f"SQNR against float64 is {sqnr_db:.1f} dB, at least {least_sqnr_db:.0f} dB is required"
    return ""


def taken(matrix: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
    """Those rows; fp8 is picked as bytes, because torch does not index it on every device."""
    return matrix.view(torch.uint8)[rows].view(matrix.dtype) if matrix.element_size() == 1 else matrix[rows]


def mean_after_flush(launch: Callable[[int], None], flush: Callable[[], object], warm: int, timed: int) -> float:
    """Mean seconds of launches that are each timed alone after a flush, as mamf-finder times them."""
    pairs = []
    for i in range(warm + timed):
        flush()
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        launch(i)
        end.record()
        pairs.append((start, end))
    torch.cuda.synchronize()
    return sum(start.elapsed_time(end) for start, end in pairs[warm:]) * 1e-3 / timed


def mean_back_to_back(launch: Callable[[int], None], warm: int, timed: int) -> float:
    """Mean seconds of launches that follow one another, after others that keep the queue full."""
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    for i in range(warm):
        launch(i)
    start.record()
    for i in range(warm, warm + timed):
        launch(i)
    end.record()
    end.synchronize()
    return start.elapsed_time(end) * 1e-3 / timed
