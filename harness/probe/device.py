"""The one branch between GPU and CPU: which device there is, what it says of itself, how it is loaded.

Without any NVIDIA device, or when asked, the suite runs on the CPU. A GPU that torch cannot use is an error that
names both versions, never a silent CPU run.
"""

import gc
import importlib.util
import os
import time
from collections.abc import Mapping, Sequence
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from harness.errors import ExitCode, HarnessError
from harness.model import DeviceFacts, Fact, Ruler, Telemetry
from harness.probe import host
from harness.probe.cuda_load import CudaLoad
from harness.probe.load import Device, Group, Launch, Load, Pace, Prologue
from harness.probe.nvml import CLOCK_MEMORY, CLOCK_SM, Gpu, Nvml, open_nvml
from harness.probe.scripted import device_by_path
from harness.probe.shots import cpus_in_turn, time_shots

if TYPE_CHECKING:
    from harness.probe.card_watch import Cards
    from harness.probe.rest import Rest
    from harness.probe.ruler import RulerCheck

_FABRIC_MISSING = "802"


def discover(wanted: str = "auto", index: int = 0) -> Device:
    """The device to measure: GPU `index` of those that CUDA sees, or the CPU.

    `wanted` is `auto`, `cpu`, or the dotted path of a class that is called without arguments (a scripted device).
    Raises HarnessError with exit code 2 if there is a GPU that torch cannot use.
    """
    if wanted == "cpu":
        return CpuDevice()
    if wanted != "auto":
        return device_by_path(wanted)
    nvml, reason = open_nvml()
    gpu_names = [str(gpu.query("GetName").value) for gpu in nvml.gpus()] if nvml else []
    if not gpu_names and not _has_device_node():
        return CpuDevice()
    _require_cuda(gpu_names, nvml, reason)
    return CudaDevice(index, nvml)


def _has_device_node() -> bool:
    return any(Path("/dev").glob("nvidia[0-9]*"))


def _require_cuda(gpu_names: list[str], nvml: Nvml | None, reason: str) -> None:
    """Raise unless torch can use a GPU that is there, naming the driver's and torch's versions."""
    driver = (nvml.system("GetDriverVersion").value if nvml else None) or f"unknown ({reason})"
    found = (
        f"found {gpu_names[0] if gpu_names else 'an NVIDIA device'} with driver {driver}, but torch {torch.__version__}"
    )
    if torch.version.cuda is None:
        raise HarnessError(
            f"{found} is built without CUDA. Install a CUDA build of torch, or measure the CPU with DEVICE=cpu.",
            ExitCode.INCONCLUSIVE,
        )
    try:
        torch.cuda.init()
    except RuntimeError as error:
        told = str(error).splitlines()[0]
        if _FABRIC_MISSING in told:
            raise HarnessError(
                f"CUDA error 802 on {gpu_names[0] if gpu_names else 'this machine'}: the NVLink fabric is not set up. "
                "Start nvidia-fabricmanager of the driver's version, then measure.",
                ExitCode.INCONCLUSIVE,
            ) from error
        raise HarnessError(
            f"{found} (CUDA {torch.version.cuda}) cannot use it: {told}. "
            "Install a torch build for this driver, or measure the CPU with DEVICE=cpu.",
            ExitCode.INCONCLUSIVE,
        ) from error
    if importlib.util.find_spec("triton") is None:
        raise HarnessError(
            f"{found} has no triton, which the blocking kernel and the clock stamps need. "
            "Install the triton of this torch, or measure the CPU with DEVICE=cpu.",
            ExitCode.INCONCLUSIVE,
        )
    if torch.cuda.device_count() == 0:
        raise HarnessError(
            f"{found} sees no device (CUDA_VISIBLE_DEVICES={os.environ.get('CUDA_VISIBLE_DEVICES', 'unset')}).",
            ExitCode.INCONCLUSIVE,
        )


class CpuDevice:
    """The processor: torch runs for real, Triton through its interpreter and for correctness only."""

    timer = "perf_counter"

    def __init__(self) -> None:
        os.environ["TRITON_INTERPRET"] = "1"  # read when a kernel module is imported
        self.facts = DeviceFacts(
            kind="cpu",
            name=host.cpu_name(),
            torch_device="cpu",
            memory_bytes=host.memory_bytes(),
            free_bytes=host.memory_bytes(),
            triton="interpreted" if importlib.util.find_spec("triton") else "absent",
        )

    def synchronize(self) -> None:
        """Nothing to wait for: the CPU runs a launch before it returns."""

    def start(
        self,
        launch: Launch,
        group_s: float,
        pace: Pace | None = None,
        prologue: Prologue | None = None,
        rest_s: float = 0.0,
    ) -> Load:
        """Launches one after another on the host's clock; a CPU's burst is not asked for."""
        return CpuLoad(launch, group_s, pace, prologue)

    def time_shots(
        self, shot: Launch, shots: int, before: Launch | None, held: Fraction
    ) -> tuple[list[float], Telemetry]:
        """Single calls by the host's clock."""
        return time_shots(shot, shots, before, held, cpus_in_turn()), _cpu_telemetry()

    def among(self, gpus: Sequence[int]) -> Device:
        """A CPU is alone."""
        return self

    def flusher(self, size_bytes: int) -> Prologue:
        """Zeroing so much memory, at once."""
        return _zeroing(size_bytes, self.facts.torch_device)

    def release(self) -> None:
        """Free what no tensor uses any more."""
        gc.collect()

    def host_ruler(self) -> Ruler:
        """What the host's clock reads, as information."""
        from harness.probe.host_ruler import host_ruler

        return host_ruler()

    def is_usable(self) -> bool:
        """A CPU that got here still works."""
        return True


class CpuLoad:
    """Groups of launches timed by perf_counter, without power or clock."""

    def __init__(self, launch: Launch, group_s: float, pace: Pace | None, prologue: Prologue | None) -> None:
        self._launch = launch
        self._prologue = prologue
        self._position = 0
        self.pace = pace or self._choose_pace(group_s)

    def run_group(self) -> Group:
        """One group, now."""
        launches = self.pace.launches_per_group
        seconds = self._time(launches)
        # On a CPU a call returns when its work is done.
        host_s = seconds if self.pace.queue in ("loop", "eager") else None
        return Group(seconds, launches, time.monotonic(), host_s=host_s)

    def mark(self) -> None:
        """Nothing is watched on a CPU."""

    def finish(self) -> Telemetry:
        """What a CPU cannot tell, with the reason."""
        return _cpu_telemetry()

    def cut(self) -> Telemetry:
        """What a CPU cannot tell of a part either."""
        return _cpu_telemetry("temperature_start_c", "power_instant_w", "throttle_ratio", "event_ratio")

    def recent_power(self) -> list[tuple[float, float]]:
        """No power is read on a CPU."""
        return []

    def _choose_pace(self, group_s: float) -> Pace:
        seconds = min(self._time(1) for _ in range(2))
        return Pace("host", max(1, round(group_s / max(seconds, 1e-9))), seconds)

    def _time(self, launches: int) -> float:
        if self._prologue is not None:
            self._prologue()
        began_s = time.perf_counter()
        for i in range(self._position, self._position + launches):
            self._launch(i)
        self._position += launches
        return time.perf_counter() - began_s


def _zeroing(size_bytes: int, torch_device: str) -> Prologue:
    buffer = torch.empty(size_bytes // 4, dtype=torch.int32, device=torch_device)
    return buffer.zero_


def _cpu_telemetry(*further: str) -> Telemetry:
    reason = "not read on a CPU"
    return Telemetry(missing=dict.fromkeys(("power_w", "sm_clock_mhz", "nvml_sm_clock_mhz", *further), reason))


class CudaDevice:
    """An NVIDIA GPU through torch, matched to NVML by UUID."""

    timer = "cuda_event"

    def __init__(self, index: int, nvml: Nvml | None, numa: host.NumaBinding | None = None) -> None:
        from harness.probe.clocks import Stamper

        torch.cuda.set_device(index)
        properties = torch.cuda.get_device_properties(index)
        self.uuid = str(properties.uuid)
        self.nvml = nvml
        self.gpu = _find(nvml, self.uuid)
        # The process stays beside its own GPU, whichever others it uses.
        self.numa = numa or host.bind_to_gpu_node(self.gpu)
        self.facts = self._facts(index, properties)
        self.stamper = Stamper(properties.multi_processor_count)
        # For work with other GPUs. torch hands out 32 streams in turn: made next to the stamper's, it is another one.
        self.stream = torch.cuda.Stream()
        self.idle_power_w: float | None = None
        self.samples_rise_s: float | None = None
        self._rest: Rest | None = None
        self._opened = {index: self}

    def synchronize(self) -> None:
        """Wait for everything enqueued; a sticky error of the device surfaces here."""
        torch.cuda.synchronize()

    def start(
        self,
        launch: Launch,
        group_s: float,
        pace: Pace | None = None,
        prologue: Prologue | None = None,
        rest_s: float = 0.0,
    ) -> CudaLoad:
        """Launches queued ahead of the device, watched by NVML and stamped on every SM.

        With `rest_s` the device rests so long after its pace was found, and the load begins with a burst.
        """
        from harness.probe.timing import choose_pace

        pace = pace or choose_pace(launch, group_s)
        if rest_s:
            torch.cuda.synchronize()
            time.sleep(rest_s)
        return CudaLoad(self, launch, pace, prologue, self.stamper, has_burst=rest_s > 0)

    def time_shots(
        self, shot: Launch, shots: int, before: Launch | None, held: Fraction
    ) -> tuple[list[float], Telemetry]:
        """Single calls by the host's clock. NVML is read before the first and after the last, never between them."""
        from harness.probe.telemetry import Load as LoadFacts
        from harness.probe.telemetry import between_edges, nothing_watched, read_edge

        torch.cuda.synchronize()
        cpus = cpus_in_turn()
        if self.gpu is None:
            seconds = time_shots(shot, shots, before, held, cpus)
            return seconds, nothing_watched("NVML does not list this GPU", LoadFacts(0.0))
        first = read_edge(self.gpu)
        seconds = time_shots(shot, shots, before, held, cpus)
        return seconds, between_edges(first, read_edge(self.gpu), self.gpu.power_limit_w())

    def begin_rest(self) -> None:
        """Watch the card at rest while the host plans; `end_rest` tells what it drew."""
        from harness.probe.rest import Rest

        self._rest = Rest(self.gpu)

    def end_rest(self) -> dict[str, float | bool | str | None]:
        """The card's power at rest with the context open, over at least 1.5 s without a launch."""
        from harness.probe.rest import Rest

        told = (self._rest or Rest(self.gpu)).end()
        self._rest = None
        self.idle_power_w = told["power_w"] if isinstance(told["power_w"], float) else None
        return told

    def preheat(self, cap_s: float) -> dict[str, float | bool | str | None]:
        """Load the tensor cores until the temperature moves less than 0.5 °C in 10 s, at most `cap_s` seconds.

        The step from rest to full load also shows what the driver's power samples average over.
        """
        from harness.probe.preheat import preheat

        told = preheat(self, cap_s)
        rise_s = told.get("samples_rise_s")
        self.samples_rise_s = rise_s if isinstance(rise_s, float) else None
        return told

    def stay_cold(self, seconds: float) -> dict[str, float | bool | str | None]:
        """Leave the card at rest for so long where others pre-heat it; the ruler's rate takes that time."""
        time.sleep(seconds)
        return {}

    def ruler(self, flop_per_clock_per_sm: Mapping[str, int]) -> "RulerCheck":
        """The check of clock and timer; it reads the timer's rate from now until it is concluded."""
        from harness.probe.ruler import RulerCheck

        return RulerCheck(self, flop_per_clock_per_sm)

    def watch_cards(self) -> "Cards | None":
        """A watch on this card, and for cases between ranks on the other GPUs that CUDA sees; none without NVML."""
        from harness.probe.card_watch import Cards, CardWatch

        if self.nvml is None or self.gpu is None:
            return None
        others = {}
        for index in range(torch.cuda.device_count()):
            uuid = str(torch.cuda.get_device_properties(index).uuid)
            found = None if uuid == self.uuid else self.nvml.by_uuid(f"GPU-{uuid}")
            if found is not None:
                others[index] = CardWatch(self.nvml, found)
        return Cards(CardWatch(self.nvml, self.gpu), others)

    def among(self, gpus: Sequence[int]) -> Device:
        """Those GPUs of this process as one device. Each is opened at its first use and stays open."""
        from harness.probe.several import SeveralGpus

        for index in gpus:
            if index not in self._opened:
                with torch.cuda.device(index):
                    self._opened[index] = CudaDevice(index, self.nvml, self.numa)
        return SeveralGpus([self._opened[index] for index in gpus])

    def flusher(self, size_bytes: int) -> Prologue:
        """Zeroing so much device memory, on the current stream."""
        return _zeroing(size_bytes, self.facts.torch_device)

    def release(self) -> None:
        """Return cached blocks to the driver, so that the next case finds the memory free."""
        gc.collect()
        torch.cuda.empty_cache()

    def is_usable(self) -> bool:
        """Whether the context survived, on every GPU that was used; an illegal address ends it for this process."""
        try:
            for index in self._opened:
                torch.cuda.synchronize(index)
        except RuntimeError:
            return False
        return True

    def _facts(self, index: int, properties: Any) -> DeviceFacts:
        free_bytes, total_bytes = torch.cuda.mem_get_info(index)
        gpu = self.gpu
        bus_bits = gpu.query("GetMemoryBusWidth").value if gpu else getattr(properties, "memory_bus_width", None)
        return DeviceFacts(
            kind="cuda",
            name=properties.name,
            torch_device=f"cuda:{index}",
            gpu_count=torch.cuda.device_count(),
            compute_capability=(properties.major, properties.minor),
            sm_count=properties.multi_processor_count,
            memory_bytes=total_bytes,
            free_bytes=free_bytes,
            l2_bytes=properties.L2_cache_size or None,
            shared_memory_bytes=getattr(properties, "shared_memory_per_block_optin", None),
            max_sm_clock_mhz=gpu.max_clock_mhz(CLOCK_SM).value if gpu else None,
            memory_clock_mhz=gpu.max_clock_mhz(CLOCK_MEMORY).value if gpu else None,
            memory_bus_bits=bus_bits or None,
            triton="compiled" if importlib.util.find_spec("triton") else "absent",
            numa=self.numa.side,
            mig=" MIG " in properties.name,
        )


def _find(nvml: Nvml | None, uuid: str) -> Gpu | None:
    return None if nvml is None else nvml.by_uuid(f"GPU-{uuid}") or nvml.by_uuid(f"MIG-{uuid}")


def environment_of(device: Device) -> dict[str, Fact]:
    """The conditions of a run on that device; a scripted device brings its own."""
    own = getattr(device, "environment", None)
    if own is not None:
        return own()
    from harness.probe.environment import collect
    from harness.probe.pair_facts import pair_facts

    if isinstance(device, CudaDevice):
        missing = "" if device.gpu else "NVML does not list this GPU"
        seen = range(torch.cuda.device_count())
        gpus = [_find(device.nvml, str(torch.cuda.get_device_properties(index).uuid)) for index in seen]
        own_facts = collect(device.nvml, device.gpu, device.uuid, device.numa.note, missing, device.facts)
        return own_facts | pair_facts(gpus)
    return collect(None, None, None, "the CPU itself is measured", "no NVIDIA GPU was measured")
