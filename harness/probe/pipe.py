"""The tensor pipe's own ceiling: a product of operands that never leave the SM, again and again.

Nothing but the tensor cores is busy, so FLOP over counted cycles is the architecture's rate to four digits (4096.0 a
clock and SM for bfloat16 on an H200), and FLOP over seconds is what the power limit leaves of it.
"""

from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from harness.probe.clocks import Stamp, as_stamp


@triton.jit
def _cycles():  # type: ignore[no-untyped-def]  # Triton's types are not Python's
    return tl.inline_asm_elementwise("mov.u64 $0, %clock64;", "=l", [], dtype=tl.int64, is_pure=False, pack=1)


@triton.jit
def _nanoseconds():  # type: ignore[no-untyped-def]
    return tl.inline_asm_elementwise("mov.u64 $0, %globaltimer;", "=l", [], dtype=tl.int64, is_pure=False, pack=1)


@triton.jit
def _resident_kernel(  # type: ignore[no-untyped-def]
    a, b, out, stamps, iterations, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr
):
    rows = tl.arange(0, BLOCK_M)
    columns = tl.arange(0, BLOCK_N)
    depth = tl.arange(0, BLOCK_K)
    a_block = tl.load(a + rows[:, None] * BLOCK_K + depth[None, :])
    b_block = tl.load(b + columns[None, :] * BLOCK_K + depth[:, None])
    total = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
    first_cycle = _cycles()
    first_ns = _nanoseconds()
    for _ in range(iterations):
        total = tl.dot(a_block, b_block, total)
    last_cycle = _cycles()
    last_ns = _nanoseconds()
    sm = tl.inline_asm_elementwise("mov.u32 $0, %smid;", "=r", [], dtype=tl.int32, is_pure=False, pack=1)
    stamp = stamps + tl.program_id(0) * 5
    tl.store(stamp, sm.to(tl.int64))
    tl.store(stamp + 1, first_cycle)
    tl.store(stamp + 2, first_ns)
    tl.store(stamp + 3, last_cycle)
    tl.store(stamp + 4, last_ns)
    place = out + tl.program_id(0) * BLOCK_M * BLOCK_N
    tl.store(place + rows[:, None] * BLOCK_N + columns[None, :], total)


@dataclass(frozen=True)
class Tile:
    """What one program multiplies, and by how many warps."""

    m: int
    n: int
    k: int
    warps: int

    @property
    def flop(self) -> int:
        """FLOP of one product."""
        return 2 * self.m * self.n * self.k


# One program of these fills an SM of compute capability 9.0: two warp groups take turns, so that the tensor core never
# waits for the one that issues. Elsewhere smaller tiles fit the registers; whether they fill the pipe was not seen.
TILES = {
    ("hopper", "bf16"): Tile(128, 256, 64, 8),
    ("hopper", "fp16"): Tile(128, 256, 64, 8),
    ("hopper", "fp8"): Tile(128, 256, 128, 8),
    ("other", "bf16"): Tile(128, 128, 32, 8),
    ("other", "fp16"): Tile(128, 128, 32, 8),
    ("other", "fp8"): Tile(128, 128, 64, 8),
}
DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp8": torch.float8_e4m3fn}
# What the ruler reads; fp16 shares the pipe of bf16.
LEAST_CAPABILITY = {"bf16": (8, 0), "fp8": (8, 9)}


class ResidentLoop:
    """The loop on every SM, one program each: out[program] = iterations * (a[m, k] @ b[n, k]^T)."""

    def __init__(self, dtype: str, sm_count: int, capability: tuple[int, int], device: str = "cuda") -> None:
        self.tile = TILES["hopper" if capability[0] == 9 else "other", dtype]
        self.programs = sm_count
        generator = torch.Generator(device=device).manual_seed(20250601)
        self.a = torch.randn(self.tile.m, self.tile.k, device=device, generator=generator).to(DTYPES[dtype])
        self.b = torch.randn(self.tile.n, self.tile.k, device=device, generator=generator).to(DTYPES[dtype])
        self.out = torch.empty(sm_count, self.tile.m, self.tile.n, device=device)
        self._stamps = torch.zeros(sm_count, 5, dtype=torch.int64, device=device)

    def flop(self, iterations: int) -> int:
        """FLOP of one launch."""
        return self.programs * self.tile.flop * iterations

    def launch(self, iterations: int) -> None:
        """Enqueue so many products on every SM."""
        tile = self.tile
        _resident_kernel[(self.programs,)](
            self.a,
            self.b,
            self.out,
            self._stamps,
            iterations,
            BLOCK_M=tile.m,
            BLOCK_N=tile.n,
            BLOCK_K=tile.k,
            num_warps=tile.warps,
            num_stages=1,
        )

    def stamps(self) -> tuple[Stamp, Stamp]:
        """What each SM's counters said before the first product and after the last, of the launch that ran last."""
        rows: list[list[int]] = self._stamps.tolist()
        return as_stamp([row[:3] for row in rows]), as_stamp([[row[0], *row[3:]] for row in rows])

    def expected(self, iterations: int) -> torch.Tensor:
        """What every program's sum of so many products must be, in float64."""
        return iterations * (self.a.double() @ self.b.double().t())

    def sqnr_db(self, iterations: int = 3) -> float:
        """How near a few products are to float64: a loop that the compiler shortened would be far off."""
        self.launch(iterations)
        expected = self.expected(iterations)
        error = (self.out.double() - expected).square().sum() / len(self.out)
        return float(10 * torch.log10(expected.square().sum() / error))
