"""Block-scaled formats: MXFP8, MXFP6 and MXFP4 (32 values under a power of two) and NVFP4 (16 under an E4M3 scale).

Elements, scales and rounding are those of the OCP Microscaling Formats (MX) Specification v1.0 (2023): the shared
exponent is that of the block's amax less the element type's largest (section 6.3), elements are rounded to nearest even
and saturate, a block that holds NaN or infinity gets the scale NaN. NVFP4 has a second scale for the tensor, which fits
the largest block's scale to 448 (NVIDIA, "Pretraining Large Language Models with NVFP4", arXiv 2509.25149, appendix C).

Codes are packed as densely as their bits allow, the first value in the lowest bits: one a byte, four in three bytes,
two a byte. All arithmetic is on the bits of float32, so that Triton's interpreter gives what a GPU gives.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import triton
import triton.language as tl

from kernels import quantise

Launch = Callable[[], None]

# Values a program quantises.
VALUES = 2048


@dataclass(frozen=True)
class Format:
    """An element type of `exponent_bits` and `mantissa_bits` in blocks of `block` values.

    `bias` is its exponent's; `largest_code` the code of its largest finite value, without the sign.
    """

    name: str
    exponent_bits: int
    mantissa_bits: int
    bias: int
    largest_code: int
    block: int = 32
    has_e4m3_scales: bool = False

    @property
    def bits(self) -> int:
        """Bits of one element."""
        return 1 + self.exponent_bits + self.mantissa_bits

    @property
    def largest(self) -> float:
        """The largest finite value."""
        exponent, mantissa = divmod(self.largest_code, 2**self.mantissa_bits)
        return float((1 + mantissa / 2**self.mantissa_bits) * 2.0 ** (exponent - self.bias))

    @property
    def largest_exponent(self) -> int:
        """The exponent of the largest finite value: `emax` of the specification."""
        return (self.largest_code >> self.mantissa_bits) - self.bias

    @property
    def bits_per_value(self) -> float:
        """Bits stored a value, the block's scale shared out; the one scale of a tensor is not counted."""
        return self.bits + 8 / self.block

    def packed_bytes(self, values: int) -> int:
        """Bytes of so many codes."""
        return values * self.bits // 8


FORMATS = {
    f.name: f
    for f in (
        Format("mxfp8_e4m3", 4, 3, 7, 0b1111_110),
        Format("mxfp8_e5m2", 5, 2, 15, 0b11110_11),
        Format("mxfp6_e3m2", 3, 2, 3, 0b111_11),
        Format("mxfp6_e2m3", 2, 3, 1, 0b11_111),
        Format("mxfp4_e2m1", 2, 1, 1, 0b11_1),
        Format("nvfp4_e2m1", 2, 1, 1, 0b11_1, block=16, has_e4m3_scales=True),
    )
}


# --- kernels -----------------------------------------------------------------------------------------------------


@triton.jit
def power_of_two(exponent: tl.tensor) -> tl.tensor:
    """2^exponent in float32, for -126 <= exponent <= 127."""
    return ((exponent + 127) << 23).to(tl.float32, bitcast=True)


@triton.jit
def encode(values: tl.tensor, MANTISSA: tl.constexpr, BIAS: tl.constexpr, LARGEST: tl.constexpr) -> tl.tensor:
    """The code of each magnitude, rounded to nearest even and saturated; a carry runs into the exponent by itself."""
    magnitude = tl.abs(values)
    exponent = tl.maximum((magnitude.to(tl.int32, bitcast=True) >> 23) - 127, 1 - BIAS)
    # Beyond the largest code anything saturates; a bounded exponent keeps the next line within float32.
    exponent = tl.minimum(exponent, 40)
    steps = magnitude * power_of_two(MANTISSA - exponent)
    # Adding 2^23 rounds to the nearest whole number, ties to even: float32 has no bits left for a fraction.
    whole = (tl.minimum(steps, 4096.0) + 8388608.0) - 8388608.0
    code = ((exponent + BIAS - 1) << MANTISSA) + whole.to(tl.int32)
    return tl.minimum(code, LARGEST)


@triton.jit
def decode(code: tl.tensor, MANTISSA: tl.constexpr, BIAS: tl.constexpr) -> tl.tensor:
    """The magnitude of each code."""
    exponent = code >> MANTISSA
    fraction = code & ((1 << MANTISSA) - 1)
    whole = tl.where(exponent > 0, fraction + (1 << MANTISSA), fraction)
    return whole.to(tl.float32) * power_of_two(tl.maximum(exponent, 1) - BIAS - MANTISSA)


@triton.jit
def quantise_kernel(
    source: tl.tensor,
    amax: tl.tensor,
    codes: tl.tensor,
    scales: tl.tensor,
    tensor_scale: tl.tensor,
    BITS: tl.constexpr,
    MANTISSA: tl.constexpr,
    BIAS: tl.constexpr,
    LARGEST: tl.constexpr,
    EMAX: tl.constexpr,
    LARGEST_VALUE: tl.constexpr,
    BLOCK: tl.constexpr,
    BLOCKS: tl.constexpr,
    COUNT: tl.constexpr,
    LANES: tl.constexpr,
    E4M3_SCALES: tl.constexpr,
) -> None:
    """BLOCKS blocks of BLOCK values: their packed codes and one scale each."""
    block = tl.program_id(0).to(tl.int64) * BLOCKS + tl.arange(0, BLOCKS)
    values = tl.load(source + block[:, None] * BLOCK + tl.arange(0, BLOCK)[None, :]).to(tl.float32)
    # As integers magnitudes are ordered as they are, and NaN is the largest of all.
    largest_bits = tl.max(values.to(tl.int32, bitcast=True) & 0x7FFFFFFF, axis=1)
    is_number = largest_bits < 0x7F800000
    largest_bits = tl.where(is_number, largest_bits, 0)
    values = tl.where(is_number[:, None], values, 0.0)
    if E4M3_SCALES:
        lane = tl.arange(0, LANES)
        of_tensor = tl.max(tl.load(amax + lane, mask=lane < COUNT, other=0.0), axis=0)
        zeros = tl.zeros((BLOCKS,), dtype=tl.float32)
        of_tensor = tl.maximum(zeros + of_tensor, 7.888609052210118e-31)
        per_block = tl.div_rn(largest_bits.to(tl.float32, bitcast=True), zeros + LARGEST_VALUE)
        outer = tl.div_rn(of_tensor, zeros + 448.0 * LARGEST_VALUE)
        scale_code = encode(tl.div_rn(per_block, outer), 3, 7, 126)
        scale = decode(scale_code, 3, 7) * outer
        inverse = tl.where(scale_code > 0, tl.div_rn(zeros + 1.0, tl.where(scale_code > 0, scale, 1.0)), 0.0)
        scale_code = tl.where(is_number, scale_code, 127)
        if tl.program_id(0) == 0:
            tl.store(tensor_scale, tl.max(outer, axis=0))
    else:
        scale_code = tl.maximum((largest_bits >> 23) - EMAX, 0)
        inverse = power_of_two(127 - scale_code)
        scale_code = tl.where(is_number, scale_code, 255)
    tl.store(scales + block, scale_code.to(tl.uint8))

    scaled = values * inverse[:, None]
    code = encode(scaled, MANTISSA, BIAS, LARGEST)
    negative = values.to(tl.int32, bitcast=True) < 0
    code = tl.where(negative, code | (1 << (BITS - 1)), code)
    if BITS == 8:
        tl.store(codes + block[:, None] * BLOCK + tl.arange(0, BLOCK)[None, :], code.to(tl.uint8))
    else:
        even, odd = tl.split(tl.reshape(code, (BLOCKS, BLOCK // 2, 2)))
        pairs = even | (odd << BITS)
        if BITS == 4:
            place = block[:, None] * (BLOCK // 2) + tl.arange(0, BLOCK // 2)[None, :]
            tl.store(codes + place, pairs.to(tl.uint8))
        else:
            low, high = tl.split(tl.reshape(pairs, (BLOCKS, BLOCK // 4, 2)))
            word = low | (high << 12)
            place = (block[:, None] * (BLOCK // 4) + tl.arange(0, BLOCK // 4)[None, :]) * 3
            tl.store(codes + place, (word & 0xFF).to(tl.uint8))
            tl.store(codes + place + 1, ((word >> 8) & 0xFF).to(tl.uint8))
            tl.store(codes + place + 2, (word >> 16).to(tl.uint8))


@triton.jit
def dequantise_kernel(
    codes: tl.tensor,
    scales: tl.tensor,
    tensor_scale: tl.tensor,
    out: tl.tensor,
    BITS: tl.constexpr,
    MANTISSA: tl.constexpr,
    BIAS: tl.constexpr,
    BLOCK: tl.constexpr,
    BLOCKS: tl.constexpr,
    E4M3_SCALES: tl.constexpr,
) -> None:
    """The values of BLOCKS blocks; of a block whose scale is NaN, NaN."""
    block = tl.program_id(0).to(tl.int64) * BLOCKS + tl.arange(0, BLOCKS)
    if BITS == 8:
        code = tl.load(codes + block[:, None] * BLOCK + tl.arange(0, BLOCK)[None, :]).to(tl.int32)
    elif BITS == 4:
        pair = tl.load(codes + block[:, None] * (BLOCK // 2) + tl.arange(0, BLOCK // 2)[None, :]).to(tl.int32)
        code = tl.reshape(tl.join(pair & 0xF, pair >> 4), (BLOCKS, BLOCK))
    else:
        place = (block[:, None] * (BLOCK // 4) + tl.arange(0, BLOCK // 4)[None, :]) * 3
        word = tl.load(codes + place).to(tl.int32)
        word |= tl.load(codes + place + 1).to(tl.int32) << 8
        word |= tl.load(codes + place + 2).to(tl.int32) << 16
        even = tl.join(word & 0x3F, (word >> 12) & 0x3F)
        odd = tl.join((word >> 6) & 0x3F, word >> 18)
        code = tl.reshape(tl.join(even, odd), (BLOCKS, BLOCK))
    magnitude = decode(code & ((1 << (BITS - 1)) - 1), MANTISSA, BIAS)
    values = tl.where((code >> (BITS - 1)) > 0, -magnitude, magnitude)
    scale_code = tl.load(scales + block).to(tl.int32)
    if E4M3_SCALES:
        scale = decode(scale_code, 3, 7) * tl.load(tensor_scale)
        is_number = scale_code < 127
    else:
        # In two steps, because 2^-127 is no normal number.
        scale = power_of_two(tl.minimum(tl.maximum(scale_code, 1), 254) - 127) * tl.where(scale_code > 0, 1.0, 0.5)
        is_number = scale_code < 255
    values = tl.where(is_number[:, None], values * scale[:, None], float("nan"))
    place = block[:, None] * BLOCK + tl.arange(0, BLOCK)[None, :]
    tl.store(out + place, values.to(out.dtype.element_ty))


# --- plans -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Packed:
    """So many values in a format: packed codes and scales as bytes, and NVFP4's scale of the whole, [1] in float32."""

    format: Format
    codes: torch.Tensor
    scales: torch.Tensor
    tensor_scale: torch.Tensor
    values: int

    @property
    def stored_bits_per_value(self) -> float:
        """What is really kept, counted from the tensors."""
        kept = self.codes.numel() + self.scales.numel()
        if self.format.has_e4m3_scales:
            kept += self.tensor_scale.numel() * self.tensor_scale.element_size()
        return 8 * kept / self.values


def allocate(values: int, form: Format, device: str | torch.device) -> Packed:
    """Room for so many values, a multiple of `VALUES`."""
    if values % VALUES:
        raise ValueError(f"{values} values; a multiple of {VALUES} is needed")
    make: dict[str, Any] = {"dtype": torch.uint8, "device": device}
    return Packed(
        form,
        torch.empty(form.packed_bytes(values), **make),
        torch.empty(values // form.block, **make),
        torch.ones(1, dtype=torch.float32, device=device),
        values,
    )


def plan_quantise(source: torch.Tensor, into: Packed) -> Launch:
    """A launch that packs a contiguous tensor of bfloat16, float16 or float32; blocks run along its last dimension."""
    form = into.format
    if source.numel() != into.values or not source.is_contiguous() or source.shape[-1] % form.block:
        raise ValueError(f"source is {tuple(source.shape)}; {into.values} values in rows of whole blocks are needed")
    programs = 2 * quantise.sm_count(source.device)
    partials = torch.empty(programs, dtype=torch.float32, device=source.device)
    find = quantise.amax_kernel[(programs,)]
    pack = quantise_kernel[(into.values // VALUES,)]

    def launch() -> None:
        if form.has_e4m3_scales:
            find(source, partials, into.values, BLOCK=VALUES, STAGES=3, num_warps=4)
        pack(
            source,
            partials,
            into.codes,
            into.scales,
            into.tensor_scale,
            **_constants(form),
            LARGEST=form.largest_code,
            EMAX=form.largest_exponent,
            LARGEST_VALUE=form.largest,
            COUNT=programs,
            LANES=triton.next_power_of_2(programs),
            num_warps=4,
        )

    return launch


def plan_dequantise(packed: Packed, out: torch.Tensor) -> Launch:
    """A launch that unpacks into a contiguous floating tensor of as many values."""
    if out.numel() != packed.values or not out.is_contiguous():
        raise ValueError(f"out is {tuple(out.shape)}; {packed.values} values are needed")
    unpack = dequantise_kernel[(packed.values // VALUES,)]
    is_interpreted = not isinstance(dequantise_kernel, triton.JITFunction)
    # The interpreter truncates where a GPU rounds: torch casts there.
    stored = torch.empty_like(out, dtype=torch.float32) if is_interpreted else out

    def launch() -> None:
        unpack(packed.codes, packed.scales, packed.tensor_scale, stored, **_constants(packed.format), num_warps=4)
        if is_interpreted:
            out.copy_(stored)

    return launch


def _constants(form: Format) -> dict[str, Any]:
    return {
        "BITS": form.bits,
        "MANTISSA": form.mantissa_bits,
        "BIAS": form.bias,
        "BLOCK": form.block,
        "BLOCKS": VALUES // form.block,
        "E4M3_SCALES": form.has_e4m3_scales,
    }
