"""libcuda as far as `kernels.driver` calls it, on the host's memory: streams are queues that run when waited for.

`alive` holds what was made and not given back, `fails` names calls with the status that they return.
"""

import ctypes
from collections import Counter
from collections.abc import Callable
from typing import Any

import torch

NOT_FOUND = 500
INVALID_VALUE = 1


def plain(argument: Any) -> Any:
    """What an argument holds."""
    return getattr(argument, "value", argument)


class Clock:
    """The host's clock, which copies and arithmetic move."""

    now_s = 0.0

    def perf_counter(self) -> float:
        """Now."""
        return self.now_s


class FakeCuda:
    """One device, one primary context, and everything at the host's own addresses."""

    def __init__(self) -> None:
        self.clock = Clock()
        self.calls: Counter[str] = Counter()
        self.fails: dict[str, int] = {}
        self.alive: dict[int, tuple[str, Any]] = {}
        self.current = [0]
        self.queues: dict[int, list[Callable[[], None]]] = {}
        self.captured: list[Callable[[], None]] | None = None
        self.memory: dict[int, Any] = {}
        self.functions: dict[int, tuple[int, str]] = {}
        self.pool_used = 0
        self.pool_threshold = 0
        self.drops_a_node = self.keeps_freed = self.copies_late = False
        self._next = 100

    def run(self) -> None:
        """Everything that is queued."""
        for queue in self.queues.values():
            while queue:
                queue.pop(0)()

    def __getattr__(self, name: str) -> Callable[..., int]:
        """A call: its scripted failure, or what the method of that name without version does."""
        if not name.startswith("cu"):
            raise AttributeError(name)
        method = getattr(type(self), f"_{name.partition('_')[0]}")

        def call(*arguments: Any) -> int:
            self.calls[name] += 1
            if name in self.fails:
                return self.fails[name]
            return method(self, *arguments) or 0

        return call

    def _make(self, out: Any, kind: str, what: Any = None) -> None:
        self._next += 1
        self.alive[self._next] = (kind, what)
        out._obj.value = self._next

    def _end(self, handle: Any, kind: str) -> int:
        held = self.alive.get(plain(handle) or 0)
        if held is None or held[0] != kind:
            return INVALID_VALUE
        del self.alive[plain(handle)]
        return 0

    def _what(self, handle: Any) -> Any:
        return self.alive[plain(handle)][1]

    def _enqueue(self, stream: Any, work: Callable[[], None]) -> None:
        if self.captured is not None:
            self.captured.append(work)
        else:
            self.queues[plain(stream)].append(work)

    # contexts

    def _cuInit(self, flags):
        return 0

    def _cuGetErrorName(self, status, out):
        names = {1: b"CUDA_ERROR_INVALID_VALUE", 2: b"CUDA_ERROR_OUT_OF_MEMORY"}
        out._obj.value = names.get(status)
        return 0 if status in names else INVALID_VALUE

    def _cuDeviceGet(self, out, ordinal):
        out._obj.value = ordinal

    def _cuDevicePrimaryCtxRetain(self, out, device):
        self._make(out, "primary")
        self.primary = out._obj.value

    def _cuDevicePrimaryCtxRelease(self, device):
        return self._end(self.primary, "primary")

    def _cuCtxSetCurrent(self, context):
        self.current[-1] = plain(context)

    def _cuCtxCreate(self, out, flags, device):
        self._make(out, "context")
        self.current.append(out._obj.value)

    def _cuCtxPushCurrent(self, context):
        self.current.append(plain(context))

    def _cuCtxPopCurrent(self, out):
        out._obj.value = self.current.pop()

    def _cuCtxDestroy(self, context):
        return self._end(context, "context")

    # streams, events, graphs

    def _cuStreamCreate(self, out, flags):
        self._make(out, "stream")
        self.queues[out._obj.value] = []

    def _cuStreamDestroy(self, stream):
        return self._end(stream, "stream")

    def _cuStreamSynchronize(self, stream):
        queue = self.queues[plain(stream)]
        while queue:
            queue.pop(0)()

    def _cuEventCreate(self, out, flags):
        self._make(out, "event", {"stream": None})

    def _cuEventRecord(self, event, stream):
        self._what(event)["stream"] = plain(stream)

    def _cuEventSynchronize(self, event):
        self._cuStreamSynchronize(self._what(event)["stream"])

    def _cuEventDestroy(self, event):
        return self._end(event, "event")

    def _cuStreamBeginCapture(self, stream, mode):
        self.captured = []

    def _cuStreamEndCapture(self, stream, out):
        self._make(out, "graph", self.captured)
        self.captured = None

    def _cuGraphGetNodes(self, graph, nodes, count):
        count._obj.value = len(self._what(graph))

    def _cuGraphInstantiateWithFlags(self, out, graph, flags):
        nodes = self._what(graph)
        self._make(out, "exec", nodes[:-1] if self.drops_a_node else nodes)

    def _cuGraphLaunch(self, launchable, stream):
        for work in self._what(launchable):
            self._enqueue(stream, work)

    def _cuGraphExecDestroy(self, launchable):
        return self._end(launchable, "exec")

    def _cuGraphDestroy(self, graph):
        return self._end(graph, "graph")

    # modules and kernels

    def _cuModuleLoadData(self, out, image):
        self._make(out, "module", image)

    def _cuModuleGetFunction(self, out, module, name):
        if self.alive[plain(module)][0] != "module":
            return NOT_FOUND
        self._next += 1
        out._obj.value = self._next
        self.functions[self._next] = (plain(module), name.decode())
        return 0

    def _cuModuleUnload(self, module):
        return self._end(module, "module")

    def _cuLaunchKernel(self, function, programs, *rest):
        *_, stream, parameters, _ = rest
        module, name = self.functions[plain(function)]
        if module not in self.alive:
            return INVALID_VALUE
        run = {"mark_kernel": mark, "chase_kernel": chase, "sum_kernel": sums, "busy_kernel": self._busy}[name]
        held = [bytes((ctypes.c_char * 8).from_address(place)) for place in list(parameters)[:-2]]
        self._enqueue(stream, lambda: run(plain(programs), *held))
        return 0

    def _busy(self, programs, out, rounds):
        self.clock.now_s += 1e-9 * word(rounds)
        floats(address(out), programs * 512).fill_(2.0)

    # memory

    def _allocate(self, out, size):
        buffer = (ctypes.c_char * plain(size))()
        self.memory[ctypes.addressof(buffer)] = buffer
        out._obj.value = ctypes.addressof(buffer)

    def _cuMemAlloc(self, out, size):
        self._allocate(out, size)

    def _cuMemFree(self, memory):
        if self.keeps_freed:
            return 0
        return 0 if self.memory.pop(plain(memory), None) is not None else INVALID_VALUE

    def _cuMemAllocAsync(self, out, size, stream):
        self._allocate(out, size)
        self.pool_used += plain(size)

    def _cuMemFreeAsync(self, memory, stream):
        freed = self.memory.pop(plain(memory), None)
        if freed is None:
            return INVALID_VALUE
        self.pool_used -= 0 if self.keeps_freed else len(freed)
        return 0

    def _cuDeviceGetDefaultMemPool(self, out, device):
        out._obj.value = 7

    def _cuMemPoolGetAttribute(self, pool, attribute, out):
        out._obj.value = {4: self.pool_threshold, 7: self.pool_used}[attribute]

    def _cuMemPoolSetAttribute(self, pool, attribute, value):
        assert attribute == 4
        self.pool_threshold = value._obj.value

    def _cuMemPoolTrimTo(self, pool, size):
        return 0

    def _cuMemHostAlloc(self, out, size, flags):
        self._allocate(out, size)

    def _cuMemFreeHost(self, memory):
        return 0 if self.memory.pop(plain(memory), None) is not None else INVALID_VALUE

    def _cuMemHostRegister(self, memory, size, flags):
        if plain(memory) in self.memory:
            return INVALID_VALUE
        self.memory[plain(memory)] = "registered"
        return 0

    def _cuMemHostUnregister(self, memory):
        if self.keeps_freed:
            return 0
        return 0 if self.memory.pop(plain(memory), None) == "registered" else INVALID_VALUE

    def _cuMemHostGetDevicePointer(self, out, memory, flags):
        if plain(memory) not in self.memory:
            return INVALID_VALUE
        out._obj.value = plain(memory)
        return 0

    def _cuPointerGetAttribute(self, out, attribute, memory):
        return 0 if plain(memory) in self.memory else INVALID_VALUE

    def _cuMemcpy(self, to, source, size):
        ctypes.memmove(plain(to), plain(source), plain(size))

    def _cuMemcpyHtoD(self, to, source, size):
        ctypes.memmove(plain(to), plain(source), plain(size))

    _cuMemcpyDtoH = _cuMemcpyHtoD

    def _cuMemcpyHtoDAsync(self, to, source, size, stream):
        def copy():
            self.clock.now_s += 1e-3
            if not self.copies_late:
                ctypes.memmove(plain(to), plain(source), plain(size))

        self._enqueue(stream, copy)

    _cuMemcpyDtoHAsync = _cuMemcpyHtoDAsync


def address(argument: bytes) -> int:
    """A kernel's argument as an address."""
    return int.from_bytes(argument, "little")


def word(argument: bytes) -> int:
    """A kernel's argument as a 32-bit number."""
    return int.from_bytes(argument[:4], "little")


def floats(where: int, count: int) -> torch.Tensor:
    """Memory as numbers."""
    return torch.frombuffer((ctypes.c_char * (4 * count)).from_address(where), dtype=torch.float32)


def mark(_, slot, value):
    ctypes.c_int32.from_address(address(slot)).value = word(value)


def chase(_, chain, start, steps, end):
    place = address(start)
    for _ in range(word(steps)):
        place = ctypes.c_int64.from_address(address(chain) + 8 * place).value
    ctypes.c_int64.from_address(address(end)).value = place


def sums(programs, source, out):
    floats(address(out), programs).copy_(floats(address(source), programs * 4096).view(programs, -1).sum(dim=1))
