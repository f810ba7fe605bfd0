"""Block-scaled formats by table: every code's value written down, values rounded to the nearest entry, in float64.

Nothing here is computed as `kernels.mx` computes it: it is what that is held against, and what decodes its bytes.
"""

import torch

from kernels.mx import Format, Packed

# OCP Microscaling Formats (MX) Specification v1.0, tables 2 to 5: the magnitudes, by code.
E2M1 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
E2M3 = (
    *(0.0, 0.125, 0.25, 0.375, 0.5, 0.625, 0.75, 0.875),
    *(1.0, 1.125, 1.25, 1.375, 1.5, 1.625, 1.75, 1.875),
    *(2.0, 2.25, 2.5, 2.75, 3.0, 3.25, 3.5, 3.75),
    *(4.0, 4.5, 5.0, 5.5, 6.0, 6.5, 7.0, 7.5),
)
E3M2 = (
    *(0.0, 0.0625, 0.125, 0.1875, 0.25, 0.3125, 0.375, 0.4375),
    *(0.5, 0.625, 0.75, 0.875, 1.0, 1.25, 1.5, 1.75),
    *(2.0, 2.5, 3.0, 3.5, 4.0, 5.0, 6.0, 7.0),
    *(8.0, 10.0, 12.0, 14.0, 16.0, 20.0, 24.0, 28.0),
)


def magnitudes(form: Format) -> torch.Tensor:
    """The finite magnitudes of a format by code, in float64; fp8's are torch's own."""
    if form.bits == 8:
        dtype = torch.float8_e4m3fn if form.mantissa_bits == 3 else torch.float8_e5m2
        codes = torch.arange(form.largest_code + 1, dtype=torch.uint8)
        return codes.view(dtype).double()
    named = {(2, 1): E2M1, (2, 3): E2M3, (3, 2): E3M2}
    return torch.tensor(named[form.exponent_bits, form.mantissa_bits], dtype=torch.float64)


def nearest_code(values: torch.Tensor, table: torch.Tensor) -> torch.Tensor:
    """The code of the entry nearest to each magnitude; of two equally near the even code, beyond the last the last."""
    magnitude = values.double().abs()
    upper = torch.searchsorted(table, magnitude).clamp(max=len(table) - 1)
    lower = (upper - 1).clamp(min=0)
    above, below = table[upper] - magnitude, magnitude - table[lower]
    takes_lower = (below < above) | ((below == above) & (lower % 2 == 0))
    return torch.where(takes_lower, lower, upper)


def unpack_codes(packed: Packed) -> torch.Tensor:
    """The codes of all values with their signs, one an element."""
    words = packed.codes.cpu().to(torch.int64)
    bits = packed.format.bits
    if bits == 8:
        return words
    if bits == 4:
        return torch.stack((words & 15, words >> 4), dim=-1).flatten()
    triples = words.view(-1, 3)
    whole = triples[:, 0] + triples[:, 1] * 256 + triples[:, 2] * 65536
    return torch.stack([(whole >> shift) & 63 for shift in (0, 6, 12, 18)], dim=-1).flatten()


def scale_values(packed: Packed) -> torch.Tensor:
    """Each block's scale in float64: a power of two, or an E4M3 number times the tensor's scale."""
    codes = packed.scales.cpu()
    if packed.format.has_e4m3_scales:
        return codes.view(torch.float8_e4m3fn).double() * packed.tensor_scale.cpu().double()
    exponents = codes.double() - 127
    return torch.where(codes == 255, torch.nan, torch.exp2(exponents))


def dequantised(packed: Packed) -> torch.Tensor:
    """What the bytes stand for, in float64 on the host."""
    codes, form = unpack_codes(packed), packed.format
    sign_bit = 1 << (form.bits - 1)
    values = magnitudes(form)[(codes & (sign_bit - 1))]
    values = torch.where(codes >= sign_bit, -values, values)
    return (values.view(-1, form.block) * scale_values(packed)[:, None]).flatten()


def quantised(
    values: torch.Tensor, form: Format, outer: torch.Tensor | None = None
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Codes with signs, scale codes and the tensor's scale that a format's rules give to finite values.

    Of a piece of a tensor, `outer` is the scale of the whole.
    """
    blocks = values.cpu().double().view(-1, form.block)
    largest = blocks.abs().amax(dim=1)
    if form.has_e4m3_scales:
        # In float32, as the scale is kept: its own rounding decides which E4M3 number is the nearest.
        own = largest.max().float().clamp(min=2.0**-100) / torch.tensor(448 * form.largest)
        outer32 = own if outer is None else outer.float().squeeze()
        wanted = largest.float() / torch.tensor(form.largest) / outer32
        e4m3 = torch.arange(127, dtype=torch.uint8).view(torch.float8_e4m3fn).double()
        scale_codes = nearest_code(wanted, e4m3)
        scale32 = e4m3[scale_codes].float() * outer32
        inverse = torch.where(scale_codes > 0, torch.ones_like(scale32) / scale32, 0.0)
        scaled = blocks.float() * inverse[:, None]
    else:
        outer32 = torch.ones(())
        exponents = torch.floor(torch.log2(largest.clamp(min=2.0**-149))) - form.largest_exponent
        exponents = exponents.clamp(min=-127)
        scale_codes = (exponents + 127).long()
        scaled = blocks / torch.exp2(exponents)[:, None]
    codes = nearest_code(scaled, magnitudes(form))
    return (
        torch.where(blocks < 0, codes + (1 << (form.bits - 1)), codes).flatten(),
        scale_codes,
        outer32.double().reshape(1),
    )
