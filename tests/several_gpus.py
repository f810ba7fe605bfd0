"""An NVML with several GPUs, MIG slices and structures to fill, for what FakeNvml's tables cannot tell apart."""

import ctypes
from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import Any

from tests.doubles import FakeNvml, FakeNvmlError


class FabricInfo(ctypes.Structure):
    """As much of c_nvmlGpuFabricInfo_v3_t as is read."""

    _fields_ = (
        ("status", ctypes.c_uint),
        ("state", ctypes.c_uint),
        ("healthMask", ctypes.c_uint32),
        ("healthSummary", ctypes.c_uint8),
    )


class ClockOffset(ctypes.Structure):
    """c_nvmlClockOffset_t."""

    _fields_ = tuple((name, ctypes.c_int) for name in ("version", "type", "pstate", "clockOffsetMHz"))


class SeveralGpus(FakeNvml):
    """Handles are names; what `each` tells of a name goes before the common answers. `mig:` marks a slice."""

    c_nvmlGpuFabricInfo_v3_t = FabricInfo  # noqa: N815  # NVML's own name
    c_nvmlClockOffset_t = ClockOffset  # noqa: N815  # NVML's own name

    def __init__(
        self,
        names: Sequence[str],
        answers: Mapping[str, Any] | None = None,
        each: Mapping[str, Mapping[str, Any]] | None = None,
        fields: Mapping[int, Any] | None = None,
        filling: Mapping[str, Mapping[str, int]] | None = None,
    ) -> None:
        super().__init__(answers, fields)
        self._names = names
        self._each = {name: dict((each or {}).get(name, {})) for name in names}
        self._filling = filling or {}

    def nvmlDeviceGetCount(self) -> int:  # noqa: N802  # NVML's own name
        """All of them."""
        return len(self._names)

    def nvmlDeviceGetHandleByIndex(self, index: int) -> str:  # noqa: N802  # NVML's own name
        """The name, or GPU_IS_LOST for one that is called so."""
        if self._names[index] == "lost":
            raise FakeNvmlError(15)
        return self._names[index]

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> str:  # noqa: N802  # NVML's own name
        """The handle whose UUID it is."""
        for name in (*self._names, *(n for n in self._each if n not in self._names)):
            if name != "lost" and f"GPU-{name}" == uuid:
                return name
        raise FakeNvmlError(6)

    def nvmlDeviceGetUUID(self, handle: str) -> str:  # noqa: N802  # NVML's own name
        """Made of the name."""
        return f"GPU-{handle}"

    def nvmlDeviceIsMigDeviceHandle(self, handle: str) -> ctypes.c_uint:  # noqa: N802  # NVML's own name
        """The binding returns the C integer itself."""
        return ctypes.c_uint(handle.startswith("mig:"))

    def nvmlDeviceGetDeviceHandleFromMigDeviceHandle(self, handle: str) -> str:  # noqa: N802  # NVML's own name
        """The card after the mark."""
        return handle.removeprefix("mig:")

    def nvmlDeviceGetFieldValues(self, handle: str, ids: Sequence[tuple[int, int]]) -> list[Any]:  # noqa: N802
        """The fields of that GPU where it has its own, else the common ones."""
        common = self.fields
        try:
            self.fields = common | self._each.get(handle, {}).get("fields", {})
            return super().nvmlDeviceGetFieldValues(handle, ids)
        finally:
            self.fields = common

    def __getattr__(self, name: str) -> Any:
        """A structure to fill, one GPU's own answer, or the common one."""
        common = super().__getattr__(name)
        call = name.removeprefix("nvmlDevice")

        def answer(handle: Any = None, *arguments: Any) -> Any:
            if call in self._filling and arguments:
                for field, value in self._filling[call].items():
                    setattr(arguments[-1]._obj, field, value)
                return 0
            own = self._each.get(handle, {}) if isinstance(handle, str) else {}
            if call in own:
                if isinstance(own[call], Exception):
                    raise own[call]
                return own[call](*arguments) if callable(own[call]) else own[call]
            return common(handle, *arguments)

        return answer


def process(pid: int, mib: int | None = 1024, gpu_instance: int = 0) -> SimpleNamespace:
    """One entry of NVML's process list."""
    return SimpleNamespace(pid=pid, usedGpuMemory=None if mib is None else mib * 2**20, gpuInstanceId=gpu_instance)
