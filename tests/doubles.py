"""Stand-ins for the machine: a device that follows a script, and an NVML that answers from tables."""

import os
import signal
import struct
import subprocess
import time
from collections.abc import Mapping, Sequence
from fractions import Fraction
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from harness.errors import ExitCode, HarnessError
from harness.model import DeviceFacts, Fact, Ruler, RulerPart, Telemetry
from harness.probe.load import Group, Launch, Pace, Prologue
from harness.probe.shots import time_shots


class ScriptedDevice:
    """A device whose launches last as long as the family's script says, on a clock of its own. No torch, no waiting."""

    timer = "scripted"

    def __init__(self) -> None:
        self.facts = DeviceFacts(
            kind="scripted",
            name="Scripted GPU",
            torch_device="cpu",
            gpu_count=1,
            memory_bytes=8 * 2**30,
            free_bytes=6 * 2**30,
            l2_bytes=2**20,
        )
        self.checker = ScriptedChecker()
        self.preheats = 0
        self.now_s = 1000.0

    def synchronize(self) -> None:
        """Everything has run."""

    def start(
        self,
        launch: Launch,
        group_s: float,
        pace: Pace | None = None,
        prologue: Prologue | None = None,
        rest_s: float = 0.0,
    ) -> "ScriptedLoad":
        """A load that asks the launch how long it takes."""
        return ScriptedLoad(self, launch)

    def time_shots(
        self, shot: Launch, shots: int, before: Launch | None, held: Fraction
    ) -> tuple[list[float], Telemetry]:
        """Each call took what it says."""
        seconds = time_shots(shot, shots, before, held)
        self.now_s += sum(seconds)
        return seconds, Telemetry(limited_by="none", missing={"power_w": "scripted: not watched"})

    def flusher(self, size_bytes: int) -> Prologue:
        """Nothing to flush."""
        return lambda: None

    def release(self) -> None:
        """Nothing is held."""

    def is_usable(self) -> bool:
        """Always."""
        return True

    def preheat(self, cap_s: float) -> dict[str, float | bool | str | None]:
        """Warm at once."""
        self.preheats += 1
        return {"seconds": 0.0, "steady": True, "start_c": 40.0, "end_c": 40.0}

    def environment(self) -> dict[str, Fact]:
        """A small environment; a test may move it through a variable."""
        return {
            "driver": Fact(os.environ.get("OFPEAK_TEST_DRIVER", "580.1")),
            "card": Fact("c0ffee"),
            "site_key": Fact("abc123", role="informative"),
        }


class MeasuredDevice(ScriptedDevice):
    """A scripted device with a card's ruler and a card's rest; `story` tells what was asked of it, in order."""

    def __init__(self) -> None:
        super().__init__()
        self.story: list[str] = []
        self.flop_per_clock_per_sm: Mapping[str, int] | None = None
        self.found = Ruler("ok", (RulerPart("tick", True, 32e-9, "s", 0.0, 2e-6),))

    def begin_rest(self) -> None:
        """The watch at rest begins."""
        self.story.append("begin_rest")

    def end_rest(self) -> dict[str, float | bool | str | None]:
        """And ends."""
        self.story.append("end_rest")
        return {"power_w": 120.0, "seconds": 2.0, "temperature_c": 35.0, "reason": ""}

    def ruler(self, flop_per_clock_per_sm: Mapping[str, int]) -> "MeasuredDevice":
        """The first reading of the timers; the check is the device itself."""
        self.story.append("ruler")
        self.flop_per_clock_per_sm = flop_per_clock_per_sm
        return self

    def preheat(self, cap_s: float) -> dict[str, float | bool | str | None]:
        """Warm at once."""
        self.story.append("preheat")
        return super().preheat(cap_s)

    def stay_cold(self, seconds: float) -> dict[str, float | bool | str | None]:
        """Nothing for so long."""
        self.story.append(f"stay_cold {seconds:.0f} s")
        return {}

    def conclude(self) -> Ruler:
        """What the check found."""
        self.story.append("conclude")
        return self.found


class ImpatientDevice(ScriptedDevice):
    """A scripted device whose cases are ended after little more than a second."""

    allowance_s = 0.6


class PacedDevice(ScriptedDevice):
    """A scripted device that rests after every case, so that a kill at any moment finds a run in its middle."""

    def release(self) -> None:
        """Nothing is held; a breath is taken."""
        time.sleep(0.1)


class StickyDevice(ImpatientDevice):
    """A scripted device that an illegal address ends for its process: every later call raises the same error."""

    is_broken = False

    def break_down(self) -> None:
        """What a kernel that writes out of bounds does."""
        type(self).is_broken = True
        self.synchronize()

    def synchronize(self) -> None:
        """Wait, or raise what the device is left with."""
        if self.is_broken:
            raise RuntimeError("CUDA error: an illegal memory access was encountered")

    def release(self) -> None:
        """The allocator frees blocks by calls that raise as well."""
        self.synchronize()

    def is_usable(self) -> bool:
        """Not after the first error."""
        return not self.is_broken


class LostDevice(ScriptedDevice):
    """A scripted device that can be opened once: the file that OFPEAK_TEST_LOST names remembers."""

    def __init__(self) -> None:
        super().__init__()
        opened = Path(os.environ["OFPEAK_TEST_LOST"])
        if opened.exists():
            raise HarnessError("the GPU has fallen off the bus. Reset it.", ExitCode.INCONCLUSIVE)
        opened.touch()


class ReloadedDevice(ScriptedDevice):
    """A scripted device whose driver is exchanged after it was opened once: OFPEAK_TEST_LOST names what remembers."""

    def environment(self) -> dict[str, Fact]:
        """Another driver from the second time on."""
        opened = Path(os.environ["OFPEAK_TEST_LOST"])
        driver = "581.0" if opened.exists() else "580.1"
        opened.touch()
        return {**super().environment(), "driver": Fact(driver)}


class ScriptedLoad:
    """Groups of ten launches; a launch that returns a number took that many seconds."""

    def __init__(self, device: ScriptedDevice, launch: Launch) -> None:
        self.pace = Pace("stream", 10, 0.001)
        self._device = device
        self._launch = launch
        self._count = 0

    def run_group(self) -> Group:
        """Ten launches by the script."""
        seconds = 0.0
        for i in range(self._count, self._count + 10):
            took = self._launch(i)
            seconds += took if isinstance(took, float) else 0.001
        self._count += 10
        self._device.now_s += seconds
        return Group(seconds, 10, self._device.now_s, clock_mhz=1500.0)

    def mark(self) -> None:
        """The window begins."""

    def finish(self) -> Telemetry:
        """Steady figures."""
        return Telemetry(
            sm_clock_mhz=1500.0,
            nvml_sm_clock_mhz=1650.0,
            power_w=600.0,
            power_method="scripted",
            power_limit_w=700.0,
            limited_by="none",
        )

    def cut(self) -> Telemetry:
        """The same of every part."""
        return self.finish()

    def recent_power(self) -> Sequence[tuple[float, float]]:
        """Nothing is read while it runs."""
        return ()


class ScriptedChecker:
    """Buffers are lists of one number; poison is NaN."""

    def fill(self, buffers: Sequence[Any], seed: int) -> None:
        """The seed itself."""
        for buffer in buffers:
            buffer[0] = float(seed)

    def poison(self, buffers: Sequence[Any]) -> None:
        """NaN."""
        for buffer in buffers:
            buffer[0] = float("nan")

    def fingerprint(self, buffer: Any) -> int:
        """The number's hash."""
        return hash(buffer[0])

    def copy(self, buffer: Any) -> Any:
        """The number."""
        return list(buffer)

    def differences(self, kept: Any, buffer: Any) -> tuple[int, Sequence[tuple[tuple[int, ...], int, int]]]:
        """The one number's bits, as a double."""
        bits = [struct.unpack("<Q", struct.pack("<d", one[0]))[0] for one in (kept, buffer)]
        return (1, [((0,), *bits)]) if bits[0] != bits[1] else (0, [])

    def error(self, actual: Any, expected: Any, exact: bool) -> float:
        """Whether they differ, or 99 dB if they do not."""
        if exact:
            return float(actual != expected)
        return 99.0 if actual == expected else float("nan")


def die(how: str) -> None:
    """End this process as broken hardware would: `segfault`, `exit`, or hang for longer than any watchdog waits.

    `compiles` hangs in a program that it started, as a compiler that never ends does.
    """
    if how == "segfault":
        os.kill(os.getpid(), signal.SIGSEGV)
    if how == "exit":
        os._exit(3)
    if how == "compiles":
        subprocess.run(["sleep", "3600"], check=True)
    time.sleep(3600)


class FakeNvmlError(Exception):
    """NVML's error with its code."""

    def __init__(self, value: int) -> None:
        super().__init__(
            {
                3: "Not Supported",
                6: "Not Found",
                9: "Driver Not Loaded",
                15: "GPU is lost",
                18: "Driver/library version mismatch",
            }.get(value, f"error {value}")
        )
        self.value = value


class FakeNvml:
    """The module `pynvml` as far as the suite calls it: answers come from tables, everything else is not supported."""

    NVMLError = FakeNvmlError

    def __init__(
        self,
        answers: Mapping[str, Any] | None = None,
        fields: Mapping[int, Any] | None = None,
        init_error: int = 0,
        uuid: str = "GPU-1234",
    ) -> None:
        self.answers = dict(answers or {})
        self.fields = dict(fields or {})
        self.calls: list[str] = []
        self._init_error = init_error
        self._uuid = uuid

    def nvmlInit(self) -> None:  # noqa: N802  # NVML's own name
        """Starts, or fails with the scripted code."""
        if self._init_error:
            raise FakeNvmlError(self._init_error)

    def nvmlDeviceGetCount(self) -> int:  # noqa: N802  # NVML's own name
        """One GPU."""
        return 1

    def nvmlDeviceGetHandleByIndex(self, index: int) -> str:  # noqa: N802  # NVML's own name
        """A handle."""
        return f"handle {index}"

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> str:  # noqa: N802  # NVML's own name
        """A handle for the one UUID there is."""
        if uuid != self._uuid:
            raise FakeNvmlError(6)
        return "handle 0"

    def nvmlDeviceGetFieldValues(self, handle: str, ids: Sequence[tuple[int, int]]) -> list[Any]:  # noqa: N802
        """Each field's scripted value, or code 3. A callable is asked anew each time."""
        self.calls.append("GetFieldValues")
        return [self._field(i) for i, _ in ids]

    def __getattr__(self, name: str) -> Any:
        """Any other call: a scripted answer, a callable asked anew, or an exception raised."""
        call = name.removeprefix("nvmlDevice").removeprefix("nvmlSystem")
        if not name.startswith("nvml"):
            raise AttributeError(name)

        def answer(*_: Any) -> Any:
            self.calls.append(call)
            value = self.answers.get(call, FakeNvmlError(3))
            if isinstance(value, Exception):
                raise value
            return value() if callable(value) else value

        return answer

    def _field(self, field_id: int) -> Any:
        value = self.fields.get(field_id)
        if callable(value):
            value = value()
        code = 3 if value is None else 0
        return SimpleNamespace(nvmlReturn=code, valueType=3, value=SimpleNamespace(ullVal=value))


class GpmNvml(FakeNvml):
    """An NVML with a performance monitor: percent by metric id, code 3 for the others.

    `fails` names calls ("SampleGet") with the code by which they fail; `living` counts samples that nobody freed.
    """

    NVML_GPM_METRICS_GET_VERSION = 1

    def __init__(
        self, percent: Mapping[int, float] | None = None, fails: Mapping[str, int] | None = None, supported: int = 1
    ) -> None:
        super().__init__()
        self.percent = dict(percent or {})
        self.fails = dict(fails or {})
        self.supported = supported
        self.allocated = self.living = 0

    def nvmlGpmQueryDeviceSupport(self, handle: str) -> SimpleNamespace:  # noqa: N802  # NVML's own name
        """Whether there is a monitor."""
        self._maybe_fail("QueryDeviceSupport")
        return SimpleNamespace(isSupportedDevice=self.supported)

    def nvmlGpmSampleAlloc(self) -> str:  # noqa: N802  # NVML's own name
        """Room for one sample."""
        self._maybe_fail("SampleAlloc")
        self.allocated += 1
        self.living += 1
        return f"sample {self.allocated}"

    def nvmlGpmSampleGet(self, handle: str, sample: str) -> str:  # noqa: N802  # NVML's own name
        """That sample, filled."""
        self._maybe_fail("SampleGet")
        return sample

    def nvmlGpmSampleFree(self, sample: str) -> None:  # noqa: N802  # NVML's own name
        """One less."""
        self.living -= 1

    def c_nvmlGpmMetricsGet_t(self) -> SimpleNamespace:  # noqa: N802  # NVML's own name
        """An empty request."""
        metrics = [SimpleNamespace(metricId=0, nvmlReturn=0, value=0.0) for _ in range(4)]
        return SimpleNamespace(version=0, numMetrics=0, sample1=None, sample2=None, metrics=metrics)

    def nvmlGpmMetricsGet(self, request: SimpleNamespace) -> SimpleNamespace:  # noqa: N802  # NVML's own name
        """The request, answered; its two samples must still be there."""
        self._maybe_fail("MetricsGet")
        assert self.living >= 2
        for metric in request.metrics[: request.numMetrics]:
            metric.nvmlReturn = 0 if metric.metricId in self.percent else 3
            metric.value = self.percent.get(metric.metricId, 0.0)
        return request

    def _maybe_fail(self, call: str) -> None:
        if call in self.fails:
            raise FakeNvmlError(self.fails[call])
