"""Who else is on the GPU, and the modes that decide who may be."""

from harness.findings import Finding, GpuCheck, Said, Unjudged, number_of, on_or_off
from harness.machine import Machine, SeenGpu

# nvmlComputeMode_t.
_EXCLUSIVE_THREAD, _PROHIBITED, _EXCLUSIVE_PROCESS = 1, 2, 3


def _processes(gpu: SeenGpu, machine: Machine) -> Said:
    count = gpu.processes if gpu.processes is not None else gpu.facts.number("other_processes")
    if count is None:
        yield Unjudged("other processes", gpu.facts.why("other_processes"))
    elif count:
        memory = f" and {gpu.processes_mib:.0f} MiB of its memory" if gpu.processes_mib is not None else ""
        yield Finding(
            "blocker",
            f"{number_of(count, 'other process', 'es')} on the GPU{memory}, none may be",
            "They share its SMs, its memory's bandwidth and its power with what is measured.",
            "End them or wait; `nvidia-smi` lists them.",
        )


def _mig(gpu: SeenGpu, machine: Machine) -> Said:
    now, later = gpu.facts.flag("mig"), gpu.facts.flag("mig_after_reset")
    if now is None:
        yield Unjudged("MIG", gpu.facts.why("mig"))
    elif later is not None and now != later:
        yield Finding(
            "blocker",
            f"MIG is {on_or_off(now)} and will be {on_or_off(later)} after a reset",
            "The next reset changes the card.",
            f"Reset now (`nvidia-smi -r`), or set it back (`nvidia-smi -mig {int(now)}`).",
        )
    is_slice = "mig_compute_slices" in gpu.facts.by_name
    if is_slice:
        profile = gpu.facts.word("mig_profile") or "of unknown profile"
        yield Finding(
            "key",
            f"a MIG slice ({profile}), not the card",
            "Its siblings share the card's power, clock and temperature; watts are the whole card's.",
            "Compare with the same profile only, with idle siblings.",
        )
        siblings = gpu.facts.number("mig_sibling_processes")
        if siblings is None:
            yield Unjudged("load on sibling slices", gpu.facts.why("mig_sibling_processes"))
        elif siblings:
            yield Finding(
                "blocker",
                f"{number_of(siblings, 'process', 'es')} on sibling slices, none may be",
                "They draw from the one power limit, and the clock is the whole card's.",
                "End them or wait.",
            )
    elif now:
        yield Finding(
            "key",
            "MIG is on",
            "In this mode the card is divided, even if one slice has it all.",
            "`nvidia-smi -mig 0` as root, to measure the card.",
        )


def _compute_mode(gpu: SeenGpu, machine: Machine) -> Said:
    mode = gpu.facts.number("compute_mode")
    if mode is None:
        yield Unjudged("compute mode", gpu.facts.why("compute_mode"))
    elif mode == _PROHIBITED:
        yield Finding(
            "blocker",
            "compute mode is prohibited",
            "No process may use the GPU.",
            "`nvidia-smi -c 0` as root.",
        )
    elif mode in (_EXCLUSIVE_THREAD, _EXCLUSIVE_PROCESS):
        yield Finding(
            "note",
            "compute mode is exclusive",
            "One process at a time: a worker that is started while another still ends is refused.",
            "`nvidia-smi -c 0` as root, if a run fails to start.",
        )


def _persistence(gpu: SeenGpu, machine: Machine) -> Said:
    is_on = gpu.facts.flag("persistence")
    if is_on is None:
        yield Unjudged("persistence mode", gpu.facts.why("persistence"))
    elif not is_on:
        yield Finding(
            "note",
            "persistence mode is off",
            "The driver leaves the card between processes: starts are slow, and settings and counters are lost.",
            "Enable nvidia-persistenced, or `nvidia-smi -pm 1` as root.",
        )


GPU_CHECKS: tuple[GpuCheck, ...] = (_processes, _mig, _compute_mode, _persistence)
