"""Runs made by hand, with figures that can be checked in the head: for the tests of reports and of the command."""

from dataclasses import replace

from harness.model import (
    Case,
    DeviceFacts,
    Fact,
    Metric,
    Order,
    Outcome,
    Peak,
    PeakSheet,
    Record,
    Ruler,
    RulerPart,
    Run,
    Samples,
    Telemetry,
    Work,
    Worker,
)

GPU = DeviceFacts(
    kind="cuda",
    name="NVIDIA Test",
    torch_device="cuda:0",
    gpu_count=1,
    compute_capability=(9, 0),
    sm_count=100,
    memory_bytes=100 * 2**30,
)
CPU = DeviceFacts(kind="cpu", name="Test CPU", torch_device="cpu")

SHEET = PeakSheet(
    gpu="Test SXM",
    match="exact",
    peaks={
        "memory": Peak(4e12, "B", "read", "data sheet"),
        "bf16": Peak(1e15, "FLOP", "recalled", "whitepaper"),
    },
)
NO_SHEET = PeakSheet(gpu=None, match="none", reason="no data sheet for 'Test CPU'; peak ratios are left empty")

ENVIRONMENT = {
    "driver": Fact("580.1"),
    "cuda_runtime": Fact("13.0"),
    "torch": Fact("2.13.0"),
    "triton": Fact("3.7.1"),
    "nccl": Fact("2.28.9"),
    "power_limit_w": Fact(700),
    "power_limit_default_w": Fact(700),
    "ecc": Fact(True),
    "card": Fact("c0ffee"),
    "label": Fact(None, status="not set", role="informative"),
}

COPY = Case("copy", {"bytes": 4 * 2**30, "impl": "torch"}, (Work(6e9, "B", "memory", "read + write"),))
GEMM = Case(
    "gemm",
    {"dtype": "bf16", "impl": "torch", "k": 8192, "m": 8192, "n": 8192},
    (Work(1e12, "FLOP", "bf16", ""),),
)
ALL_REDUCE = Case(
    "all_reduce",
    {"bytes": 2**30, "dtype": "bf16"},
    (Work(3e9, "B", None, "bus", no_peak="algorithm unknown"), Work(1.5e9, "B", None, "algorithm")),
)


# A timer that ticks every 32 ns and runs 11.6 ppm fast; kernels that spin for a known time; a full tensor pipe.
RULER = Ruler(
    "ok",
    (
        RulerPart("tick", True, 32e-9, "s", high=1.1e-6),
        RulerPart("rate", True, 11.6e-6, "ratio", -100e-6, 100e-6),
        RulerPart("gap", True, 1.4e-6, "s", 0.0, 10e-6),
        RulerPart("spin_20us", True, 1.6e-6, "s", -0.2e-6, 3e-6),
        RulerPart("spin_20ms", True, 1.8e-6, "s", -20e-6, 25e-6),
        RulerPart("pipe_bf16", True, 1.0, "ratio", 0.995, 1.005),
        RulerPart("pipe_fp8", True, 0.9996, "ratio", 0.995, 1.005),
    ),
)
# The same read 5 µs late at 20 µs, and with an fp8 pipe that nobody could judge.
RULER_OFF = Ruler(
    "off",
    (
        *RULER.parts[:3],
        RulerPart("spin_20us", False, 5e-6, "s", -0.2e-6, 3e-6, "the host may have been busy"),
        RulerPart("pipe_fp8", None, None, "ratio", 0.995, 1.005, "fp8 needs compute capability 8.9"),
    ),
)


def rate(value: float, unit: str = "B/s", name: str = "rate", label: str = "", margin: float = 0.001) -> Metric:
    """A rate with an interval of that margin on either side."""
    return Metric(name, value, unit, "higher", value * (1 - margin), value * (1 + margin), label)


def ratio(name: str, value: float | None, reason: str = "") -> Metric:
    """A share, or why there is none."""
    return Metric(name, value, "", "higher", reason=reason)


def time(seconds: float) -> Metric:
    """The time of one launch."""
    return Metric("time", seconds, "s", "lower")


def copy_record(rate_bytes_per_s: float = 3e12) -> Record:
    """A copy at three quarters of the memory's peak: 6 GB in 2 ms, 1.2 J of 600 W."""
    return Record(
        COPY.key,
        "memory",
        COPY,
        "measured",
        samples=Samples((0.002, 0.002), 10, 0.04, "events", "stream"),
        telemetry=Telemetry(
            settled=True, sm_clock_mhz=1979.0, nvml_sm_clock_mhz=1980.0, power_w=600.0, limited_by="none"
        ),
        metrics=(
            rate(rate_bytes_per_s, label="read + write"),
            time(6e9 / rate_bytes_per_s),
            ratio("spec_ratio", rate_bytes_per_s / 4e12),
            ratio("at_clock_ratio", None, "not compute-bound"),
            Metric("energy_per_work", 200e-12, "J"),
            ratio("l2_ratio", 0.01),
        ),
        wall_s=4.0,
    )


def gemm_record() -> Record:
    """A GEMM at the power limit, unsettled, with a peak that nobody has read."""
    return Record(
        GEMM.key,
        "gemm",
        GEMM,
        "measured",
        telemetry=Telemetry(
            settled=False, sm_clock_mhz=1343.0, nvml_sm_clock_mhz=1471.0, power_w=695.0, limited_by="power"
        ),
        metrics=(
            rate(670e12, "FLOP/s", margin=0.002),
            ratio("spec_ratio", 0.67),
            ratio("at_clock_ratio", 0.92),
            Metric("cycles", 2.2e6, ""),
            Metric("energy_per_work", 1.037e-12, "J"),
        ),
        warnings=(
            "unsettled: power still moved",
            f"{GEMM.key}: 3 of 50 samples throttled",
            "unverified peak: 'bf16' was recalled",
        ),
        wall_s=8.2,
    )


def all_reduce_record() -> Record:
    """An all-reduce with its two bandwidths and no share of the link: 3 GB on the bus in 10 ms."""
    return Record(
        ALL_REDUCE.key,
        "collectives",
        ALL_REDUCE,
        "measured",
        metrics=(
            rate(300e9, label="bus"),
            rate(150e9, name="rate.algorithm", label="algorithm"),
            time(0.01),
            ratio("spec_ratio", None, "the algorithm is not known"),
        ),
        wall_s=2.0,
    )


def watched_copy_record(rate_bytes_per_s: float = 3e12, energy_j: float = 200e-12) -> Record:
    """The copy with all that a run of schema 2 knows of it: energy to 0.5 %, 160 of 200 pJ/B net of 120 W idle."""
    return _watched(
        copy_record(rate_bytes_per_s),
        Telemetry(tensor_busy_ratio=0.0, dram_busy_ratio=0.91, power_counter_w=600.0, power_instant_w=603.0),
        joules("energy_per_work", energy_j, "J/B", 0.005),
        joules("energy_net_per_work", 0.8 * energy_j, "J/B", 0.006),
    )


def watched_gemm_record() -> Record:
    """The GEMM with all that a run of schema 2 knows of it: 73.2 % of the clock, its power's sources 4 % apart."""
    return _watched(
        gemm_record(),
        Telemetry(tensor_busy_ratio=0.918, dram_busy_ratio=0.21, power_counter_w=695.0, power_instant_w=668.0),
        ratio("clock_ratio", 0.732),
        joules("energy_per_work", 1.037e-12, "J/FLOP", 0.002),
        joules("energy_net_per_work", 0.85 * 1.037e-12, "J/FLOP", 0.003),
        warnings=(
            "energy check: the counter says 695 W, the instant field 668 W",
            "true clock: 3 SMs ran 2 % slower than the others",
        ),
    )


def joules(name: str, value: float, unit: str, margin: float) -> Metric:
    """Energy a unit of work with an interval of that margin on either side; the sensor adds 5 %."""
    return Metric(name, value, unit, "lower", value * (1 - margin), value * (1 + margin), systematic_ratio=0.05)


def _watched(record: Record, more: Telemetry, *metrics: Metric, warnings: tuple[str, ...] = ()) -> Record:
    """The record with that telemetry beside its own, and those metrics in place of its own of the same names."""
    names = {metric.name for metric in metrics}
    telemetry = replace(
        record.telemetry or Telemetry(),
        tensor_busy_ratio=more.tensor_busy_ratio,
        dram_busy_ratio=more.dram_busy_ratio,
        power_error_w=1.0,
        power_counter_w=more.power_counter_w,
        power_instant_w=more.power_instant_w,
        energy_check_ratio=(more.power_counter_w or 0.0) / (more.power_instant_w or 1.0) - 1,
        idle_power_w=120.0,
    )
    kept = tuple(metric for metric in record.metrics if metric.name not in names)
    return replace(record, telemetry=telemetry, metrics=(*kept, *metrics), warnings=(*record.warnings, *warnings))


def without_figure(case: Case, family: str, outcome: Outcome, reason: str) -> Record:
    """A case that came to nothing, and why."""
    return Record(case.key, family, case, outcome, reason)


def gemm_case(**params: str | int) -> Case:
    """A GEMM with other parameters than the usual ones."""
    return replace(GEMM, params={**GEMM.params, **params})


def checked_record() -> Record:
    """A Triton case on a CPU."""
    case = replace(COPY, params={"bytes": 4096, "impl": "triton"})
    return without_figure(case, "memory", "checked", "Triton's interpreter on a CPU: correctness only")


def ruled_run(*records: Record, ruler: Ruler | None = RULER, run_id: str = "r1") -> Run:
    """A run of schema 2 on a GPU with these records, and what its check of clock and timer found."""
    run = gpu_run(*records, run_id=run_id)
    return replace(run, schema_version=2, workers=tuple(replace(worker, ruler=ruler) for worker in run.workers))


def gpu_run(*records: Record, run_id: str = "r1", created_at: str = "2026-01-02T03:04:05Z") -> Run:
    """A run of schema 1 on a GPU with these records."""
    return Run(
        run_id,
        created_at,
        1,
        "0.1.0",
        Order(profile="quick"),
        GPU,
        SHEET,
        ENVIRONMENT,
        (Worker(0, created_at, "finished"),),
        records,
    )


def cpu_run(*records: Record) -> Run:
    """The same where there is no GPU and no data sheet."""
    environment = {"driver": Fact(None, "no NVIDIA driver"), "torch": Fact("2.13.0"), "triton": Fact("3.7.1")}
    return replace(gpu_run(*records), device=CPU, sheet=NO_SHEET, environment=environment, order=Order(profile="smoke"))


def cpu_copy_record() -> Record:
    """A copy on a CPU: a rate, and nothing to hold it against."""
    no_device = "no NVIDIA device"
    return replace(
        copy_record(),
        telemetry=Telemetry(missing={"sm_clock_mhz": no_device, "nvml_sm_clock_mhz": no_device, "power_w": no_device}),
        metrics=(
            rate(10e9, label="read + write"),
            time(0.6),
            ratio("spec_ratio", None, NO_SHEET.reason),
            Metric("energy_per_work", None, "J/B", reason=no_device),
        ),
    )


def full_run() -> Run:
    """A run with every kind of outcome but `checked`."""
    too_old = "fp8 needs compute capability 8.9"
    fp8 = [gemm_case(dtype="fp8_e4m3", impl=impl, n=n) for impl in ("torch", "triton") for n in (8192, 8448)]
    return gpu_run(
        *(without_figure(case, "gemm", "not_applicable", too_old) for case in fp8),
        copy_record(),
        gemm_record(),
        all_reduce_record(),
        without_figure(gemm_case(impl="triton"), "gemm", "failed", "wrong result: 10.0 dB, at least 30 dB asked"),
    )


def set_of_three() -> tuple[Run, ...]:
    """Three runs whose copy has 2.9, 3.0 and 3.1 TB/s: median 3.0, standard deviation 0.1."""
    return tuple(
        gpu_run(copy_record(rate), run_id=f"r{n}", created_at=f"2026-01-02T0{n}:00:00Z")
        for n, rate in ((1, 2.9e12), (2, 3.0e12), (3, 3.1e12))
    )
