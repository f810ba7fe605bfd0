"""Triton's CPU interpreter: how to switch it on, and the repair that one release needs.

In the interpreter a kernel is plain Python over numpy arrays: it shows that the arithmetic and the masks are right on a
machine without a GPU, and says nothing about speed, tensor-core rounding or fast accumulation. Two types need care
there. bfloat16 is held as 16-bit integers, so a `tl.dot` of bfloat16 multiplies bit patterns and is wrong without a
word (triton-lang/triton#11584), and float32 to bfloat16 or fp8 does not round to nearest: kernels in this folder
upcast first, store float32 and leave the last cast to torch when they are interpreted.
"""

import os
import sys
from typing import Any

_WITH_KERNELS = (
    "kernels.all_reduce",
    "kernels.attention",
    "kernels.cache",
    "kernels.driver_kernels",
    "kernels.gemm",
    "kernels.gemm_parts",
    "kernels.gemm_pointers",
    "kernels.gemm_promoted",
    "kernels.gemm_skinny",
    "kernels.memory",
    "kernels.mx",
    "kernels.peers",
    "kernels.quantise",
    "kernels.spin",
)


def enable() -> None:
    """Makes every kernel imported from now on run in the interpreter.

    Triton decides once, where `@triton.jit` decorates, so a kernel file that is already loaded stays compiled: hence
    the error instead of a launch that fails later for want of a driver.
    """
    if os.environ.get("TRITON_INTERPRET") != "1":
        loaded = sorted(name for name in sys.modules if name in _WITH_KERNELS)
        if loaded:
            raise RuntimeError(
                f"{', '.join(loaded)} loaded before the interpreter was enabled:"
                " call kernels.interpreter.enable() first"
            )
        os.environ["TRITON_INTERPRET"] = "1"
    _allow_loop_bounds_held_in_arrays()


def _allow_loop_bounds_held_in_arrays() -> None:
    """Lets `range(0, k, BLOCK)` take a run-time bound under triton 3.6 with numpy 2.4 or later.

    Triton 3.6 turns a one-element array into an int directly, which numpy 2.4 refuses (triton-lang/triton#9171). The
    repair is what triton 3.7 does itself, so it changes nothing there.
    """
    from triton.runtime import interpreter

    patch_tensor = interpreter._patch_lang_tensor
    if getattr(patch_tensor, "allows_loop_bounds", False):
        return

    def patched(tensor: Any, scope: Any) -> None:
        patch_tensor(tensor, scope)
        scope.set_attr(tensor, "__index__", lambda value: int(value.handle.data.item()))

    patched.allows_loop_bounds = True  # type: ignore[attr-defined]  # marks the repair as made: a second call adds none
    interpreter._patch_lang_tensor = patched
