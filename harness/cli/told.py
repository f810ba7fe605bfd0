"""The probe's answer about this machine's GPUs, read with suspicion: it is another process's output."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from harness.asking import read_answer, refuse_answer
from harness.errors import ExitCode, HarnessError
from harness.model import DeviceFacts

# NVML gives at most 96 characters.
_LONGEST_NAME = 200


@dataclass(frozen=True)
class Told:
    """What one GPU says of itself: the facts that peaks depend on, and what NVML tells beside them."""

    facts: DeviceFacts
    nvml: Mapping[str, float]
    driver: str


def read_devices(answer: str) -> list[Told]:
    """Every GPU in the probe's answer, at least one; zero and nonsense count as unknown, other shapes are refused."""
    data = read_answer(answer, "facts")
    gpus = data.get("gpus")
    if not isinstance(gpus, list) or not all(isinstance(gpu, dict) for gpu in gpus):
        refuse_answer("facts", "it lists no GPUs")
    if not gpus:
        reason = data.get("reason")
        why = f": {reason}" if isinstance(reason, str) and reason else ""
        raise HarnessError(f"no NVIDIA GPU here{why}. Nothing to hold against a data sheet.", ExitCode.INCONCLUSIVE)
    return [_told(gpu) for gpu in gpus]


def _told(gpu: Mapping[str, Any]) -> Told:
    facts, nvml, driver = gpu.get("facts"), gpu.get("nvml"), gpu.get("driver")
    if not isinstance(facts, dict) or not isinstance(facts.get("name"), str) or not facts["name"].strip():
        refuse_answer("facts", "a GPU has no name")
    return Told(
        facts=DeviceFacts(
            kind="cuda",
            name=facts["name"][:_LONGEST_NAME],
            torch_device="cuda",
            compute_capability=_capability(facts.get("compute_capability")),
            sm_count=_whole(facts.get("sm_count")),
            memory_bytes=_whole(facts.get("memory_bytes")),
            l2_bytes=_whole(facts.get("l2_bytes")),
            max_sm_clock_mhz=_positive(facts.get("max_sm_clock_mhz")),
            memory_clock_mhz=_positive(facts.get("memory_clock_mhz")),
            memory_bus_bits=_whole(facts.get("memory_bus_bits")),
            mig=facts.get("mig") is True,
        ),
        nvml={
            str(key): number
            for key, value in (nvml.items() if isinstance(nvml, dict) else ())
            if (number := _positive(value)) is not None
        },
        driver=driver if isinstance(driver, str) else "",
    )


def _positive(value: Any) -> float | None:
    """A number that can be a quantity; anything else is unknown."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    # Beyond 2**60 a JSON number is no quantity of a GPU, and may not fit a float.
    return float(value) if is_number and 0 < value < 2**60 and math.isfinite(value) else None


def _whole(value: Any) -> int | None:
    number = _positive(value)
    return int(number) if number is not None and number >= 1 else None


def _capability(value: Any) -> tuple[int, int] | None:
    is_pair = isinstance(value, list) and len(value) == 2 and all(type(part) is int for part in value)
    return (value[0], value[1]) if is_pair else None
