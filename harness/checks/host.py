"""The host: limits of a container, tools that poll, virtualization, the other GPUs."""

from harness.findings import Finding, MachineCheck, Said, Unjudged, number_of, sentence
from harness.machine import Machine

# Docker's default. NVIDIA's images ask for more in their banner: `--ipc=host --ulimit memlock=-1`.
_DOCKER_SHM_MIB = 64
_ENOUGH_MIB = 1024


def _site_key(machine: Machine) -> Said:
    if machine.site_key_problem:
        yield Finding(
            "blocker",
            "no place for the site's key",
            sentence(machine.site_key_problem),
            "Set OFPEAK_SITE_KEY to a secret of your site.",
        )


def _shared_memory(machine: Machine) -> Said:
    size_mib = machine.facts.number("shm_mib")
    is_multi = len(machine.gpus) > 1
    if size_mib is None:
        yield Unjudged("/dev/shm", machine.facts.why("shm_mib"))
    elif size_mib <= _DOCKER_SHM_MIB or (is_multi and size_mib < _ENOUGH_MIB):
        yield Finding(
            "blocker" if is_multi and size_mib <= _DOCKER_SHM_MIB else "note",
            f"/dev/shm holds {size_mib:.0f} MiB, collectives want {_ENOUGH_MIB} MiB",
            "Docker gives 64 MiB unless told; NCCL's ranks exchange buffers there and fail without room.",
            "Start the container with --ipc=host or --shm-size=1g.",
        )


def _memlock(machine: Machine) -> Said:
    if machine.facts.word("memlock_mib") == "unlimited":
        return
    limit_mib = machine.facts.number("memlock_mib")
    if limit_mib is None:
        yield Unjudged("memlock limit", machine.facts.why("memlock_mib"))
    elif limit_mib < _ENOUGH_MIB:
        yield Finding(
            "note",
            f"memlock limit {limit_mib:g} MiB, NVIDIA's images ask for none",
            "Registering memory for RDMA is bound by it; copies within a host are not.",
            "Start the container with --ulimit memlock=-1, or raise it in limits.conf.",
        )


def _exporters(machine: Machine) -> Said:
    seen = machine.facts.word("exporters")
    if seen is None:
        yield Unjudged("tools that poll the GPU", machine.facts.why("exporters"))
    elif seen != "none seen":
        yield Finding(
            "key",
            f"polling the GPU meanwhile: {seen}",
            "Each poll takes the driver's locks and wakes the card; idle power and short cases show it.",
            "Stop them for the run (`systemctl stop nvidia-dcgm`), or keep them in every run that is compared.",
        )
    container = machine.facts.word("container")
    if container not in (None, "none seen"):
        yield Unjudged("tools that poll from outside", f"the container ({container}) hides the host's processes")


def _virtualization(machine: Machine) -> Said:
    kind = next((word for gpu in machine.gpus if (word := gpu.facts.word("virtualization"))), None)
    has_hypervisor = machine.facts.flag("hypervisor")
    if kind in (None, "none") and has_hypervisor:
        kind = "hypervisor"
    if kind is None and has_hypervisor is None:
        yield Unjudged("virtualization", "neither NVML nor the processor tells")
    elif kind not in (None, "none"):
        how = {"passthrough": "passed through to a virtual machine", "hypervisor": "seen from a virtual machine"}
        yield Finding(
            "note",
            f"virtualization: {kind}",
            f"The GPU is {how.get(str(kind), f'shared by {kind}')}: host copies, launches and what NVML tells may "
            "differ from bare metal.",
            "Compare with runs of the same kind of machine.",
        )


def _confidential(machine: Machine) -> Said:
    if not machine.gpus:
        return
    is_on = machine.facts.flag("confidential_computing")
    if is_on is None:
        yield Unjudged("confidential computing", machine.facts.why("confidential_computing"))
    elif is_on:
        yield Finding(
            "key",
            "confidential computing is on",
            "Host copies are encrypted through bounce buffers and launches cost more.",
            "Compare with runs in the same mode only.",
        )


def _lost(machine: Machine) -> Said:
    lost = max((gpu.facts.number("gpus_lost") or 0 for gpu in machine.gpus), default=0)
    if lost:
        why = next((fact.status for gpu in machine.gpus if (fact := gpu.facts.by_name.get("gpus_lost"))), "")
        yield Finding(
            "key",
            f"{number_of(lost, 'GPU')} of this host without an answer",
            sentence(why),
            "Look for Xid in `dmesg`; reset it (`nvidia-smi -r`) or reboot before collectives are measured.",
        )


def _neighbours(machine: Machine) -> Said:
    if not machine.gpus:
        return
    facts = machine.gpus[0].facts
    others = facts.number("neighbours")
    if others == 0:
        return
    busy, most_w = facts.number("neighbours_busy"), facts.number("neighbours_power_most_w")
    if others is None or busy is None:
        why = facts.why("neighbours") if others is None else facts.why("neighbours_busy")
        yield Unjudged("neighbouring GPUs", why)
    elif busy:
        yield Finding(
            "note",
            f"{busy:.0f} of {number_of(others, 'neighbouring GPU')} at work, drawing up to {most_w or 0:.0f} W",
            "They share cooling, the power of the chassis, PCIe and the host's memory with what is measured.",
            "Wait for them, or note them beside the figures.",
        )


MACHINE_CHECKS: tuple[MachineCheck, ...] = (
    _site_key,
    _shared_memory,
    _memlock,
    _exporters,
    _virtualization,
    _confidential,
    _lost,
    _neighbours,
)
