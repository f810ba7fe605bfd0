"""What the doctor needs to see: facts of host and GPUs, who is on them, and each GPU under a short copy.

Nothing here sets anything. Without torch, or with one that cannot use the GPU, what NVML tells is still told.
"""

import importlib.util
import os
import sys
import time
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from harness.errors import HarnessError
from harness.model import DeviceFacts, Fact, to_plain
from harness.probe import identity
from harness.probe.card_facts import card_facts, card_of, count_others, driver_facts, event_names
from harness.probe.facts import first_line
from harness.probe.host_facts import host_facts
from harness.probe.link_facts import link_facts
from harness.probe.nvml import CLOCK_MEMORY, CLOCK_SM, Gpu, Nvml, gpus_that_answer, open_nvml

if TYPE_CHECKING:
    from types import ModuleType

_COPY_BYTES = 256 * 2**20
_COPIES_A_ROUND = 4
_LOAD_S = 1.0
# A link needs a moment to train up after the first byte.
_SETTLED_FROM = 0.5


def examine(load_s: float = _LOAD_S) -> dict[str, object]:
    """Everything, as JSON can hold it."""
    nvml, reason, driver_problem = _open()
    # Before this process has a context of its own on any GPU.
    tenants = _tenants(nvml)
    torch, seen = _torch()
    began_s = time.perf_counter()
    facts = host_facts() | (driver_facts(nvml) if nvml else {})
    facts_s = time.perf_counter() - began_s
    if torch is not None and not seen["problem"]:
        gpus = [_cuda_gpu(torch, index, nvml, tenants, load_s) for index in range(torch.cuda.device_count())]
    else:
        gpus = [] if driver_problem else _listed(nvml, tenants, str(seen["problem"]))
    return {
        "gpus": gpus,
        "facts": to_plain(facts),
        "torch": seen,
        "reason": reason,
        "driver_problem": driver_problem,
        "site_key_problem": _site_key_problem(),
        "facts_s": round(facts_s, 4),
    }


def _open() -> tuple[Nvml | None, str, str]:
    try:
        return *open_nvml(), ""
    except HarnessError as error:
        return None, "", str(error)


def _site_key_problem() -> str:
    try:
        identity.site_key()
    except HarnessError as error:
        return str(error)
    return ""


# torch.


def _torch() -> tuple["ModuleType | None", dict[str, object]]:
    """torch, and what it says of itself; `problem` is why it cannot use a GPU."""
    if importlib.util.find_spec("torch") is None:
        return None, {"problem": f"{sys.executable} lacks torch"}
    try:
        import torch
    except (ImportError, OSError) as error:
        return None, {"problem": f"torch cannot be loaded: {first_line(error)}"}
    flags = getattr(torch._C, "_cuda_getArchFlags", lambda: None)()  # its public call is silent without a driver
    return torch, {
        "version": str(torch.__version__),
        "cuda": torch.version.cuda or "",
        "architectures": flags.split() if flags else [],
        "problem": problem_of(torch),
    }


def problem_of(torch: Any) -> str:
    """Why torch cannot use a GPU here, in its own words; nothing if it can."""
    if torch.version.cuda is None:
        return f"torch {torch.__version__} is built without CUDA"
    try:
        torch.cuda.init()
    except (RuntimeError, AssertionError) as error:
        return first_line(error)
    shown = os.environ.get("CUDA_VISIBLE_DEVICES", "unset")
    return "" if torch.cuda.device_count() else f"torch sees no device (CUDA_VISIBLE_DEVICES={shown})"


# GPUs.


def _tenants(nvml: Nvml | None) -> dict[str, tuple[int, int | None] | None]:
    """Compute processes on each card and the MiB they hold, by UUID; `None` where NVML does not tell."""
    return {_uuid(gpu): tenants_of(gpu) for gpu in (gpus_that_answer(nvml)[0] if nvml else ())}


def tenants_of(gpu: Gpu) -> tuple[int, int | None] | None:
    """How many other processes compute or draw on a GPU, and the memory of those that compute."""
    computing = gpu.ask("GetComputeRunningProcesses").value
    if computing is None:
        return None
    drawing = gpu.ask("GetGraphicsRunningProcesses").value or ()
    sizes = [process.usedGpuMemory for process in computing if process.pid != os.getpid()]
    count = count_others(computing) + count_others(p for p in drawing if p.pid not in {c.pid for c in computing})
    return count, (None if None in sizes else sum(sizes) // 2**20)


def _uuid(gpu: Gpu) -> str:
    value = gpu.ask("GetUUID").value
    return value.decode() if isinstance(value, bytes) else str(value)


def _listed(nvml: Nvml | None, tenants: Mapping[str, Any], problem: str) -> list[dict[str, object]]:
    """The GPUs as NVML lists them, where torch cannot use them; device nodes alone where NVML is missing."""
    if nvml is None:
        nodes = sorted(Path("/dev").glob("nvidia[0-9]*"))
        return [_told("an NVIDIA device", ({}, 0.0), None, None, {"missing": problem}) for _ in nodes]
    gpus = []
    for gpu in gpus_that_answer(nvml)[0]:
        name = gpu.ask("GetName").value
        capability = gpu.ask("GetCudaComputeCapability").value
        timed = _timed_facts(nvml, gpu, None)
        gpus.append(_told(_text(name), timed, capability, tenants.get(_uuid(gpu)), {"missing": problem}))
    return gpus


def _cuda_gpu(
    torch: Any, index: int, nvml: Nvml | None, tenants: Mapping[str, Any], load_s: float
) -> dict[str, object]:
    properties = torch.cuda.get_device_properties(index)
    uuid = str(properties.uuid)
    gpu = (nvml.by_uuid(f"GPU-{uuid}") or nvml.by_uuid(f"MIG-{uuid}")) if nvml else None
    device = DeviceFacts(
        kind="cuda",
        name=properties.name,
        torch_device=f"cuda:{index}",
        compute_capability=(properties.major, properties.minor),
        sm_count=properties.multi_processor_count,
        l2_bytes=properties.L2_cache_size or None,
        mig=" MIG " in properties.name,
    )
    timed = _timed_facts(nvml, gpu, device) if nvml and gpu else ({}, 0.0)
    own = tenants.get(_uuid(gpu)) or tenants_of(gpu) if gpu else None
    load = copy_load(torch, device.torch_device, gpu.board() if gpu else None, load_s)
    return _told(device.name, timed, device.compute_capability, own, load)


def _timed_facts(nvml: Nvml, gpu: Gpu, device: DeviceFacts | None) -> tuple[dict[str, Fact], float]:
    """One GPU's facts, and how long they took: every run starts with them."""
    began_s = time.perf_counter()
    card = card_of(gpu, device)
    return card_facts(card, device) | link_facts(card, nvml), time.perf_counter() - began_s


def _told(
    name: str,
    timed: tuple[Mapping[str, Fact], float],
    capability: tuple[int, int] | None,
    tenants: tuple[int, int | None] | None,
    load: Mapping[str, object],
) -> dict[str, object]:
    return {
        "name": name,
        "compute_capability": None if capability is None else list(capability),
        "facts": to_plain(timed[0]),
        "facts_s": round(timed[1], 4),
        "processes": None if tenants is None else tenants[0],
        "processes_mib": None if tenants is None else tenants[1],
        "load": dict(load),
    }


def _text(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)


# The load.


def copy_load(torch: Any, device: str, board: Gpu | None, load_s: float) -> dict[str, object]:
    """Copy pinned memory to the GPU for a while and read link, clock and events meanwhile.

    At rest a link is trained down and the clock is low, so that neither tells anything.
    """
    if board is None:
        return {"missing": "NVML does not list this GPU"}
    try:
        source = torch.empty(_COPY_BYTES, dtype=torch.uint8, pin_memory=True)
        target = torch.empty(_COPY_BYTES, dtype=torch.uint8, device=device)
        torch.cuda.synchronize(device)
        samples, copies = [], 0
        began_s = time.perf_counter()
        while (elapsed_s := time.perf_counter() - began_s) < load_s:
            for _ in range(_COPIES_A_ROUND):
                target.copy_(source, non_blocking=True)
            samples.append((elapsed_s, _sample(board)))
            torch.cuda.synchronize(device)
            copies += _COPIES_A_ROUND
        elapsed_s = time.perf_counter() - began_s
    except RuntimeError as error:
        return {"missing": f"the copy failed: {first_line(error)}"}
    settled = [sample for at_s, sample in samples if at_s >= _SETTLED_FROM * load_s]
    return summarise(settled) | {"copy_bytes_per_s": copies * _COPY_BYTES / elapsed_s}


def _sample(board: Gpu) -> dict[str, Any]:
    return {
        "pcie_generation": board.ask("GetCurrPcieLinkGeneration").value,
        "pcie_lanes": board.ask("GetCurrPcieLinkWidth").value,
        "sm_clock_mhz": board.clock_mhz(CLOCK_SM).value,
        "memory_clock_mhz": board.clock_mhz(CLOCK_MEMORY).value,
        "events": board.event_reasons().value,
    }


def summarise(samples: list[dict[str, Any]]) -> dict[str, object]:
    """The link as it was most of the time, the clock's range, and every event that was seen."""

    def known(name: str) -> list[Any]:
        return [sample[name] for sample in samples if sample[name] is not None]

    links = Counter(zip(known("pcie_generation"), known("pcie_lanes"), strict=False)).most_common(1)
    generation, lanes = links[0][0] if links else (None, None)
    clocks, events = known("sm_clock_mhz"), 0
    for bits in known("events"):
        events |= bits
    return {
        "pcie_generation": generation,
        "pcie_lanes": lanes,
        "sm_clock_least_mhz": min(clocks, default=None),
        "sm_clock_most_mhz": max(clocks, default=None),
        "memory_clock_mhz": max(known("memory_clock_mhz"), default=None),
        "events": event_names(events).split(", "),
    }
