"""The first context of a process: run as a script, it prints what `cuInit` and the context took, as JSON.

Its own clock counts, so that neither the start of Python nor the loading of libcuda is in it. No torch: the driver is
all that is loaded. A process can do this once, which is why every sample is a process.
"""

import ctypes
import json
import subprocess
import sys
import time
from pathlib import Path

_LIMIT_S = 60.0


def time_in_child(ordinal: int) -> dict[str, float]:
    """A fresh process's seconds in `cuInit` and in its first context (retained, used for an allocation, released)."""
    command = [sys.executable, "-I", str(Path(__file__)), str(ordinal)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=_LIMIT_S)
    if done.returncode != 0:
        told = done.stderr.strip().splitlines() or [f"exit code {done.returncode}"]
        raise RuntimeError(f"the first context of a fresh process failed: {told[-1]}")
    return {name: float(value) for name, value in json.loads(done.stdout).items()}


def _measure(ordinal: int) -> dict[str, float]:
    library = ctypes.CDLL("libcuda.so.1")

    def call(name: str, *arguments: object) -> None:
        status = getattr(library, name)(*arguments)
        if status:
            text = ctypes.c_char_p()
            library.cuGetErrorName(status, ctypes.byref(text))
            sys.exit(f"{name}: {(text.value or b'').decode() or f'error {status}'}")

    device, context, memory = ctypes.c_int(), ctypes.c_void_p(), ctypes.c_uint64()
    began_s = time.perf_counter()
    call("cuInit", 0)
    initialised_s = time.perf_counter()
    call("cuDeviceGet", ctypes.byref(device), ordinal)
    call("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
    ended_s = time.perf_counter()
    # A context that can be used: memory of it holds what was written there.
    call("cuCtxSetCurrent", context)
    call("cuMemAlloc_v2", ctypes.byref(memory), ctypes.c_size_t(4))
    written, read = ctypes.c_uint32(0x5EED), ctypes.c_uint32()
    call("cuMemcpyHtoD_v2", memory, ctypes.byref(written), ctypes.c_size_t(4))
    call("cuMemcpyDtoH_v2", ctypes.byref(read), memory, ctypes.c_size_t(4))
    if read.value != written.value:
        sys.exit(f"the context's memory holds {read.value:#x}, {written.value:#x} was written")
    call("cuMemFree_v2", memory)
    call("cuDevicePrimaryCtxRelease_v2", device)
    return {"init_s": initialised_s - began_s, "context_s": ended_s - initialised_s}


if __name__ == "__main__":
    sys.stdout.write(json.dumps(_measure(int(sys.argv[1]))) + "\n")
