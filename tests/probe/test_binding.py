"""The real nvidia-ml-py over a library of our own: the arguments fit its calls, and its structures are filled."""

from typing import Any

import pytest

from harness.probe.card_facts import card_facts, card_of, driver_facts
from harness.probe.link_facts import link_facts
from harness.probe.nvml import open_nvml

pynvml = pytest.importorskip("pynvml")

NOT_SUPPORTED = 3


class Library:
    """libnvidia-ml as ctypes would show it: some calls write through their last pointers, all others refuse."""

    def __init__(self, **writes: Any) -> None:
        self._writes = {
            "nvmlDeviceGetCount_v2": lambda count: self._set(count, 1),
            "nvmlDeviceGetHandleByIndex_v2": lambda index, handle: None,
            **writes,
        }
        self.asked: set[str] = set()

    @staticmethod
    def _set(pointer: Any, value: int) -> None:
        pointer._obj.value = value

    def __getattr__(self, name: str) -> Any:
        def call(*arguments: Any) -> int:
            self.asked.add(name)
            if name in ("nvmlInitWithFlags", "nvmlInit_v2"):
                return 0
            if name not in self._writes:
                return NOT_SUPPORTED
            self._writes[name](*arguments)
            return 0

        return call


def write(**fields: int) -> Any:
    """A call that writes these fields into the structure behind its last pointer."""

    def fill(*arguments: Any) -> None:
        structure = arguments[-1]._obj
        for name, value in fields.items():
            setattr(structure, name, value)

    return fill


@pytest.fixture
def facts_over(monkeypatch: pytest.MonkeyPatch):
    """Every fact of the driver, the card and its links over a library."""

    def read(library: Library):
        monkeypatch.setattr(pynvml, "nvmlLib", library)
        monkeypatch.setattr(pynvml, "_nvmlGetFunctionPointer_cache", {})
        monkeypatch.setattr(pynvml, "_nvmlLib_refcount", 1)
        nvml, reason = open_nvml(pynvml)
        assert reason == ""
        card = card_of(next(nvml.gpus()))
        return {**driver_facts(nvml), **card_facts(card), **link_facts(card, nvml)}

    return read


def test_every_call_is_one_that_the_binding_takes(facts_over):
    library = Library()
    told = facts_over(library)
    assert [f"{name}: {fact.status}" for name, fact in told.items() if "cannot call" in fact.status] == []
    known = {name: fact for name, fact in told.items() if fact.value is not None}
    assert set(known) <= {"gpus_lost", "kernel_module"}
    assert len(library.asked) > 60


def test_structures_of_the_binding_are_filled(facts_over):
    def power_profiles(handle: Any, pointer: Any) -> None:
        pointer._obj.enforcedProfilesMask.mask[1] = 0b101

    told = facts_over(
        Library(
            nvmlDeviceGetGpuFabricInfoV=write(state=3, status=0, healthMask=0b10),
            nvmlDeviceGetClockOffsets=write(clockOffsetMHz=15),
            nvmlDeviceGetSramEccErrorStatus=write(volatileUncParity=1, volatileUncSecDed=2, bThresholdExceeded=1),
            nvmlSystemGetConfComputeSettings=write(multiGpuMode=1),
            nvmlSystemGetConfComputeState=write(ccFeature=1),
            nvmlDeviceWorkloadPowerProfileGetCurrentProfiles=power_profiles,
            nvmlDeviceGetRowRemapperHistogram=write(max=640, high=1),
        )
    )
    expected = {
        "fabric_state": "completed",
        "fabric_health": "healthy",
        "sm_clock_offset_mhz": 15,
        "sram_uncorrected": 3,
        "sram_threshold_exceeded": True,
        "confidential_multi_gpu": "protected PCIe",
        "confidential_computing": True,
        "workload_power_profiles": "32 34",
        "spare_rows": "banks with all 640, many 1, some 0, few 0, none 0",
    }
    assert {name: told[name].value for name in expected} == expected


def test_fields_are_asked_with_their_links(facts_over):
    def values(handle: Any, count: Any, pointer: Any) -> None:
        for entry in pointer._obj:
            entry.nvmlReturn = 0
            entry.valueType = 1  # unsigned int
            entry.value.uiVal = 2 if entry.fieldId == 91 else 10 + entry.scopeId

    told = facts_over(
        Library(
            nvmlDeviceGetFieldValues=values,
            nvmlDeviceGetNvLinkState=lambda handle, link, state: Library._set(state, 1),
            nvmlDeviceGetNvLinkVersion=lambda handle, link, version: Library._set(version, 6),
        )
    )
    names = ("nvlink_links", "nvlink_active", "nvlink_version", "nvlink_replays", "nvlink_mb_per_s")
    assert [told[name].value for name in names] == [2, 2, "4.0", 21, 10]
