"""What Triton itself costs: compiling a kernel anew, finding it in the cache on disk, and launching it."""

import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from kernels import quantise, spin

ELF = b"\x7fELF"

_CAST = {
    **{"source": "*bf16", "row_amax": "*fp32", "column_amax": "*fp32", "out": "*fp8e4nv", "out_t": "*fp8e4nv"},
    **{"scales": "*fp32", "scales_t": "*fp32", "seen": "*fp32", "rows": "i32", "columns": "i32", "limit": "fp32"},
}
_BLOCKS = {
    **{"MODE": quantise.MODES.index("block"), "COUNT": 1, "LANES": 1, "BOTH": True, "REMEMBERS": False},
    **{"TILE": quantise.TILE, "LEAST": quantise.LEAST_AMAX, "CUTS": False},
}
# A kernel of five lines, and one that casts a tile both ways: arguments, constants, warps.
KERNELS: dict[str, tuple[Any, dict[str, str], dict[str, Any], int]] = {
    "spin": (spin.spin_kernel, {"out": "*i64", "steps": "i32"}, {}, 1),
    "cast": (quantise.cast_kernel, _CAST, _BLOCKS, 8),
}


class Compiler:
    """Compiles one kernel for one architecture, with a cache of its own; use it in a `with`."""

    def __init__(self, kernel: str, capability: tuple[int, int]) -> None:
        function, arguments, constants, self._warps = KERNELS[kernel]
        signature = arguments | dict.fromkeys(constants, "constexpr")
        self._source: Callable[[], Any] = lambda: ASTSource(function, signature, constants)
        self._target = GPUTarget("cuda", 10 * capability[0] + capability[1], 32)
        self._folder = Path()

    def __enter__(self) -> "Compiler":
        self._folder = Path(tempfile.mkdtemp(prefix="ofpeak-triton-"))
        return self

    def __exit__(self, *_: object) -> None:
        shutil.rmtree(self._folder, ignore_errors=True)

    def forget(self) -> None:
        """Empty the cache."""
        shutil.rmtree(self._folder, ignore_errors=True)
        self._folder.mkdir()

    def compile(self) -> bytes:
        """The kernel's image: from the cache where it holds one, else through every stage of the compiler."""
        with triton.knobs.cache.scope():
            triton.knobs.cache.dir = str(self._folder)
            options = {"num_warps": self._warps}
            image: bytes = triton.compile(self._source(), target=self._target, options=options).asm["cubin"]
        return image

    def holds(self) -> bool:
        """Whether the cache holds an image."""
        return any(self._folder.rglob("*.cubin"))
