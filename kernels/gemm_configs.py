"""How GEMMs are cut up, by architecture and type: a small table that measuring chose, and the choice from it.

There is no tuning when a GEMM runs: what a launch does depends on its operands and the device alone, so that two runs
compare. A row that the device's shared memory cannot hold is skipped and counted (`Plan.skipped`).
"""

import math
from dataclasses import dataclass
from typing import NamedTuple

import torch

from kernels.gemm_operands import Operands, describe
from kernels.gemm_parts import INTERPRETED


@dataclass(frozen=True)
class Config:
    """How a GEMM is cut up: the tile, its pipeline, and the order of tiles.

    `rate` is the share of the best rate that the tile reaches where every SM has equally many of them.
    """

    block_m: int
    block_n: int
    block_k: int
    stages: int
    warps: int
    group_m: int = 8
    split_epilogue: bool = False
    descriptors: bool = True
    programs_per_sm: int = 1
    rate: float = 1.0
    flatten: bool = True
    alternate_k: bool = False
    specialize_warps: bool = False

    def shared_bytes(self, in_bytes: int, out_bytes: int, capability: tuple[int, int] = (9, 0)) -> int:
        """Shared memory of one program: a block of a and one of b a stage, and the tile on its way out.

        The flattened loop keeps both at one time. The pointer kernel stores from registers.
        """
        pipeline = self.stages * (self.block_m + self.block_n) * self.block_k * in_bytes
        barriers = 8 * self.stages + 96  # with room for alignment, and for those of Blackwell's tensor memory
        if not self.descriptors:
            return pipeline + barriers
        # From tensor memory, triton 3.7 lays a float32 tile out as a whole and splits it then, unless warps of their
        # own do it.
        is_whole = capability[0] == 10 and out_bytes == 4 and not self.specialize_warps
        halves = 2 if self.split_epilogue and not is_whole else 1
        return pipeline + self.block_m * self.block_n * out_bytes // halves + barriers

    def relative_time(self, m: int, n: int, sm_count: int) -> float:
        """Time of a product whose k does not change, in any unit: SMs work in waves, and the last one may be ragged."""
        tiles = math.ceil(m / self.block_m) * math.ceil(n / self.block_n)
        waves = math.ceil(tiles / (sm_count * self.programs_per_sm))
        return waves * self.programs_per_sm * self.block_m * self.block_n / self.rate


# By architecture, kind of operands and accumulation. Of the rows that fit, the one with the least relative time is
# taken, and the first of equals.
#
# Measured on an H200 (700 W, driver 580.159.04, triton 3.6) on random data, each kernel at its own equilibrium, as a
# ratio to cuBLAS 13.1 in the same run, spread 0.3 %:
# - bf16, 3 stages, bands of 16 rows: 1.02 to 1.03 at 8192³, 1.01 at 8192 x 8448 x 8192, 1.01 to 1.02 at
#   8192 x 28672 x 8192. Bands of 8 or 32 rows lose 0.5 to 2 % at equal cycles a launch: the traffic saved is clock.
# - fp8 fast, 3 stages, bands of 16 rows: 1.028, 1.011 and 1.022 at the same shapes. A fourth stage saves 0.1 to 0.3 %
#   of the cycles and costs 0.6 to 1.5 % of the rate, for the same reason.
# Not measured: tf32, and everything on other architectures than Hopper. What is not measured is compiled for its target
# by tests/kernels/test_compile.py; its tiles are those that Hopper's measurements, and shared memory, suggest.
CONFIGS: dict[tuple[str, str, str], tuple[Config, ...]] = {
    ("hopper", "half", "fast"): (
        Config(128, 256, 64, stages=3, warps=8, group_m=16, split_epilogue=True),
        # 627 to 674 TFLOP/s at 8192³: more bytes a FLOP, and twice as many tiles to share out.
        Config(128, 128, 64, stages=4, warps=4, group_m=16, split_epilogue=True, rate=0.93),
        Config(128, 128, 64, stages=2, warps=8, group_m=16, split_epilogue=True, rate=0.9),
    ),
    ("hopper", "fp8", "fast"): (
        Config(128, 256, 128, stages=3, warps=8, group_m=16, split_epilogue=True),
        Config(128, 128, 128, stages=4, warps=8, group_m=16, split_epilogue=True, rate=0.9),
        Config(128, 128, 128, stages=2, warps=8, group_m=16, split_epilogue=True, rate=0.85),
    ),
    ("hopper", "tf32", "fast"): (
        Config(128, 256, 32, stages=3, warps=8, group_m=16, split_epilogue=True),
        Config(128, 128, 32, stages=2, warps=8, group_m=16, split_epilogue=True, rate=0.9),
    ),
    # Blackwell (compute capability 10) sums in tensor memory, so that registers hold no tile, and Triton gives loading,
    # multiplying and storing to warps of their own (on Hopper that does not compile). Never run on one.
    ("blackwell", "half", "fast"): (
        Config(128, 256, 64, stages=4, warps=8, group_m=8, split_epilogue=True, specialize_warps=True),
        Config(128, 256, 64, stages=3, warps=8, group_m=8, split_epilogue=True, specialize_warps=True),
        Config(128, 128, 64, stages=4, warps=8, group_m=8, split_epilogue=True, specialize_warps=True, rate=0.8),
    ),
    ("blackwell", "fp8", "fast"): (
        Config(128, 256, 128, stages=4, warps=8, group_m=8, split_epilogue=True, specialize_warps=True),
        Config(128, 256, 128, stages=3, warps=8, group_m=8, split_epilogue=True, specialize_warps=True),
        Config(128, 128, 128, stages=4, warps=8, group_m=8, split_epilogue=True, specialize_warps=True, rate=0.8),
    ),
    ("blackwell", "tf32", "fast"): (
        Config(128, 256, 32, stages=4, warps=8, group_m=8, split_epilogue=True, specialize_warps=True),
        Config(128, 256, 32, stages=3, warps=8, group_m=8, split_epilogue=True, specialize_warps=True),
        Config(128, 128, 32, stages=4, warps=8, group_m=8, split_epilogue=True, specialize_warps=True, rate=0.8),
    ),
    # GeForce's Blackwell (12) has descriptors, but Ampere's tensor-core instructions and 99 KiB. Never run on one.
    ("geforce", "half", "fast"): (Config(128, 128, 64, stages=2, warps=8, split_epilogue=True),),
    ("geforce", "fp8", "fast"): (Config(128, 128, 128, stages=2, warps=8, split_epilogue=True),),
    ("geforce", "tf32", "fast"): (Config(128, 128, 32, stages=2, warps=8, split_epilogue=True),),
    # Through pointers: Ampere (which has no fp8) and Ada, and elsewhere what no descriptor takes.
    ("pointers", "half", "fast"): (
        Config(128, 256, 64, stages=3, warps=8, descriptors=False),
        Config(128, 128, 32, stages=4, warps=8, descriptors=False, rate=0.9),
    ),
    ("pointers", "fp8", "fast"): (Config(128, 128, 64, stages=4, warps=8, descriptors=False),),
    ("pointers", "fp8", "slow"): (Config(128, 128, 64, stages=4, warps=8, descriptors=False),),
    ("pointers", "tf32", "fast"): (Config(128, 128, 32, stages=3, warps=8, descriptors=False),),
    # Without tensor cores a thread multiplies alone; small blocks of k keep its unrolled loop in the instruction cache.
    ("pointers", "fp32", "fast"): (Config(128, 128, 16, stages=3, warps=8, descriptors=False),),
}


class DeviceLimits(NamedTuple):
    """What a configuration depends on."""

    capability: tuple[int, int]
    sm_count: int
    shared_bytes: int

    @property
    def architecture(self) -> str:
        """Which rows of the table are the device's, where descriptors can address the operands."""
        return {9: "hopper", 10: "blackwell", 11: "blackwell", 12: "geforce"}.get(self.capability[0], "pointers")


def limits_of(tensor: torch.Tensor) -> DeviceLimits:
    """The limits of the device that holds a tensor; ValueError where no kernel can be launched there."""
    if INTERPRETED:
        # Any device: the interpreter copies to the CPU. As many SMs as let a test see programs walk several tiles.
        return DeviceLimits(capability=(9, 0), sm_count=2, shared_bytes=232448)
    if tensor.device != torch.device("cuda", torch.cuda.current_device() if torch.cuda.is_available() else 0):
        raise ValueError(
            f"a is on {tensor.device}; a compiled kernel runs on the current CUDA device"
            " (without a GPU set TRITON_INTERPRET=1 before this module is imported)"
        )
    properties = torch.cuda.get_device_properties(tensor.device)
    limits = DeviceLimits(
        capability=(properties.major, properties.minor),
        sm_count=properties.multi_processor_count,
        shared_bytes=properties.shared_memory_per_block_optin,  # type: ignore[attr-defined]  # missing in torch's stub
    )
    if tensor.element_size() == 1 and limits.capability < (8, 9):
        raise ValueError(f"a is {describe(tensor)}; fp8 needs compute capability 8.9, the device has {limits[0]}")
    return limits


def choose(operands: Operands, device: DeviceLimits) -> tuple[Config, int]:
    """The best configuration of the table for these operands, and how many rows shared memory cannot hold."""
    architecture = "pointers" if operands.undescribable() else device.architecture
    if (architecture, operands.kind, operands.accumulation) not in CONFIGS:
        architecture = "pointers"
    rows = CONFIGS[architecture, operands.kind, operands.accumulation]
    needed = {config: shared_bytes_of(config, operands, device) for config in rows}
    fitting = [config for config in rows if needed[config] <= device.shared_bytes]
    if not fitting:
        raise ValueError(
            f"no {operands.kind} configuration of {len(rows)} fits: the smallest needs {min(needed.values())} bytes"
            f" of shared memory, the device has {device.shared_bytes}"
        )
    m, n, _ = operands.shape
    best = min(fitting, key=lambda config: config.relative_time(m, n, device.sm_count))
    return best, len(rows) - len(fitting)


def require_fit(config: Config, operands: Operands, device: DeviceLimits) -> None:
    """Raises ValueError for a configuration, given by hand, that these operands or this device cannot use."""
    if config.descriptors and (reason := operands.undescribable()):
        raise ValueError(f"{config} needs tensor descriptors: {reason}")
    needed = shared_bytes_of(config, operands, device)
    if needed > device.shared_bytes:
        raise ValueError(
            f"{config} needs {needed} bytes of shared memory for {operands.a.dtype} in and {operands.out.dtype} out;"
            f" the device has {device.shared_bytes}"
        )


def shared_bytes_of(config: Config, operands: Operands, device: DeviceLimits) -> int:
    """Shared memory of one program on these operands."""
    return config.shared_bytes(operands.a.element_size(), operands.out.element_size(), device.capability)
