"""One GPU as facts: units, roles, and what a slice, a virtual GPU and an old binding cannot tell."""

import os
from types import SimpleNamespace

import pytest

from harness.model import DeviceFacts
from harness.probe.card_facts import WHOLE_CARD, card_facts, card_of, count_others, driver_facts, event_names
from harness.probe.nvml import Gpu, open_nvml
from tests.doubles import FakeNvml, FakeNvmlError
from tests.several_gpus import SeveralGpus, process

ANSWERS = {
    "GetName": "NVIDIA H200",
    "GetArchitecture": 9,
    "GetCudaComputeCapability": (9, 0),
    "GetMemoryInfo": SimpleNamespace(total=143771 * 2**20),
    "GetMemoryBusWidth": 6016,
    "GetEnforcedPowerLimit": 700_000,
    "GetPowerManagementLimit": 700_000,
    "GetMaxClockInfo": 1980,
    "GetMaxCustomerBoostClock": 1980,
    "GetClock": 0,
    "GetEccMode": [1, 0],
    "GetMigMode": [0, 1],
    "GetRemappedRows": (1, 2, 1, 0),
    "GetTotalEccErrors": 0,
    "GetTemperature": 31,
    "GetPerformanceState": 0,
    "GetCurrentClocksEventReasons": 0x5,
    "GetVirtualizationMode": 1,
}


def facts_of(library, device=None, index=0):
    nvml, _ = open_nvml(library)
    gpu = list(nvml.gpus())[index]
    return card_facts(card_of(gpu, device), device)


def test_a_whole_card_is_told_in_our_units():
    told = facts_of(FakeNvml(ANSWERS, {29: 1, 30: 2, 82: 0, 194: 3}))
    names = ("architecture", "compute_capability", "memory_mib", "memory_bus_bits", "power_limit_requested_w")
    assert [told[name].value for name in names] == ["Hopper", "9.0", 143771, 6016, 700.0]
    assert (told["mig"].value, told["mig_after_reset"].value, told["clock_events"].value) == (
        False,
        True,
        "idle, power_cap",
    )
    assert (told["retired_pages"].value, told["threshold_slowdown_margin_c"].value) == (3, 3)
    assert {fact.status for fact in told.values() if fact.value is not None} == {"ok"}


def test_a_clock_or_a_temperature_of_zero_is_unknown():
    told = facts_of(FakeNvml({**ANSWERS, "GetMaxClockInfo": 0}, {82: 0}))
    assert (told["application_sm_clock_mhz"].value, told["application_sm_clock_mhz"].status) == (
        None,
        "NVML says 0 MHz",
    )
    assert told["max_memory_clock_mhz"].value is None
    assert told["memory_temperature_c"].value is None


def test_what_moves_by_itself_decides_no_comparison():
    told = facts_of(FakeNvml(ANSWERS, {82: 40, 31: 0}))
    moving = [name for name, fact in told.items() if fact.role == "informative"]
    assert set(moving) >= {
        "temperature_c", "memory_temperature_c", "pstate", "clock_events", "power_now_w", "other_processes",
        "other_graphics_processes", "mps_processes", "other_processes_mib", "ecc_corrected", "ecc_uncorrected",
        "remapped_rows", "remapped_rows_pending", "retired_pages", "fan_percent", "spare_rows", "threshold_shutdown_c",
    }  # fmt: skip
    assert {"power_limit_w", "ecc", "mig", "vbios", "persistence", "max_sm_clock_mhz"}.isdisjoint(moving)
    assert {fact.role for fact in told.values()} == {"match", "informative"}


def test_a_slice_tells_its_own_part_and_the_rest_as_the_whole_cards():
    """A MIG slice was described by the bus, the clocks and the limits of the whole card, as if they were its own."""
    each = {
        "mig:a": {
            "GetName": "NVIDIA H200 MIG 1g.18gb",
            "GetMemoryInfo": SimpleNamespace(total=16 * 2**30),
            "GetAttributes": SimpleNamespace(
                computeInstanceSliceCount=1, gpuInstanceSliceCount=1, multiprocessorCount=16
            ),
            "GetGpuInstanceId": 9,
            "GetComputeInstanceId": 0,
            "GetEnforcedPowerLimit": FakeNvmlError(3),
            "GetComputeRunningProcesses": [process(1)],
        },
        "a": {"GetComputeRunningProcesses": [process(1, gpu_instance=9), process(2, gpu_instance=7)]},
    }
    told = facts_of(SeveralGpus(["mig:a", "a"], ANSWERS, each))
    own = {"gpu": "NVIDIA H200 MIG 1g.18gb", "memory_mib": 16384, "mig_profile": "1g.18gb", "mig_sm_count": 16}
    assert {name: (told[name].value, told[name].status) for name in own} == {n: (v, "ok") for n, v in own.items()}
    for name in ("power_limit_w", "max_sm_clock_mhz", "ecc", "temperature_c", "compute_capability"):
        assert told[name].value is not None
        assert told[name].status == WHOLE_CARD, name
    assert (told["memory_bus_bits"].value, told["memory_bus_bits"].status) == (
        None,
        "a MIG slice does not tell its part of the bus",
    )
    assert (told["mig_sibling_processes"].value, told["mig_sibling_processes"].role) == (1, "informative")
    assert (told["mig_gpu_instance"].value, told["mig_compute_slices"].value) == (9, 1)


def test_a_slice_that_only_cuda_knows_of_has_the_whole_cards_name_and_memory():
    device = DeviceFacts("cuda", "NVIDIA H200 MIG 1g.18gb", "cuda:0", mig=True, sm_count=16)
    told = facts_of(FakeNvml(ANSWERS), device)
    assert (told["gpu"].value, told["gpu"].status) == ("NVIDIA H200", WHOLE_CARD)
    assert told["memory_mib"].status == WHOLE_CARD
    assert (told["mig_profile"].value, told["mig_profile"].status) == (None, "no value")
    assert told["sm_count"].value == 16


def test_a_virtual_gpu_has_the_bus_of_the_whole_card():
    told = facts_of(FakeNvml({**ANSWERS, "GetVirtualizationMode": 2, "GetEnforcedPowerLimit": FakeNvmlError(3)}))
    assert (told["virtualization"].value, told["virtualization"].status) == ("vgpu", "ok")
    assert (told["memory_bus_bits"].value, told["memory_bus_bits"].status) == (6016, WHOLE_CARD)
    assert (told["power_limit_w"].value, told["power_limit_w"].status) == (None, "Not Supported")


def test_an_answer_of_another_shape_is_unknown_and_not_the_end():
    told = facts_of(FakeNvml({**ANSWERS, "GetEccMode": 7, "GetRemappedRows": (1,)}))
    assert told["ecc"].status == "unexpected answer ('int' object is not subscriptable)"
    assert told["remapped_rows_pending"].status == "unexpected answer (tuple index out of range)"


def test_an_old_binding_misses_calls_and_not_the_suite():
    def refuse():
        raise TypeError("takes 1 positional argument but 2 were given")

    told = facts_of(FakeNvml({**ANSWERS, "GetGspFirmwareMode": refuse}))
    assert told["gsp"].status.startswith("this nvidia-ml-py cannot call nvmlDeviceGetGspFirmwareMode: takes 1")
    assert told["sram_uncorrected"].status == "this nvidia-ml-py has no c_nvmlEccSramErrorStatus_v1_t"
    empty = SimpleNamespace(NVMLError=FakeNvmlError)
    told = card_facts(card_of(Gpu(empty, "handle")))
    assert {fact.value for fact in told.values()} == {None}


def test_a_call_that_an_older_library_lacks_under_that_name_is_unknown():
    """The binding's own NVMLLibraryMismatchError is none of NVML's errors, and ended the run."""

    class Older(FakeNvml):
        NVMLLibraryMismatchError = type("NVMLLibraryMismatchError", (Exception,), {})

    def refuse():
        raise Older.NVMLLibraryMismatchError("Unversioned function called")

    assert "Unversioned function" in facts_of(Older({"GetComputeRunningProcesses": refuse}))["other_processes"].status


@pytest.mark.parametrize(("offset", "told"), [(-50, -50), (0x7FFFFFFF, None)])
def test_a_clock_offset_counts_only_if_the_driver_wrote_one(offset, told):
    """The binding drops this call's code: a refusal looked like an offset of 0 MHz."""
    library = SeveralGpus(["a"], ANSWERS, filling={"GetClockOffsets": {"clockOffsetMHz": offset}})
    assert facts_of(library)["sm_clock_offset_mhz"].value == told


def test_power_smoothing_is_told_where_it_answers():
    told = facts_of(FakeNvml(ANSWERS, {251: 1, 255: 80, 264: 2, 274: 100}))
    assert (told["power_smoothing"].value, told["edpp_percent"].value) == (True, 100)
    assert told["power_smoothing_settings"].value == "255=80 264=2"
    assert "power_smoothing_settings" not in facts_of(FakeNvml(ANSWERS))


def test_the_driver_is_a_bundle():
    library = FakeNvml(
        {
            "GetDriverVersion": b"580.159.04",
            "GetDriverBranch": SimpleNamespace(branch=b"r580_00"),
            "GetCudaDriverVersion_v2": 13000,
            "GetConfComputeState": SimpleNamespace(ccFeature=1),
        }
    )
    told = driver_facts(open_nvml(library)[0])
    assert [told[n].value for n in ("driver", "driver_branch", "cuda_driver", "confidential_computing")] == [
        "580.159.04", "r580_00", "13.0", True,
    ]  # fmt: skip
    assert told["confidential_multi_gpu"].value is None


def test_processes_are_counted_and_never_named():
    others = [process(os.getpid()), process(-1), process(-2, mib=None)]
    assert count_others(others) == 2
    told = facts_of(FakeNvml({**ANSWERS, "GetComputeRunningProcesses": others}))
    assert (told["other_processes"].value, told["other_processes_mib"].value) == (2, None)
    told = facts_of(FakeNvml({**ANSWERS, "GetComputeRunningProcesses": others[:2]}))
    assert told["other_processes_mib"].value == 1024


def test_event_bits_have_names():
    assert (event_names(0), event_names(0x48)) == ("none", "hw_slowdown, thermal_hw")
