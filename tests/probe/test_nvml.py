"""NVML's answers and refusals, from tables."""

import ctypes
import math
from types import SimpleNamespace

import pytest

from harness.errors import ExitCode, HarnessError
from harness.probe.nvml import (
    CLOCK_MEMORY,
    CLOCK_SM,
    EVENT_BITS,
    FIELD_POWER_INSTANT,
    GPM_METRICS,
    THROTTLE_FIELDS,
    Gpu,
    Nvml,
    Reading,
    open_nvml,
    scaled,
)
from tests.doubles import FakeNvml, FakeNvmlError, GpmNvml


def gpu_of(library):
    nvml, reason = open_nvml(library)
    assert reason == ""
    return next(nvml.gpus())


def test_call_that_works_gives_a_value():
    assert gpu_of(FakeNvml({"GetName": "GPU"})).query("GetName") == Reading("GPU")


def test_call_that_is_not_supported_gives_the_reason():
    assert gpu_of(FakeNvml()).query("GetName") == Reading(None, "Not Supported", 3)


def test_call_that_an_old_binding_lacks_gives_the_reason():
    old = SimpleNamespace(NVMLError=FakeNvmlError)
    assert Gpu(old, "handle").query("GetFieldValues", []).status == "this nvidia-ml-py has no nvmlDeviceGetFieldValues"
    assert Nvml(old).system("GetDriverVersion").status == "this nvidia-ml-py has no nvmlSystemGetDriverVersion"


def test_fields_that_an_old_binding_lacks_are_each_unknown():
    fields = Gpu(SimpleNamespace(NVMLError=FakeNvmlError), "handle").fields([1, 2])
    assert set(fields) == {1, 2}
    assert {reading.value for reading in fields.values()} == {None}


def test_an_error_of_our_own_is_not_taken_for_nvmls():
    with pytest.raises(ZeroDivisionError):
        gpu_of(FakeNvml({"GetName": lambda: 1 // 0})).query("GetName")


def test_mismatch_of_driver_and_library_ends_the_run_with_code_2():
    with pytest.raises(HarnessError) as told:
        open_nvml(FakeNvml(init_error=18))
    assert told.value.exit_code == ExitCode.INCONCLUSIVE == 2
    assert str(told.value) == (
        "the NVIDIA driver's kernel module and its libraries are of different versions (NVML code 18). "
        "Reload the module or reboot, then measure."
    )


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        (9, "the NVIDIA driver is not loaded"),
        (12, "NVML is not installed (no NVIDIA driver)"),
        (999, "NVML does not start: error 999"),
    ],
)
def test_machine_without_a_driver_has_no_nvml_and_a_reason(code, reason):
    assert open_nvml(FakeNvml(init_error=code)) == (None, reason)


def test_environment_without_the_binding_has_no_nvml_and_a_reason(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "pynvml", None)
    assert open_nvml() == (None, "nvidia-ml-py is not installed")


def test_system_calls_answer_or_tell_why():
    nvml, _ = open_nvml(FakeNvml({"GetDriverVersion": "580.1"}))
    assert nvml.system("GetDriverVersion") == Reading("580.1")
    assert nvml.system("GetNVMLVersion") == Reading(None, "Not Supported", 3)


@pytest.mark.parametrize("call", ["clock_mhz", "max_clock_mhz"])
def test_clock_of_zero_is_unknown(call):
    gpu = gpu_of(FakeNvml({"GetClockInfo": 0, "GetMaxClockInfo": 0}))
    assert getattr(gpu, call)(CLOCK_SM) == Reading(None, "NVML says 0 MHz")


@pytest.mark.parametrize("call", ["clock_mhz", "max_clock_mhz"])
def test_clock_is_what_nvml_says_otherwise(call):
    gpu = gpu_of(FakeNvml({"GetClockInfo": 1980, "GetMaxClockInfo": 1980}))
    assert getattr(gpu, call)(CLOCK_MEMORY) == Reading(1980)


def test_milliwatts_and_millijoules_become_watts_and_joules():
    library = FakeNvml(
        {"GetTotalEnergyConsumption": 5000, "GetEnforcedPowerLimit": 700_000}, {FIELD_POWER_INSTANT: 600_000}
    )
    gpu = gpu_of(library)
    assert gpu.power_instant_w().value == pytest.approx(600)
    assert gpu.power_limit_w().value == pytest.approx(700)
    assert gpu.energy_j().value == pytest.approx(5)


def test_power_of_zero_is_a_reading():
    assert gpu_of(FakeNvml(fields={FIELD_POWER_INSTANT: 0})).power_instant_w().value == 0


def test_unknown_stays_unknown_in_another_unit():
    assert scaled(Reading(None, "Not Supported"), 1e-3) == Reading(None, "Not Supported")


class Value(ctypes.Union):
    """nvmlValue_t."""

    _fields_ = (
        ("dVal", ctypes.c_double),
        ("uiVal", ctypes.c_uint),
        ("ulVal", ctypes.c_ulong),
        ("ullVal", ctypes.c_ulonglong),
        ("sllVal", ctypes.c_longlong),
        ("siVal", ctypes.c_int),
    )


def field_of(value_type, **value):
    entry = SimpleNamespace(nvmlReturn=0, valueType=value_type, value=Value(**value))
    return gpu_of(FakeNvml({}))._field(entry)


@pytest.mark.parametrize(
    ("value_type", "member", "value"),
    [(0, "dVal", 1.5), (1, "uiVal", 7), (2, "ulVal", 2**40), (3, "ullVal", 2**63), (4, "sllVal", -9), (5, "siVal", -3)],
)
def test_field_is_read_as_the_type_that_nvml_names(value_type, member, value):
    assert field_of(value_type, **{member: value}) == Reading(value)


def test_field_of_a_type_not_known_yet_is_unknown():
    assert field_of(6, uiVal=7) == Reading(None, "field of an unknown type (6)")


def test_each_field_has_its_own_status():
    power_cap, board = THROTTLE_FIELDS["power_cap"], THROTTLE_FIELDS["board"]
    fields = gpu_of(FakeNvml(fields={power_cap: 10})).fields([power_cap, board])
    assert fields == {power_cap: Reading(10), board: Reading(None, "Not Supported")}


def test_several_fields_cost_one_call():
    library = FakeNvml()
    gpu_of(library).fields(list(THROTTLE_FIELDS.values()))
    assert library.calls == ["GetFieldValues"]


class TwoGpus(FakeNvml):
    """Two GPUs; nobody may go from CUDA's index to NVML's."""

    uuids = ("GPU-b", "GPU-a")

    def nvmlDeviceGetHandleByIndex(self, index):  # noqa: N802  # NVML's own name
        """Not allowed here."""
        raise AssertionError("by index")

    def nvmlDeviceGetHandleByUUID(self, uuid):  # noqa: N802  # NVML's own name
        """By its place in NVML's order, which is not CUDA's."""
        if uuid not in self.uuids:
            raise FakeNvmlError(6)
        return self.uuids.index(uuid)

    def nvmlDeviceGetName(self, handle):  # noqa: N802  # NVML's own name
        """The UUID again."""
        return self.uuids[handle]


def test_gpu_is_found_by_uuid_and_never_by_index():
    nvml, _ = open_nvml(TwoGpus())
    assert nvml.by_uuid("GPU-a").query("GetName").value == "GPU-a"
    assert nvml.by_uuid("GPU-b").query("GetName").value == "GPU-b"


def test_uuid_that_nvml_does_not_list_has_no_gpu():
    nvml, _ = open_nvml(FakeNvml(uuid="GPU-1"))
    assert nvml.by_uuid("GPU-2") is None


def test_gpus_come_as_nvml_counts_them():
    nvml, _ = open_nvml(FakeNvml({"GetName": "GPU"}))
    assert [gpu.query("GetName").value for gpu in nvml.gpus()] == ["GPU"]


def test_event_reasons_come_by_their_new_name():
    library = FakeNvml({"GetCurrentClocksEventReasons": EVENT_BITS["power_cap"]})
    assert gpu_of(library).event_reasons() == Reading(4)
    assert library.calls == ["GetCurrentClocksEventReasons"]


def test_no_event_at_all_is_an_answer():
    library = FakeNvml({"GetCurrentClocksEventReasons": 0, "GetCurrentClocksThrottleReasons": 4})
    assert gpu_of(library).event_reasons() == Reading(0)


def test_event_reasons_come_by_their_old_name_from_an_old_binding():
    old = SimpleNamespace(NVMLError=FakeNvmlError, nvmlDeviceGetCurrentClocksThrottleReasons=lambda handle: 8)
    assert Gpu(old, "handle").event_reasons() == Reading(8)


def test_event_reasons_are_unknown_where_neither_name_answers():
    assert gpu_of(FakeNvml()).event_reasons() == Reading(None, "Not Supported", 3)


def test_event_bits_are_nvmls_powers_of_two():
    assert sorted(EVENT_BITS.values()) == [1 << i for i in range(9)]


# --- the driver's own power samples ----------------------------------------------------------------------------------


def sampled(*microseconds, value_type=1):
    """Samples of 600 W at those times."""
    value = SimpleNamespace(uiVal=600_000, ullVal=600_000)
    return value_type, [SimpleNamespace(timeStamp=us, sampleValue=value) for us in microseconds]


def power_samples(answer, since_us=0):
    return gpu_of(FakeNvml({"GetSamples": answer})).power_samples(since_us)


def test_power_samples_are_watts_by_unix_time():
    assert power_samples(sampled(1_000_000, 1_020_000)).value == [(1.0, 600.0), (1.02, 600.0)]


def test_power_samples_that_were_told_before_are_left_out():
    assert power_samples(sampled(1_000_000, 1_020_000), since_us=1_000_000).value == [(1.02, 600.0)]


def test_places_of_the_ring_that_were_never_filled_are_no_samples():
    assert power_samples(sampled(0, 1_000_000)).value == [(1.0, 600.0)]


def test_not_found_means_that_no_sample_is_new():
    assert power_samples(FakeNvmlError(6)) == Reading([])


@pytest.mark.parametrize(
    ("answer", "told"),
    [(FakeNvmlError(3), "Not Supported"), (sampled(1, value_type=9), "samples of an unknown type (9)")],
)
def test_power_samples_that_the_driver_does_not_keep_are_unknown(answer, told):
    assert (power_samples(answer).value, power_samples(answer).status) == (None, told)


# --- the performance monitor -----------------------------------------------------------------------------------------

TENSOR, DRAM = GPM_METRICS.values()


def busy(library):
    """Two samples of a GPU and what lies between them."""
    gpu = gpu_of(library)
    return gpu.busy_ratios(gpu.busy_sample(), gpu.busy_sample())


def test_monitor_tells_the_shares_between_two_samples_and_both_are_freed():
    library = GpmNvml({TENSOR: 90.0, DRAM: 25.0})
    assert busy(library) == {"tensor_busy_ratio": Reading(0.9), "dram_busy_ratio": Reading(0.25)}
    assert (library.allocated, library.living) == (2, 0)


def test_metric_that_the_monitor_lacks_is_unknown_and_the_other_is_not():
    library = GpmNvml({DRAM: 25.0})
    assert busy(library) == {
        "tensor_busy_ratio": Reading(None, "Not Supported"),
        "dram_busy_ratio": Reading(0.25),
    }
    assert (library.allocated, library.living) == (2, 0)


def test_metric_that_is_no_number_is_unknown():
    """NaN would have made the run file no JSON."""
    told = busy(GpmNvml({TENSOR: math.nan, DRAM: 25.0}))
    assert told["tensor_busy_ratio"] == Reading(None, "the performance monitor says nan %")


def test_card_without_a_monitor_takes_no_sample():
    library = GpmNvml(supported=0)
    assert busy(library) == dict.fromkeys(GPM_METRICS, Reading(None, "this GPU has no performance monitor (GPM)"))
    assert library.allocated == 0


@pytest.mark.parametrize(
    ("call", "allocated"), [("QueryDeviceSupport", 0), ("SampleAlloc", 0), ("SampleGet", 2), ("MetricsGet", 2)]
)
def test_every_sample_is_freed_whatever_fails(call, allocated):
    library = GpmNvml({TENSOR: 90.0, DRAM: 25.0}, fails={call: 15})
    told = busy(library)
    assert {reading.value for reading in told.values()} == {None}
    assert {reading.status for reading in told.values()} == {"GPU is lost"}
    assert (library.allocated, library.living) == (allocated, 0)


def test_first_sample_is_freed_where_the_last_could_not_be_taken():
    library = GpmNvml({TENSOR: 90.0, DRAM: 25.0})
    gpu = gpu_of(library)
    first = gpu.busy_sample()
    library.fails["SampleGet"] = 15
    assert {reading.status for reading in gpu.busy_ratios(first, gpu.busy_sample()).values()} == {"GPU is lost"}
    assert (library.allocated, library.living) == (2, 0)


def test_binding_without_a_monitor_is_unknown():
    told = Gpu(SimpleNamespace(NVMLError=FakeNvmlError), "handle").busy_sample()
    assert told == Reading(None, "this nvidia-ml-py has no nvmlGpmQueryDeviceSupport")


def test_utilisation_is_a_ratio_or_says_why_not():
    told = Gpu(FakeNvml({"GetUtilizationRates": SimpleNamespace(gpu=100, memory=3)}), "handle")
    assert told.utilisation_ratio() == Reading(1.0)
    assert Gpu(FakeNvml(), "handle").utilisation_ratio().status == "Not Supported"
