"""PCIe, NUMA, NVLink and the NVSwitch fabric."""

from harness.findings import Finding, GpuCheck, Level, Said, Unjudged, number_of
from harness.machine import Machine, SeenGpu


def _pcie(gpu: SeenGpu, machine: Machine) -> Said:
    load, facts = gpu.load, gpu.facts
    generation, lanes = facts.number("pcie_generation_max"), facts.number("pcie_lanes_max")
    card_generation = facts.number("pcie_generation_gpu")
    if load.pcie_generation is None or load.pcie_lanes is None or generation is None or lanes is None:
        is_max_unknown = generation is None or lanes is None
        why = facts.why("pcie_generation_max", "pcie_lanes_max") if is_max_unknown else load.missing or "not read"
        yield Unjudged("PCIe link under load", why)
    elif load.pcie_generation < generation or load.pcie_lanes < lanes:
        replays = facts.number("pcie_replays")
        counted = f" {number_of(replays, 'replay')} so far." if replays is not None else ""
        yield Finding(
            "key",
            f"PCIe link gen{load.pcie_generation} x{load.pcie_lanes} under load, "
            f"gen{generation:.0f} x{lanes:.0f} possible",
            f"A riser, a cable, the slot or errors train it down; host copies are bound by it.{counted}",
            "Reseat the card or its riser; look at the slot's settings in the BIOS and at `lspci -vv`.",
        )
    if generation is not None and card_generation is not None and generation < card_generation:
        yield Finding(
            "note",
            f"PCIe gen{generation:.0f} is the most that this host gives, the card could do gen{card_generation:.0f}",
            "The slot or the virtual machine is of an older generation.",
            "Nothing on this host; compare host copies with the same generation.",
        )


def _numa(gpu: SeenGpu, machine: Machine) -> Said:
    nodes = machine.facts.number("numa_nodes")
    beside, allowed = gpu.facts.number("gpu_cpus"), gpu.facts.number("gpu_cpus_allowed")
    if nodes == 1:
        return
    if nodes is None or beside is None or allowed is None:
        why = machine.facts.why("numa_nodes") if nodes is None else gpu.facts.why("gpu_cpus", "gpu_cpus_allowed")
        yield Unjudged("NUMA node of the GPU", why)
    elif not allowed:
        cpuset = machine.facts.word("cpuset") or "?"
        node = gpu.facts.number("gpu_numa_node")
        where = f" (node {node:.0f})" if node is not None else ""
        yield Finding(
            "key",
            f"this process may use 0 of the {beside:.0f} CPUs beside the GPU{where}; its cpuset is {cpuset}",
            "Copies and launches cross the link between sockets.",
            "Ask the scheduler for CPUs on the GPU's node (`srun --gpu-bind=closest`, `docker --cpuset-cpus`).",
        )


def _nvlink(gpu: SeenGpu, machine: Machine) -> Said:
    links, up = gpu.facts.number("nvlink_links"), gpu.facts.number("nvlink_active")
    if links == 0:
        return
    if links is None or up is None:
        yield Unjudged("NVLink", gpu.facts.why("nvlink_links", "nvlink_active"))
        return
    if up < links:
        yield Finding(
            "blocker" if len(machine.gpus) > 1 else "key",
            f"{up:.0f} of {links:.0f} NVLinks are up",
            "Traffic between GPUs has less bandwidth, or goes over PCIe.",
            "Look at `nvidia-smi nvlink -s` and the fabric manager; reset or reseat the GPU.",
        )
    counters = {
        words: count
        for name, words in (
            ("nvlink_replays", "replay"),
            ("nvlink_recoveries", "recovery"),
            ("nvlink_crc_errors", "CRC error"),
        )
        if (count := gpu.facts.number(name))
    }
    if counters:
        shown = ", ".join(f"{count:.0f} × {words}" for words, count in counters.items())
        yield Finding(
            "key",
            f"NVLink errors: {shown} since the driver was loaded, none is usual",
            "A link repeats what it sent; bandwidth is lost while it does.",
            "Look at `nvidia-smi nvlink -e` and `dmesg`; if they grow under load, reseat or replace.",
        )


def _fabric_level(gpu: SeenGpu, machine: Machine) -> Level:
    """One GPU works without the fabric; several do where each still reaches all others over NVLink."""
    if len(machine.gpus) < 2:
        return "note"
    others, reached = gpu.facts.number("neighbours"), gpu.facts.number("peers_over_nvlink")
    return "key" if others and others == reached else "blocker"


def _fabric(gpu: SeenGpu, machine: Machine) -> Said:
    state, health = gpu.facts.word("fabric_state"), gpu.facts.word("fabric_health")
    level = _fabric_level(gpu, machine)
    if state is None:
        yield Unjudged("NVSwitch fabric", gpu.facts.why("fabric_state"))
        return
    if state == "not supported":
        return
    if state != "completed":
        runs = machine.facts.word("fabric_manager") or "not seen"
        yield Finding(
            level,
            f"the NVSwitch fabric is '{state}', it must be 'completed'",
            f"The fabric manager has not set up this GPU's links (here: {runs}).",
            "Start nvidia-fabricmanager of exactly the driver's version (in a virtual machine: on its host).",
        )
    elif health not in (None, "healthy"):
        yield Finding(
            level if "incorrect" in str(health) else "key",
            f"the NVSwitch fabric is not healthy: {health}",
            "Links or routes are missing or recovering; collectives are slower than the fabric promises.",
            "Look at the fabric manager's log and at `nvidia-smi -q` under 'Fabric'.",
        )
    installed, driver = machine.facts.word("fabric_manager_version"), machine.facts.word("driver")
    if installed and driver and installed != driver:
        yield Finding(
            level,
            f"fabric manager {installed}, driver {driver}",
            "They work together in equal versions only.",
            "Install the fabric manager of the driver's version.",
        )


GPU_CHECKS: tuple[GpuCheck, ...] = (_pcie, _numa, _nvlink, _fabric)
