"""Cases, a sheet and a window in whole numbers, for the tests of what is derived from them."""

from dataclasses import replace

from harness.cautions import warnings_of
from harness.metrics import derive_metrics
from harness.model import Case, DeviceFacts, Peak, PeakSheet, Samples, Telemetry, Work

GPU = DeviceFacts("cuda", "NVIDIA Test", "cuda:0", sm_count=100, l2_bytes=100)
SHEET = PeakSheet(
    gpu="Test",
    match="exact",
    peaks={
        "memory": Peak(1000.0, "B", "read", "data sheet"),
        "bf16": Peak(400e9, "FLOP", "read", "data sheet", clock_mhz=2.0),
        "fp8": Peak(800e9, "FLOP", "recalled", "memory", clock_mhz=2.0),
    },
    # 100 SMs x 2000 FLOP a clock and SM x 2 MHz = 400 GFLOP/s
    flop_per_clock_per_sm={"bf16": 2000, "fp8": 4000},
    sm_count=100,
)
NO_SHEET = PeakSheet(None, "none", "no entry for 'NVIDIA Test' in harness/specs.toml")
SAMPLES = Samples((2.0, 2.0, 2.0, 2.0), 1, 8.0, "events", "stream")
LOADED = Telemetry(settled=True, sm_clock_mhz=1.5, nvml_sm_clock_mhz=1.65, power_w=600.0, power_method="counter")
READ_WRITE = Work(1600.0, "B", "memory", "read + write")
ONE_WAY = Work(800.0, "B", None, "one way")
COPY = Case("copy", {"bytes": 800}, (READ_WRITE, ONE_WAY), footprint_bytes=10_000)
GEMM = Case("gemm", {"dtype": "bf16"}, (Work(480e9, "FLOP", "bf16", "2mnk"), Work(1000.0, "B", "memory", "bytes")))
SKINNY = Case("gemm", {"m": 1}, (Work(100e9, "FLOP", "bf16", "2mnk"), READ_WRITE), footprint_bytes=10_000)


def metrics_of(case, samples=SAMPLES, telemetry=LOADED, sheet=SHEET, facts=GPU):
    return {m.name: m for m in derive_metrics(case, samples, telemetry, sheet, facts)}


def warnings(case, samples=SAMPLES, telemetry=LOADED, sheet=SHEET, facts=GPU):
    metrics = derive_metrics(case, samples, telemetry, sheet, facts)
    return warnings_of(case, samples, telemetry, sheet, metrics)


def on_host_link(peak="host_link", amount=8e9):
    return Case("memcpy", {"direction": "h2d"}, (Work(amount, "B", peak, "one way"),))


LINKED = replace(SHEET, peaks={"nvlink": Peak(1000.0, "B", "read", "data sheet")})
BUS = Case("all_reduce", {"impl": "nccl", "ranks": 2}, (Work(800.0, "B", "nvlink", "bus"),))
