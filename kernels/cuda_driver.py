"""NVIDIA's driver itself: libcuda through ctypes. Every call is checked, and what fails names call and error.

No runtime and no framework lies between: what is timed is the driver's own entry point, which every version of it has
(`_v2` and the like are part of its binary interface and stay). A call costs 0.3 to 0.5 µs of Python beside.
"""

import ctypes
from collections.abc import Callable
from typing import Any

Call = Callable[[], None]

STREAM_NON_BLOCKING = 1
EVENT_DISABLE_TIMING = 2
CAPTURE_THREAD_LOCAL = 1
HOST_ALLOC_MAPPED = 2
HOST_REGISTER_MAPPED = 2
POINTER_MEMORY_TYPE = 2
POOL_RELEASE_THRESHOLD = 4
POOL_USED_BYTES = 7


class DriverError(RuntimeError):
    """A call of the driver failed; the text names both."""


class Driver:
    """The driver's library. `library` stands in for it in tests: an object with the same functions."""

    def __init__(self, library: Any = None) -> None:
        self._library = ctypes.CDLL("libcuda.so.1") if library is None else library

    def call(self, name: str, *arguments: Any) -> None:
        """Call a function of the driver; raises DriverError unless it succeeds."""
        self._check(name, self.status(name, *arguments))

    def status(self, name: str, *arguments: Any) -> int:
        """Call a function of the driver; its status, whatever it is."""
        return int(getattr(self._library, name)(*arguments))

    def bind(self, name: str, *arguments: Any) -> Call:
        """The call as a function without arguments, with as little Python in it as a check allows.

        The arguments are ctypes' own objects: what they hold when it is called counts.
        """
        function = getattr(self._library, name)

        def call() -> None:
            status = function(*arguments)
            if status:
                self._check(name, status)

        return call

    def handle(self, name: str, *arguments: Any) -> ctypes.c_void_p:
        """What a function of the driver makes and writes where its first argument points."""
        made = ctypes.c_void_p()
        self.call(name, ctypes.byref(made), *arguments)
        return made

    def attach(self, ordinal: int) -> ctypes.c_int:
        """Make the device's primary context, torch's own, this thread's current one; the device."""
        self.call("cuInit", 0)
        device = ctypes.c_int()
        self.call("cuDeviceGet", ctypes.byref(device), ordinal)
        self.call("cuCtxSetCurrent", self.handle("cuDevicePrimaryCtxRetain", device))
        return device

    def _check(self, name: str, status: int) -> None:
        if not status:
            return
        text = ctypes.c_char_p()
        known = self._library.cuGetErrorName(status, ctypes.byref(text)) == 0 and text.value
        raise DriverError(f"{name}: {text.value.decode() if known and text.value else f'error {status}'}")


def address(value: int) -> ctypes.c_uint64:
    """An address of device memory, as the driver takes it."""
    return ctypes.c_uint64(value)
