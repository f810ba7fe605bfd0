"""`python -m harness.probe VERB`: what only the machine can tell, as one line of JSON for the verbs that render it."""

import importlib.util
import json
import os
import sys
from typing import TYPE_CHECKING

from harness.errors import ExitCode, HarnessError
from harness.probe.nvml import FIELD_NVLINK_LINKS, Gpu, open_nvml

if TYPE_CHECKING:
    from harness.probe.device import CudaDevice


def devices() -> dict[str, object]:
    """The GPUs that NVML lists, without loading torch: names, driver, and the reason where there is none."""
    nvml, reason = open_nvml()
    if nvml is None:
        return {"gpus": [], "driver": None, "reason": reason}
    names = [str(gpu.query("GetName").value) for gpu in nvml.gpus()]
    shown = visible_count(len(names), os.environ.get("CUDA_VISIBLE_DEVICES"))
    return {"gpus": names[:shown], "driver": nvml.system("GetDriverVersion").value, "reason": reason}


def visible_count(installed: int, visible: str | None) -> int:
    """How many of the installed GPUs CUDA shows; an index below zero hides itself and all behind it."""
    if visible is None:
        return installed
    shown = 0
    for entry in visible.split(","):
        if not entry.strip() or entry.strip().startswith("-"):
            break
        shown += 1
    return min(installed, shown)


def whoami() -> dict[str, object]:
    """The hashes by which run files name this site's cards, beside NVML's UUIDs: for the operator's eyes only."""
    from harness.probe import identity

    key = identity.site_key()
    nvml, reason = open_nvml()
    cards = []
    for gpu in nvml.gpus() if nvml else ():
        uuid = str(gpu.query("GetUUID").value).removeprefix("GPU-")
        cards.append({"name": gpu.query("GetName").value, "uuid": uuid, "card": identity.card_hash(key, uuid)})
    label = os.environ.get(identity.LABEL_VARIABLE)
    return {"site_key": identity.site_key_hash(key), "label": label, "cards": cards, "reason": reason}


def facts() -> dict[str, object]:
    """What every GPU that CUDA sees says of itself: DeviceFacts, and NVML's figures that a data sheet has too."""
    if importlib.util.find_spec("torch") is None:
        nvml, reason = open_nvml()
        if nvml is None:
            return {"gpus": [], "reason": reason}
        raise HarnessError(f"{sys.executable} lacks torch, which reads a GPU's facts.", ExitCode.INCONCLUSIVE)
    from harness.probe.device import CudaDevice, discover

    first = discover()
    if not isinstance(first, CudaDevice):
        return {"gpus": [], "reason": open_nvml()[1]}
    others = [discover(index=index) for index in range(1, first.facts.gpu_count)]
    return {"gpus": [_facts_of(device) for device in (first, *others) if isinstance(device, CudaDevice)], "reason": ""}


def _facts_of(device: "CudaDevice") -> dict[str, object]:
    from harness.model import to_plain

    driver = device.nvml.system("GetDriverVersion").value if device.nvml else None
    return {"facts": to_plain(device.facts), "nvml": told(device.gpu) if device.gpu else {}, "driver": driver}


def told(gpu: Gpu) -> dict[str, object]:
    """What NVML says beyond DeviceFacts and a data sheet has too; `None` where it does not say."""
    memory = gpu.query("GetMemoryInfo").value
    limits_mw = gpu.query("GetPowerManagementLimitConstraints").value
    return {
        "memory_mib": memory and memory.total // 2**20,
        "power_limit_w": gpu.power_limit_w().value,
        "power_limit_most_w": limits_mw and limits_mw[1] / 1000,
        "pcie_generation_max": gpu.query("GetMaxPcieLinkGeneration").value,
        "pcie_lanes_max": gpu.query("GetMaxPcieLinkWidth").value,
        "nvlink_links": gpu.fields([FIELD_NVLINK_LINKS])[FIELD_NVLINK_LINKS].value,
    }


def selfcheck() -> dict[str, object]:
    """What the instrument finds when it checks itself; OFPEAK_GPU chooses the card."""
    from harness.model import to_plain
    from harness.probe.selfcheck import selfcheck as check

    plain: dict[str, object] = to_plain(check(int(os.environ.get("OFPEAK_GPU", "0"))))
    return plain


def witness() -> dict[str, object]:
    """The resident loop by its own counters, to hold a profiler's against."""
    from harness.probe.selfcheck import witness as run

    return run()


def doctor() -> dict[str, object]:
    """What the doctor judges: facts, tenants, torch's build, and each GPU under a copy of about a second."""
    from harness.probe.examination import examine

    return examine()


def peak() -> dict[str, object]:
    """The best shape of a GEMM; OFPEAK_PEAK holds what is asked, as JSON."""
    from harness.model import to_plain
    from harness.probe.peak import peak as search
    from harness.probe.peak import read_asked

    plain: dict[str, object] = to_plain(search(read_asked(os.environ.get("OFPEAK_PEAK", ""))))
    return plain


def tell_end() -> dict[str, object]:
    """Let the servers that torchrun started leave: the run is over."""
    from harness.probe.meeting import Meeting, MeetingError
    from harness.torchrun import place_of

    place = place_of(os.environ)
    if place is None:
        raise HarnessError("torchrun did not start this.")
    try:
        Meeting(place).tell_end()
    except MeetingError as error:
        raise HarnessError(str(error)) from error
    return {}


VERBS = {
    "devices": devices,
    "doctor": doctor,
    "facts": facts,
    "peak": peak,
    "selfcheck": selfcheck,
    "tell_end": tell_end,
    "whoami": whoami,
    "witness": witness,
}


def main(arguments: list[str]) -> int:
    """Print the verb's answer, or its error, as JSON on standard output."""
    if len(arguments) != 1 or arguments[0] not in VERBS:
        sys.stderr.write(f"usage: python -m harness.probe {'|'.join(VERBS)}\n")
        return ExitCode.USAGE
    try:
        answer: dict[str, object] = VERBS[arguments[0]]()
    except HarnessError as error:
        answer = {"error": str(error), "exit_code": int(error.exit_code)}
    sys.stdout.write(json.dumps(answer) + "\n")
    return ExitCode.DONE


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
