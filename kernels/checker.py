"""Filling, poisoning and comparing buffers of torch: what a measurement asks before and after it times."""

from collections.abc import Sequence

import torch

from kernels.reference import fill_normal, sqnr_db

_CHUNK = 2**26
# Buffers of one fill are numbered within this many seeds, so that a fill from the next seed repeats none of them.
_MOST_BUFFERS = 10_000
_MOST_SHOWN = 3
_WORDS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


class TorchChecker:
    """Normal random data; poison that no right result contains; errors against a reference of higher precision."""

    def fill(self, buffers: Sequence[torch.Tensor], seed: int) -> None:
        """Fill each buffer with its own draw; the same seed gives the same data on one kind of device."""
        for number, buffer in enumerate(buffers):
            on_device = _near_fast_memory(buffer)
            fill_normal(on_device, seed * _MOST_BUFFERS + number)
            if on_device is not buffer:
                buffer.copy_(on_device)

    def poison(self, buffers: Sequence[torch.Tensor]) -> None:
        """NaN where the type has one, else the smallest integer."""
        for buffer in buffers:
            if not buffer.is_floating_point():
                buffer.fill_(torch.iinfo(buffer.dtype).min)
            elif buffer.element_size() == 1:
                buffer.view(torch.uint8).fill_(0x7F)  # NaN in float8_e4m3fn and float8_e5m2 alike
            else:
                buffer.fill_(float("nan"))

    def fingerprint(self, buffer: torch.Tensor) -> int:
        """A sum over the buffer's bits, weighted by position modulo a prime: equal for equal bits."""
        bits = (buffer.cuda() if _is_beside_gpu(buffer) else buffer).view(torch.uint8).view(-1)
        whole = len(bits) // 4 * 4
        words = bits[:whole].view(torch.int32)
        # The bytes after the last whole word, in digits that no sum of words below 2**64 fills.
        total = int.from_bytes(bytes(bits[whole:].tolist()), "little") << 128
        for start, piece in enumerate(words.split(_CHUNK)):
            weights = torch.arange(piece.numel(), device=piece.device, dtype=torch.int64) % 65521 + 1
            total += int((piece.to(torch.int64) * weights).sum()) * (start + 1)
        return total

    def copy(self, buffer: torch.Tensor) -> torch.Tensor:
        """The buffer as it is now, in host memory where the device has no room left."""
        try:
            return buffer.clone()
        except torch.OutOfMemoryError:
            return buffer.cpu()

    def differences(
        self, kept: torch.Tensor, buffer: torch.Tensor
    ) -> tuple[int, list[tuple[tuple[int, ...], int, int]]]:
        """How many elements differ in their bits, and of the first few: index, bits of both."""
        count, modulus = 0, 2 ** (8 * buffer.element_size())
        first: list[tuple[tuple[int, ...], int, int]] = []
        pieces = zip(_bits(kept).split(_CHUNK), _bits(buffer).split(_CHUNK), strict=True)
        for number, (kept_piece, now) in enumerate(pieces):
            before = kept_piece.to(now.device)
            odd = (before != now).nonzero().view(-1)
            count += len(odd)
            for at in odd[: _MOST_SHOWN - len(first)].tolist():
                index = _index(number * _CHUNK + at, buffer.shape)
                first.append((index, int(before[at]) % modulus, int(now[at]) % modulus))
        return count, first

    def error(self, actual: torch.Tensor, expected: torch.Tensor, exact: bool) -> float:
        """SQNR in dB, or for `exact` the number of elements that differ (a NaN always differs)."""
        if not exact:
            return sqnr_db(actual, expected)
        if actual.shape != expected.shape:
            raise ValueError(f"actual is {tuple(actual.shape)}, expected {tuple(expected.shape)}")
        pieces = zip(actual.reshape(-1).split(_CHUNK), expected.reshape(-1).split(_CHUNK), strict=True)
        return float(sum(int((a != e).sum()) for a, e in pieces))


def _bits(buffer: torch.Tensor) -> torch.Tensor:
    """Each element as a whole number of the same width, in one row."""
    return buffer.reshape(-1).view(_WORDS[buffer.element_size()])


def _index(at: int, shape: Sequence[int]) -> tuple[int, ...]:
    """The position in a row as an index."""
    index = []
    for size in reversed(shape):
        at, inner = divmod(at, size)
        index.append(inner)
    return tuple(reversed(index))


def _is_beside_gpu(buffer: torch.Tensor) -> bool:
    """Whether this is host memory that a GPU reaches: pinned, so there is one."""
    return buffer.device.type == "cpu" and torch.cuda.is_available() and buffer.is_pinned()


def _near_fast_memory(buffer: torch.Tensor) -> torch.Tensor:
    """The buffer, or for pinned host memory a device tensor of its shape: drawing a gigabyte takes a CPU seconds."""
    return torch.empty_like(buffer, device="cuda") if _is_beside_gpu(buffer) else buffer
