"""What is said of ranks that go wrong: other code, too little shared memory, the backend's last line."""

import hashlib
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

import harness

_CHECKOUT = Path(harness.__file__).resolve().parents[1]
_HASH_DIGITS = 12
_SHARED = Path("/dev/shm")
# NVIDIA's containers warn below 64 MiB, which is docker's default, and ask for --shm-size=1g with NCCL.
_ENOUGH_SHARED_BYTES = 64 * 2**20
_LONGEST_WORDS = 300
_ADDRESS = re.compile(r"\b\d{1,3}(?:\.\d{1,3}){3}\b|(?<=\[)[0-9A-Fa-f:]*:[0-9A-Fa-f:.%\w]*(?=\])")


def code_of_rank() -> dict[str, str]:
    """What must be equal on every rank: the suite, its source, and the libraries that talk to one another."""
    import torch

    code = {"ofpeak": harness.__version__, "source": source_hash(_CHECKOUT), "torch": str(torch.__version__)}
    if torch.version.cuda is not None and torch.distributed.is_nccl_available():
        code["nccl"] = ".".join(str(part) for part in torch.cuda.nccl.version())
    return code


def source_hash(checkout: Path) -> str:
    """A hash of every module that a rank may run."""
    digest = hashlib.sha256()
    for path in sorted([*checkout.glob("harness/**/*.py"), *checkout.glob("kernels/*.py")]):
        digest.update(path.relative_to(checkout).as_posix().encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()[:_HASH_DIGITS]


def other_code(codes: Sequence[Mapping[str, str]]) -> str:
    """Which rank runs other code than rank 0, with both versions; "" where all run the same."""
    for rank, code in enumerate(codes):
        for name in sorted({*codes[0], *code}):
            first, own = codes[0].get(name, "none"), code.get(name, "none")
            if first != own:
                return (
                    f"rank {rank} of {len(codes)} runs other code: {name} {own}, rank 0 has {first}. "
                    "Install the same checkout and environment on every host."
                )
    return ""


def words_of(rank: int, answer: object) -> str:
    """What a rank told when it failed, as part of a sentence."""
    return f"rank {rank} told: {str(answer)[:_LONGEST_WORDS]}"


def without_addresses(text: str) -> str:
    """The text with `address` for every IPv4 address, and for every IPv6 address that stands in brackets."""
    return _ADDRESS.sub("address", text)


def shared_memory_hint(free_bytes: int | None) -> str:
    """That /dev/shm may be the reason, where it is nearly full; NCCL only says that a call failed."""
    if free_bytes is None or free_bytes >= _ENOUGH_SHARED_BYTES:
        return ""
    return (
        f"/dev/shm has {free_bytes / 2**20:.0f} MiB free, NCCL may need more than "
        f"{_ENOUGH_SHARED_BYTES // 2**20} MiB: start the container with --ipc=host or --shm-size=1g"
    )


def shared_memory_free_bytes(folder: Path = _SHARED) -> int | None:
    """What is left of the memory that processes of one host share; `None` where nothing tells."""
    try:
        told = os.statvfs(folder)
    except OSError:
        return None
    return told.f_bavail * told.f_frsize
