"""The instrument measured: what watching costs, whether energy's sources agree, what the two clocks say.

Minutes on a GPU, and none of it is a figure of the card: these are the conditions under which its figures are true.
"""

import sys
from collections.abc import Iterator, Sequence
from typing import Any

import torch

from harness.errors import ExitCode, HarnessError
from harness.model import Ruler, RulerPart
from harness.probe.device import CudaDevice, discover, environment_of
from harness.probe.load import Launch
from harness.probe.measure import SUSTAINED, SUSTAINED_COMPUTE, time_window
from harness.probe.nvml import Gpu
from harness.probe.pipe import ResidentLoop
from harness.probe.ranks import World
from harness.probe.ruler import empty_launch, watch_pipe
from harness.probe.timing import Queue, choose_pace, open_queue
from harness.selfcheck import (
    Block,
    SelfCheck,
    judge_clocks,
    judge_energy,
    judge_sm_spread,
    judge_watching,
    unbounded,
)
from harness.specs import lookup

_PREHEAT_CAP_S = 60.0
_GEMM_SIZE, _FP32_SIZE = 8192, 4096
_COPY_BYTES = 2 * 2**30
_GROUP_S = 0.0125
_SETTLE_S = 1.0
_BLOCK_S = 0.3
_PAIRS, _NOISY_PAIRS = 12, 24
_RANKS, _RANK_PAIRS, _RANK_GROUPS, _RANK_LAUNCHES = 2, 20, 500, 50
_SHOWN = ("driver", "cuda_runtime", "torch", "triton", "nccl", "card", "power_limit_w", "virtualization")


def selfcheck(index: int = 0) -> SelfCheck:
    """Everything on one GPU, and across two where there are two. Raises HarnessError (exit code 2) without a GPU."""
    device = discover(index=index)
    if not isinstance(device, CudaDevice):
        raise HarnessError("no NVIDIA GPU here: on a CPU there is no instrument to check.", ExitCode.INCONCLUSIVE)
    environment = environment_of(device)
    ruler, energy = _check_ruler(device)
    clocks: list[RulerPart] = []
    for name, make, protocol in (("gemm", gemm, SUSTAINED_COMPUTE), ("copy", copy, SUSTAINED)):
        say(f"energy and clocks under a {name}")
        _, telemetry = time_window(device, make(), protocol)
        energy.append(judge_energy(name, telemetry))
        clocks.append(judge_clocks(f"{name}_nvml", telemetry, has_tensor_load=name == "gemm"))
        clocks.append(judge_sm_spread(f"{name}_sms", telemetry))
        device.release()
    return SelfCheck(
        gpu=device.facts.name,
        conditions={name: str(environment[name].value) for name in _SHOWN if name in environment},
        ruler=ruler,
        parts={"watching": tuple(_check_watching(device)), "energy": tuple(energy), "clocks": tuple(clocks)},
    )


def _check_ruler(device: CudaDevice) -> tuple[Ruler, list[RulerPart]]:
    """The ruler, and what comes to light around it: the card at rest, and how fast the sources of power follow."""
    say("at rest, pre-heating, ruler")
    device.begin_rest()
    idle = device.end_rest()
    check = device.ruler(lookup(device.facts).flop_per_clock_per_sm)
    warmed = device.preheat(_PREHEAT_CAP_S)
    idle_w = idle["power_w"]
    at_rest = RulerPart("at_rest", None, idle_w if isinstance(idle_w, float) else None, "W", detail=_told_of(idle))
    steps = [_step_part(name, warmed.get(f"{name}_rise_s")) for name in ("samples", "instant")]
    return check.conclude(), [at_rest, *steps]


def _check_watching(device: CudaDevice) -> Iterator[RulerPart]:
    """A load a kind. At the power limit time swings by percents, so a GEMM there is bounded by its cycles, and one that
    the limit leaves alone (float32 without tensor cores) by its time.
    """
    say("what watching costs a GEMM")
    blocks = alternate(device, gemm(), _NOISY_PAIRS)
    yield judge_watching("gemm_cycles", blocks, by_cycles=True)
    yield unbounded(judge_watching("gemm_time", blocks))
    device.release()
    yield judge_watching("gemm_fp32_time", alternate(device, gemm_fp32(), _PAIRS))
    device.release()
    say("what watching costs a copy, and launches of nothing")
    yield judge_watching("copy_time", alternate(device, copy(), _PAIRS))
    device.release()
    yield judge_watching("launch_time", alternate(device, empty_launch(), _PAIRS))
    if device.facts.gpu_count >= _RANKS:
        say("what watching costs an all-reduce of 8 B")
        yield judge_watching("all_reduce_time", _across_ranks())


def witness() -> dict[str, object]:
    """The resident loop with its own counters, to run under a profiler and hold the profiler's against.

    What the stamps around the launch say is left out: a profiler stops between launches, and they would count that too.
    """
    device = discover()
    if not isinstance(device, CudaDevice):
        raise HarnessError("no NVIDIA GPU here.", ExitCode.INCONCLUSIVE)
    capability, sm_count = device.facts.compute_capability or (0, 0), device.facts.sm_count or 0
    rate = lookup(device.facts).flop_per_clock_per_sm.get("bf16")
    if rate is None:
        raise HarnessError(f"no bf16 rate per clock is known for '{device.facts.name}'.", ExitCode.INCONCLUSIVE)
    loop = ResidentLoop("bf16", sm_count, capability)
    loop.sqnr_db()
    seen = watch_pipe(loop, device.stamper, rate, 0.5)
    return {
        "gpu": device.facts.name,
        "cycles_needed": round(seen.own_cycles_needed),
        "cycles": round(seen.own_cycles),
        "clock_mhz": round(seen.own_clock_mhz, 2),
    }


def say(doing: str) -> None:
    """Tell on standard error what takes so long."""
    sys.stderr.write(f"selfcheck: {doing}\n")
    sys.stderr.flush()


def gemm() -> Launch:
    """A power-limited load: bfloat16 on random data."""
    a, b, out = (torch.randn(_GEMM_SIZE, _GEMM_SIZE, device="cuda").bfloat16() for _ in range(3))
    return lambda _: torch.mm(a, b, out=out)


def gemm_fp32() -> Launch:
    """Multiplication without tensor cores: hot, but below the power limit."""
    a, b, out = (torch.randn(_FP32_SIZE, _FP32_SIZE, device="cuda") for _ in range(3))
    return lambda _: torch.mm(a, b, out=out)


def copy() -> Launch:
    """A load without tensor cores, at the memory's limit."""
    source, target = (torch.randn(_COPY_BYTES // 4, device="cuda") for _ in range(2))
    return lambda _: target.copy_(source)


def alternate(device: CudaDevice, launch: Launch, pairs: int) -> list[Block]:
    """One load without a pause, watched in every other block; which of a pair comes first alternates."""
    pace, queue = open_queue(launch, choose_pace(launch, _GROUP_S), device.stamper)
    group_s = pace.seconds_per_launch * pace.launches_per_group
    groups = max(4, round(_BLOCK_S / group_s))
    for _ in range(max(1, round(_SETTLE_S / group_s))):
        queue.run_group()
    try:
        return alternate_blocks(queue, device.gpu, pairs, groups)
    finally:
        queue.drain()


def alternate_blocks(queue: Queue, gpu: Gpu | None, pairs: int, groups: int) -> list[Block]:
    """Pairs of blocks of so many groups, one of each pair watched as a case is."""
    orders = [(True, False) if pair % 2 else (False, True) for pair in range(pairs)]
    return [_block(queue, gpu, is_watched, groups) for order in orders for is_watched in order]


def _block(queue: Queue, gpu: Gpu | None, is_watched: bool, groups: int) -> Block:
    from harness.probe.telemetry import Watch

    watch = Watch(gpu) if is_watched and gpu else None
    try:
        queue.run_group()  # it was running when the watch began
        opening = watch.edge() if watch else None
        first = queue.finished
        measured = [queue.run_group() for _ in range(groups)]
        closing = watch.edge() if watch else None
    finally:
        if watch is not None:
            watch.stop()
    if gpu is not None and opening is not None and closing is not None:
        gpu.busy_ratios(opening.busy, closing.busy)
    launch_s = sum(group.seconds for group in measured) / sum(group.launches for group in measured)
    clock = queue.mean_clock(first, queue.finished - 1)
    return Block(is_watched, launch_s, clock.mean_mhz * 1e6 * launch_s if clock else None)


def _across_ranks() -> list[Block]:
    """All-reduces of 8 B replayed from a graph, on two ranks that watch at the same times; the slower rank counts."""
    world = World(_RANKS, "cuda")
    try:
        world.ask("open", "kernels.collectives.all_reduce", {"size_bytes": 8, "dtype": "fp32"})
        ranks: Sequence[Sequence[tuple[bool, float]]] = world.ask(
            "alternate", _RANK_PAIRS, _RANK_GROUPS, _RANK_LAUNCHES, limit_s=120.0
        )
    finally:
        world.close()
    return [Block(blocks[0][0], max(seconds for _, seconds in blocks)) for blocks in zip(*ranks, strict=True)]


def _step_part(name: str, rise_s: Any) -> RulerPart:
    known = rise_s if isinstance(rise_s, float) else None
    return RulerPart(
        f"{name}_step", None, known, "s", detail="to follow the step from rest to full load" if known else "no step"
    )


def _told_of(idle: dict[str, Any]) -> str:
    if idle.get("reason"):
        return str(idle["reason"])
    return f"context open, over {idle['seconds']} s at {idle['temperature_c']} °C"
