"""NVML behind one wall: every call returns a value or the reason why there is none. Nothing here changes a setting."""

import ctypes
import importlib
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from harness.errors import ExitCode, HarnessError

# Field ids of nvml.h (NVML 12 and 13).
FIELD_MEMORY_TEMPERATURE = 82
FIELD_POWER_INSTANT = 186
FIELD_NVLINK_LINKS = 91
# nvmlEventTypeXidCriticalError.
EVENT_XID = 0x8
THROTTLE_FIELDS = {
    "power_cap": 74,
    "sync_boost": 76,
    "board": 77,
    "low_utilisation": 78,
    "reliability": 79,
    "thermal_sw": 269,
    "thermal_hw": 270,
    "brake_hw": 271,
}
# Bits of nvmlDeviceGetCurrentClocksEventReasons.
EVENT_BITS = {
    "idle": 0x1,
    "applications_clocks": 0x2,
    "power_cap": 0x4,
    "hw_slowdown": 0x8,
    "sync_boost": 0x10,
    "thermal_sw": 0x20,
    "thermal_hw": 0x40,
    "brake_hw": 0x80,
    "display_clock": 0x100,
}
CLOCK_SM, CLOCK_MEMORY = 1, 2
# Metrics of the GPU performance monitor (Hopper and later): percent of the time between two samples.
GPM_METRICS = {"tensor_busy_ratio": 5, "dram_busy_ratio": 10}
_SCOPE_GPU = 0
_POWER_SAMPLES = 0
_NOT_FOUND = 6
_TIMEOUT = 10
# nvmlValueType_t: double, unsigned int, unsigned long, unsigned long long, signed long long, signed int
_VALUE_MEMBERS = ("dVal", "uiVal", "ulVal", "ullVal", "sllVal", "siVal")

_NO_DRIVER = {9: "the NVIDIA driver is not loaded", 12: "NVML is not installed (no NVIDIA driver)"}
_MISMATCH = 18


@dataclass(frozen=True)
class Reading:
    """What one NVML call gave: a value, or `None`, the reason and NVML's number for it."""

    value: Any
    status: str = "ok"
    code: int | None = None


def all_of(readings: Sequence[Reading]) -> Reading:
    """All values, or why the first that lacks one does: a sum over some would look like the sum over all."""
    refused = next((reading for reading in readings if reading.value is None), None)
    return refused or Reading([reading.value for reading in readings])


class Gpu:
    """One device's handle. Calls are looked up by name, so that an old library misses a call, not the suite."""

    def __init__(self, library: Any, handle: Any) -> None:
        self._library = library
        self._handle = handle

    def query(self, call: str, *arguments: Any) -> Reading:
        """The result of `nvmlDevice<call>(handle, ...)`; NVML's own words where it refuses."""
        return _attempt(self._library, f"nvmlDevice{call}", self._handle, *arguments)

    def fields(self, ids: Sequence[int]) -> dict[int, Reading]:
        """Several field values by one driver call; each has its own status."""
        answer = self.query("GetFieldValues", [(i, _SCOPE_GPU) for i in ids])
        if answer.value is None:
            return dict.fromkeys(ids, answer)
        return {i: self._field(entry) for i, entry in zip(ids, answer.value, strict=True)}

    def _field(self, entry: Any) -> Reading:
        if entry.nvmlReturn != 0:
            return Reading(None, str(self._library.NVMLError(entry.nvmlReturn)))
        if entry.valueType >= len(_VALUE_MEMBERS):
            return Reading(None, f"field of an unknown type ({entry.valueType})")
        return Reading(getattr(entry.value, _VALUE_MEMBERS[entry.valueType]))

    def power_instant_w(self) -> Reading:
        """Board power of the last 100 ms refresh (about 25 ms of it is sampled on Hopper), in watts."""
        return scaled(self.fields([FIELD_POWER_INSTANT])[FIELD_POWER_INSTANT], 1e-3)

    def energy_j(self) -> Reading:
        """The energy counter since the driver was loaded, in joules. A read costs 2 to 20 ms."""
        return scaled(self.query("GetTotalEnergyConsumption"), 1e-3)

    def power_limit_w(self) -> Reading:
        """The limit that is enforced now, in watts."""
        return scaled(self.query("GetEnforcedPowerLimit"), 1e-3)

    def clock_mhz(self, domain: int) -> Reading:
        """The clock that NVML says the domain runs at now, in MHz; 0 is not a clock."""
        return _nothing_for_zero(self.query("GetClockInfo", domain))

    def max_clock_mhz(self, domain: int) -> Reading:
        """The highest clock of the domain in NVML's table, in MHz."""
        return _nothing_for_zero(self.query("GetMaxClockInfo", domain))

    def temperature_c(self) -> Reading:
        """The GPU's temperature in degrees Celsius."""
        return self.query("GetTemperature", 0)

    def utilisation_ratio(self) -> Reading:
        """The share of the driver's last sampling period in which any kernel ran, 0..1; a period is 1/6 s to 1 s."""
        reading = self.query("GetUtilizationRates")
        return reading if reading.value is None else Reading(reading.value.gpu / 100)

    def event_reasons(self) -> Reading:
        """The bits of `EVENT_BITS` that hold the clocks down now."""
        reading = self.query("GetCurrentClocksEventReasons")
        # The name before NVML 12.4; the bits are the same.
        return reading if reading.value is not None else self.query("GetCurrentClocksThrottleReasons")

    def power_samples(self, since_us: int) -> Reading:
        """What the driver itself recorded after that Unix time: [(Unix seconds, watts)], oldest first.

        20 ms apart and 2.4 s deep on an H200, for 0.3 to 0.7 ms a call: the cheapest power time line there is.
        """
        reading = self.query("GetSamples", _POWER_SAMPLES, since_us)
        if reading.value is None:
            return Reading([]) if reading.code == _NOT_FOUND else reading  # nothing new
        value_type, samples = reading.value
        if value_type >= len(_VALUE_MEMBERS):
            return Reading(None, f"samples of an unknown type ({value_type})")
        member = _VALUE_MEMBERS[value_type]
        watts = [(s.timeStamp * 1e-6, getattr(s.sampleValue, member) * 1e-3) for s in samples if s.timeStamp]
        return Reading([sample for sample in watts if sample[0] > since_us * 1e-6])

    def busy_sample(self) -> Reading:
        """One sample of the performance monitor, to be held against a later one; the caller frees both."""
        support = _attempt(self._library, "nvmlGpmQueryDeviceSupport", self._handle)
        if support.value is None:
            return support
        if not support.value.isSupportedDevice:
            return Reading(None, "this GPU has no performance monitor (GPM)")
        allocated = _attempt(self._library, "nvmlGpmSampleAlloc")
        if allocated.value is None:
            return allocated
        taken = _attempt(self._library, "nvmlGpmSampleGet", self._handle, allocated.value)
        if taken.value is None:
            _attempt(self._library, "nvmlGpmSampleFree", allocated.value)
        return taken

    def busy_ratios(self, first: Reading, last: Reading) -> dict[str, Reading]:
        """What `GPM_METRICS` names, 0..1, between two samples, which are freed."""
        try:
            if first.value is None or last.value is None:
                return dict.fromkeys(GPM_METRICS, Reading(None, (first if first.value is None else last).status))
            request = self._library.c_nvmlGpmMetricsGet_t()
            request.version = self._library.NVML_GPM_METRICS_GET_VERSION
            request.numMetrics = len(GPM_METRICS)
            request.sample1, request.sample2 = first.value, last.value
            for position, metric in enumerate(GPM_METRICS.values()):
                request.metrics[position].metricId = metric
            answer = _attempt(self._library, "nvmlGpmMetricsGet", request)
            if answer.value is None:
                return dict.fromkeys(GPM_METRICS, answer)
            return {name: self._busy_ratio(request.metrics[position]) for position, name in enumerate(GPM_METRICS)}
        finally:
            for sample in (first, last):
                if sample.value is not None:
                    _attempt(self._library, "nvmlGpmSampleFree", sample.value)

    def _busy_ratio(self, metric: Any) -> Reading:
        if metric.nvmlReturn != 0:
            return Reading(None, str(self._library.NVMLError(metric.nvmlReturn)))
        if not math.isfinite(metric.value):
            return Reading(None, f"the performance monitor says {metric.value} %")
        return Reading(metric.value / 100)

    def ask(self, call: str, *arguments: Any) -> Reading:
        """As `query`; a binding that cannot make the call (another signature, a versioned name) is a reason as well."""
        misfit = getattr(self._library, "NVMLLibraryMismatchError", TypeError)
        try:
            return self.query(call, *arguments)
        except (AttributeError, TypeError, ValueError, misfit) as error:
            return Reading(None, f"this nvidia-ml-py cannot call nvmlDevice{call}: {_first_line(error)}")

    def filled(self, call: str, structure: str, **preset: int) -> Reading:
        """The binding's structure of that name, as `nvmlDevice<call>(handle, &structure)` fills it."""
        return _fill(self._library, structure, preset, lambda pointer: self.ask(call, pointer))

    def scoped_fields(self, ids: Sequence[tuple[int, int]]) -> list[Reading]:
        """Field values of (field, scope) by one driver call: the scope of an NVLink field is the link's number."""
        answer = self.ask("GetFieldValues", list(ids))
        if answer.value is None:
            return [answer] * len(ids)
        return [self._field(entry) for entry in answer.value]

    def watch_events(self, types: int) -> Reading:
        """A set in which NVML queues this GPU's events of those types from now on; whoever asks frees it."""
        made = _attempt(self._library, "nvmlEventSetCreate")
        if made.value is None:
            return made
        registered = _attempt(self._library, "nvmlDeviceRegisterEvents", self._handle, types, made.value)
        if registered.status == "ok":
            return made
        self.free_events(made.value)
        return registered

    def next_event(self, events: Any, patience_ms: int = 0) -> Reading:
        """The number that the oldest queued event carries (an Xid's own), or `None` where none is queued.

        Waits so long for one; only a failure has a status.
        """
        told = _attempt(self._library, "nvmlEventSetWait_v2", events, patience_ms)
        if told.value is None:
            return Reading(None) if told.code == _TIMEOUT else told
        return Reading(int(told.value.eventData))

    def free_events(self, events: Any) -> None:
        """Give the set back."""
        _attempt(self._library, "nvmlEventSetFree", events)

    def is_slice(self) -> bool:
        """Whether this handle is a MIG instance; a library that cannot tell has none."""
        told = self.ask("IsMigDeviceHandle").value
        return bool(getattr(told, "value", told))

    def board(self) -> "Gpu":
        """The whole card that a MIG instance is a part of; any other handle is its own."""
        parent = self.ask("GetDeviceHandleFromMigDeviceHandle").value if self.is_slice() else None
        return self if parent is None else Gpu(self._library, parent)

    def between(self, other: "Gpu", call: str, *arguments: Any) -> Reading:
        """The result of `nvmlDevice<call>(handle, other's handle, ...)`: how two GPUs see each other."""
        return self.ask(call, other._handle, *arguments)


def _attempt(library: Any, name: str, *arguments: Any) -> Reading:
    """The result of a call looked up by name; NVML's own words where it refuses."""
    function = getattr(library, name, None)
    if function is None:
        return Reading(None, f"this nvidia-ml-py has no {name}")
    try:
        return Reading(function(*arguments))
    except library.NVMLError as error:
        return Reading(None, str(error), getattr(error, "value", None))


def scaled(reading: Reading, factor: float) -> Reading:
    """The reading in another unit; unknown stays unknown."""
    return reading if reading.value is None else Reading(reading.value * factor)


def _nothing_for_zero(reading: Reading) -> Reading:
    return Reading(None, "NVML says 0 MHz") if reading.value == 0 else reading


class Nvml:
    """An open NVML session."""

    def __init__(self, library: Any) -> None:
        self._library = library

    def system(self, call: str) -> Reading:
        """The result of `nvmlSystem<call>()`."""
        return _attempt(self._library, f"nvmlSystem{call}")

    def gpus(self) -> Iterator[Gpu]:
        """Every GPU that NVML lists; its order is not CUDA's."""
        for index in range(self._library.nvmlDeviceGetCount()):
            yield Gpu(self._library, self._library.nvmlDeviceGetHandleByIndex(index))

    def by_uuid(self, uuid: str) -> Gpu | None:
        """The GPU of that UUID ("GPU-..." or "MIG-..."): the only safe way from a CUDA device to NVML's."""
        try:
            return Gpu(self._library, self._library.nvmlDeviceGetHandleByUUID(uuid))
        except self._library.NVMLError:
            return None


def open_nvml(library: Any = None) -> tuple[Nvml | None, str]:
    """NVML ready for use, or `None` and the reason (no driver, no binding).

    A driver that does not match its library is an error of the machine (exit 2): nothing there can be trusted.
    """
    if library is None:
        try:
            library = importlib.import_module("pynvml")
        except ImportError:
            return None, "nvidia-ml-py is not installed"
    try:
        library.nvmlInit()
    except library.NVMLError as error:
        code = getattr(error, "value", None)
        if code == _MISMATCH:
            raise HarnessError(
                "the NVIDIA driver's kernel module and its libraries are of different versions (NVML code 18). "
                "Reload the module or reboot, then measure.",
                ExitCode.INCONCLUSIVE,
            ) from error
        return None, _NO_DRIVER.get(code or 0, f"NVML does not start: {error}")
    return Nvml(library), ""


def system_filled(nvml: Nvml, call: str, structure: str, **preset: int) -> Reading:
    """The binding's structure of that name, as `nvmlSystem<call>(&structure)` fills it."""
    library = nvml._library

    def ask(pointer: Any) -> Reading:
        function = getattr(library, f"nvmlSystem{call}", None)
        if function is None:
            return Reading(None, f"this nvidia-ml-py has no nvmlSystem{call}")
        try:
            return Reading(function(pointer))
        except library.NVMLError as error:
            return Reading(None, str(error))

    return _fill(library, structure, preset, ask)


def gpus_that_answer(nvml: Nvml) -> tuple[list[Gpu], list[str]]:
    """Every GPU that gives a handle, and why others do not: a card off the bus must not hide its neighbours."""
    library, found, refused = nvml._library, [], []
    for index in range(library.nvmlDeviceGetCount()):
        try:
            found.append(Gpu(library, library.nvmlDeviceGetHandleByIndex(index)))
        except library.NVMLError as error:
            refused.append(str(error))
    return found, refused


def _fill(library: Any, structure: str, preset: dict[str, int], call: Callable[[Any], Reading]) -> Reading:
    make = getattr(library, structure, None)
    if make is None:
        return Reading(None, f"this nvidia-ml-py has no {structure}")
    filled = make()
    for name, value in preset.items():
        setattr(filled, name, value)
    answer = call(ctypes.byref(filled))
    if answer.status != "ok":
        return answer
    # Some of these calls return NVML's code instead of raising it.
    return Reading(filled) if not answer.value else Reading(None, str(library.NVMLError(answer.value)))


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0][:120]
