"""The driver and torch: whether they fit each other and the GPU."""

import re

from harness import preflight
from harness.findings import Finding, GpuCheck, MachineCheck, Said, Unjudged, sentence
from harness.machine import Machine, SeenGpu

_ARCHITECTURE = re.compile(r"(sm|compute)_(\d+)(\d)([af]?)")
# CUDA 12.8 is the first for Blackwell; CUDA 13 has no code for anything before Turing (NVIDIA, CUDA release notes).
_BLACKWELL, _TURING = (10, 0), (7, 5)
# The least driver of each CUDA major version (NVIDIA, "CUDA Compatibility").
_LEAST_DRIVERS = {13: preflight.LEAST_DRIVER, 12: preflight.FALLBACK_LEAST_DRIVER}
_FABRIC_MISSING = ("802", "system not yet initialized")


def _driver(machine: Machine) -> Said:
    if machine.driver_problem:
        yield Finding(
            "blocker",
            "NVML refuses to start",
            sentence(machine.driver_problem),
            "Reload the kernel module or reboot; `nvidia-smi` must work first.",
        )
    elif machine.reason and machine.gpus:
        yield Finding(
            "key",
            "a GPU is here, and NVML does not answer",
            f"{sentence(machine.reason)} Watts, clocks and limits stay unknown.",
            "Give the container the driver's utilities: NVIDIA_DRIVER_CAPABILITIES=compute,utility.",
        )


def _torch(machine: Machine) -> Said:
    """Why torch cannot use the GPU; the first reason explains the others."""
    if not machine.gpus:
        return
    torch, fit = machine.torch, _fitting_build(machine)
    if not torch.version:
        problem = torch.problem or "this interpreter lacks torch"
        yield Finding("blocker", "no torch", sentence(problem), f"Install {fit}, or name another PYTHON=.")
        return
    if not torch.cuda:
        what = f"torch {torch.version} is built without CUDA"
        yield Finding("blocker", what, "It can use the CPU only.", f"Install {fit}.")
        return
    offered, built = _version(machine.facts.word("cuda_driver")), _version(torch.cuda)
    driver = machine.facts.word("driver") or "?"
    if offered is None or built is None:
        yield Unjudged("driver against torch's CUDA", machine.facts.why("cuda_driver"))
    elif offered[0] < built[0]:
        least = _LEAST_DRIVERS.get(built[0])
        yield Finding(
            "blocker",
            f"driver {driver} offers CUDA {_dotted(offered)}, torch {torch.version} is built for CUDA {torch.cuda}",
            "A driver runs CUDA of its own major version and older.",
            f"Upgrade the driver{f' to {least} or later' if least else ''}, or install {fit}.",
        )
        return
    elif offered < built:
        yield Finding(
            "note",
            f"driver {driver} offers CUDA {_dotted(offered)}, torch {torch.version} is built for CUDA {torch.cuda}",
            "Within one major version that works; what comes as PTX alone cannot be compiled.",
            "Upgrade the driver if a kernel is refused.",
        )
    if torch.problem:
        yield _refusal(machine)


def _refusal(machine: Machine) -> Finding:
    is_fabric = any(mark in machine.torch.problem for mark in _FABRIC_MISSING)
    return Finding(
        "blocker",
        f"torch {machine.torch.version} cannot use the GPU",
        sentence(machine.torch.problem),
        "Start nvidia-fabricmanager of the driver's version."
        if is_fabric
        else "Look at `nvidia-smi` and CUDA_VISIBLE_DEVICES; a GPU that hangs needs `nvidia-smi -r` or a reboot.",
    )


def _fitting_build(machine: Machine) -> str:
    """Which build of torch has code for these GPUs and runs on this driver."""
    capabilities = [gpu.capability for gpu in machine.gpus if gpu.capability]
    offered = _version(machine.facts.word("cuda_driver"))
    if any(capability >= _BLACKWELL for capability in capabilities):
        return "a torch build for CUDA 12.8 or later ('cu128', 'cu130'): the first for Blackwell"
    if any(capability < _TURING for capability in capabilities):
        return "a torch build for CUDA 12.6 ('cu126'): later ones have no code for GPUs before Turing"
    if offered is not None and offered[0] < 13:
        return f"a torch build for CUDA {offered[0]} ('{preflight.FALLBACK_BUILD}')"
    return f"a torch build for CUDA {preflight.PINNED_CUDA} ('cu{preflight.PINNED_CUDA.replace('.', '')}')"


def _version(text: str | None) -> tuple[int, int] | None:
    found = re.match(r"(\d+)\.(\d+)", text or "")
    return (int(found.group(1)), int(found.group(2))) if found else None


def _dotted(version: tuple[int, int]) -> str:
    return f"{version[0]}.{version[1]}"


def _architecture(gpu: SeenGpu, machine: Machine) -> Said:
    """Whether torch brings machine code for this GPU, or at least PTX that the driver can compile."""
    torch = machine.torch
    if not torch.cuda:
        return
    if gpu.capability is None or not torch.architectures:
        yield Unjudged("torch's code for this GPU", "compute capability or torch's list of architectures is unknown")
        return
    targets = [found.groups() for text in torch.architectures if (found := _ARCHITECTURE.fullmatch(text))]
    if any(_runs(kind, (int(major), int(minor)), suffix, gpu.capability) for kind, major, minor, suffix in targets):
        return
    what = (
        f"torch {torch.version} has code for {' '.join(torch.architectures)}, the GPU is sm_{_joined(gpu.capability)}"
    )
    has_ptx = any(
        kind == "compute" and not suffix and (int(major), int(minor)) <= gpu.capability
        for kind, major, minor, suffix in targets
    )
    if has_ptx:
        cause = (
            "The driver compiles its PTX at the first launch: the start is slow, and kernels are not the tuned ones."
        )
        yield Finding("key", what, cause, f"Install {_fitting_build(machine)}.")
    else:
        yield Finding("blocker", what, "No kernel of it can run here.", f"Install {_fitting_build(machine)}.")


def _runs(kind: str, target: tuple[int, int], suffix: str, capability: tuple[int, int]) -> bool:
    """Machine code runs on its own major version from its minor on; with an `a` on exactly its own."""
    if kind != "sm":
        return False
    return target == capability if suffix == "a" else target[0] == capability[0] and target[1] <= capability[1]


def _joined(capability: tuple[int, int]) -> str:
    return f"{capability[0]}{capability[1]}"


MACHINE_CHECKS: tuple[MachineCheck, ...] = (_driver, _torch)
GPU_CHECKS: tuple[GpuCheck, ...] = (_architecture,)
