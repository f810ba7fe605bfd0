"""The real devices with a short watchdog: a hung kernel is ended after half a minute instead of a minute and a half."""

from harness.probe.device import CpuDevice, CudaDevice
from harness.probe.nvml import open_nvml


class ImpatientCuda(CudaDevice):
    """GPU 0. A case may take its window and this, in which a cold Triton compiles the stamps and the spin."""

    allowance_s = 20.0

    def __init__(self) -> None:
        super().__init__(0, open_nvml()[0])


class ImpatientCpu(CpuDevice):
    """The processor."""

    allowance_s = 3.0
