"""Cases that a GPU itself makes fail, each followed by a small copy that must be right; `python -m tests.gpu_faults`.

On a CPU each has its nearest likeness, so that all but the device is tried anywhere. A hung kernel ends by itself after
`HUNG_S`, should nobody have been able to end it before.
"""

import ctypes
import time

import torch

from harness.model import Case, Work
from harness.units import GIB, MIB

FAULTS = ("device_memory", "host_memory", "too_large", "illegal_address", "hung_kernel")
HUNG_S = 120.0
COPIED_BYTES = 64 * MIB
STEP_BYTES = 4 * GIB
# More than any machine's address space: refused at once, nothing is touched.
BEYOND_BYTES = 2**50


def cases(profile, device):
    yield healthy("healthy", device)
    for fault in FAULTS:
        memory_bytes = 4 * device.memory_bytes if fault == "too_large" else 0
        yield Case(fault, {"n": 1}, work(), memory_bytes=memory_bytes)
        yield healthy(fault, device)


def healthy(op, device):
    return Case(op, {"n": 2}, work(), memory_bytes=2 * COPIED_BYTES, footprint_bytes=2 * COPIED_BYTES)


def work():
    return (Work(2 * COPIED_BYTES, "B", None, "read + written", no_peak="a fault is tried, not a rate"),)


def bench_gpu_faults(case, device, measure):
    source = torch.empty(COPIED_BYTES // 4, device=device.torch_device)
    out = torch.empty_like(source)
    held = []

    def launch(_):
        if case.params["n"] == 1:
            commit(case.op, device.kind, out, held)
        out.copy_(source)

    measure(launch, inputs=[source], outputs=[out], reference=lambda i: [(out, source)], exact=True)


def commit(fault, kind, out, held):
    """Do it. What cannot be allocated is asked for until it is refused; `held` keeps what was given."""
    is_cuda = kind == "cuda"
    if fault == "host_memory" or (fault == "device_memory" and not is_cuda):
        held.append(torch.empty(BEYOND_BYTES, dtype=torch.uint8))
    elif fault == "device_memory":
        while True:
            held.append(torch.empty(STEP_BYTES, dtype=torch.uint8, device=out.device))
    elif fault == "illegal_address" and is_cuda:
        from tests.gpu_faults.out_of_bounds import write_out_of_bounds

        write_out_of_bounds(out)
    elif fault == "illegal_address":
        ctypes.memset(0, 0, 1)
    elif fault == "hung_kernel" and is_cuda:
        from harness.probe.timing import spin

        spin(HUNG_S)
    elif fault == "hung_kernel":
        time.sleep(HUNG_S)
