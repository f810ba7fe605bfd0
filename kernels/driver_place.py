"""Where a driver's calls are made: a stream and kernels on one device, and what an operation must show for itself."""

import ctypes
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from typing import Any

import torch

from kernels.cuda_driver import (
    EVENT_DISABLE_TIMING,
    HOST_ALLOC_MAPPED,
    POINTER_MEMORY_TYPE,
    STREAM_NON_BLOCKING,
    Call,
    Driver,
    DriverError,
    address,
)
from kernels.driver_kernels import MARK, Image, mark_kernel

Pairs = Iterable[tuple[torch.Tensor, torch.Tensor]]
FindImage = Callable[[Any], Image]


@dataclass(frozen=True)
class Operation:
    """One call to time. `operations` counts what a call does several times: the nodes of a graph, the loads of a chain.

    `call` and `before` are given the number of the call; buffer set i is that number modulo `sets`.
    """

    call: Callable[[int], object]
    reference: Callable[[int], Pairs]
    before: Callable[[int], object] | None = None
    inputs: Sequence[torch.Tensor] = ()
    outputs: Sequence[torch.Tensor] = ()
    sets: int = 1
    operations: int = 1
    exact: bool = True


class Workplace:
    """A stream and the kernels on one device, and what is to be given back when it is left, last made first."""

    def __init__(self, driver: Driver, torch_device: str, find_image: FindImage) -> None:
        self.driver = driver
        self.torch_device = torch_device
        self.ordinal = torch.device(torch_device).index or 0
        self.find_image = find_image
        self._leave = ExitStack()
        self._kept: list[Any] = []

    def __enter__(self) -> "Workplace":
        self.device = self.driver.attach(self.ordinal)
        self._leave.callback(self.driver.bind("cuDevicePrimaryCtxRelease_v2", self.device))
        try:
            self.stream = self.new_stream()
        except DriverError:
            self._leave.close()
            raise
        self.wait = self.driver.bind("cuStreamSynchronize", self.stream)
        return self

    def __exit__(self, *failure: object) -> None:
        if failure[0] is None:
            with self._leave:
                self.wait()
            return
        # After a failure the rest fails too, as a rule: what failed first is what must be told.
        with suppress(DriverError):
            self.driver.status("cuStreamSynchronize", self.stream)
            self._leave.close()

    def on_leaving(self, call: Call) -> None:
        """Give something back at the end."""
        self._leave.callback(call)

    def new_stream(self) -> ctypes.c_void_p:
        """A stream that does not wait for the default one."""
        stream = self.driver.handle("cuStreamCreate", STREAM_NON_BLOCKING)
        self.on_leaving(self.driver.bind("cuStreamDestroy_v2", stream))
        return stream

    def new_event(self) -> ctypes.c_void_p:
        """An event that keeps no time: what a program waits with."""
        event = self.driver.handle("cuEventCreate", EVENT_DISABLE_TIMING)
        self.on_leaving(self.driver.bind("cuEventDestroy_v2", event))
        return event

    def function(self, kernel: Any) -> ctypes.c_void_p:
        """A kernel, loaded for as long as the place is used."""
        image = self.find_image(kernel)
        module = self.driver.handle("cuModuleLoadData", image.cubin)
        self.on_leaving(self.driver.bind("cuModuleUnload", module))
        return self.driver.handle("cuModuleGetFunction", module, image.name.encode())

    def launch(self, kernel: Any, function: ctypes.c_void_p, arguments: Sequence[Any], programs: int = 1) -> Call:
        """The launch of so many programs of a kernel on the place's stream, by the driver alone."""
        image = self.find_image(kernel)
        # Two more pointers, to scratch memory that none of these kernels uses, end every kernel of Triton's.
        holders = (*arguments, ctypes.c_void_p(), ctypes.c_void_p())
        parameters = (ctypes.c_void_p * len(holders))(*(ctypes.addressof(holder) for holder in holders))
        self._kept.append(holders)  # the driver reads them at every launch
        numbers = map(ctypes.c_uint, (programs, 1, 1, image.threads, 1, 1, image.shared_bytes))
        return self.driver.bind("cuLaunchKernel", function, *numbers, self.stream, parameters, None)

    def mark(self, slot: torch.Tensor, function: ctypes.c_void_p | None = None) -> Call:
        """The launch that stores MARK in a slot."""
        arguments = (ctypes.c_void_p(slot.data_ptr()), ctypes.c_int32(MARK))
        # A function that is not loaded yet is NULL, which counts as false.
        return self.launch(mark_kernel, self.function(mark_kernel) if function is None else function, arguments)

    def slots(self, count: int = 1) -> torch.Tensor:
        """Places for marks on the device."""
        return torch.zeros(count, dtype=torch.int32, device=self.torch_device)

    def pinned(self, count: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        """Pinned host memory that the device can read, as a tensor."""
        size = count * dtype.itemsize
        memory = self.driver.handle("cuMemHostAlloc", ctypes.c_size_t(size), HOST_ALLOC_MAPPED)
        self.on_leaving(self.driver.bind("cuMemFreeHost", memory))
        buffer = (ctypes.c_char * size).from_address(memory.value or 0)
        return torch.frombuffer(buffer, dtype=dtype).zero_()

    def mapped(self, host: torch.Tensor) -> ctypes.c_void_p:
        """The address by which the device reads pinned host memory; raises where there is none."""
        return self.driver.handle("cuMemHostGetDevicePointer_v2", ctypes.c_void_p(host.data_ptr()), 0)

    def marked(self, slots: torch.Tensor) -> Pairs:
        """Every slot beside what it must hold."""
        return [(slots, torch.full_like(slots, MARK))]

    def roundtrip(self, memory: int, size_bytes: int) -> Pairs:
        """The first and the last number of device memory, written and read again."""
        pairs = []
        for number, offset in enumerate((0, size_bytes - 4)):
            written = torch.tensor([MARK + number], dtype=torch.int32)
            read = torch.zeros_like(written)
            place, size = address(memory + offset), ctypes.c_size_t(4)
            self.driver.call("cuMemcpyHtoD_v2", place, ctypes.c_void_p(written.data_ptr()), size)
            self.driver.call("cuMemcpyDtoH_v2", ctypes.c_void_p(read.data_ptr()), place, size)
            pairs.append((read, written))
        return pairs

    def is_known(self, memory: int) -> bool:
        """Whether the driver knows an address, as memory of the device or as host memory that the device reaches."""
        kind = ctypes.c_uint()
        place = address(memory)
        return self.driver.status("cuPointerGetAttribute", ctypes.byref(kind), POINTER_MEMORY_TYPE, place) == 0


def one_after_another(*calls: Call) -> Callable[[int], None]:
    """Several calls as one, whatever its number."""
    if len(calls) == 1:
        (only,) = calls
        return lambda _: only()
    first, *rest = calls
    if len(rest) == 1:
        (second,) = rest

        def both(_: int) -> None:
            first()
            second()

        return both

    def every(_: int) -> None:
        for call in calls:
            call()

    return every


def must_be_false(claim: bool) -> tuple[torch.Tensor, torch.Tensor]:
    """A claim as a pair that differs where it is true."""
    return torch.tensor([claim]), torch.tensor([False])
