"""Steps of computing beside communicating made by hand, with figures that can be checked in the head."""

from collections.abc import Mapping
from dataclasses import replace

from harness.model import Case, Metric, Record, Run, Samples, Telemetry, Work
from tests import hand_made

# 2·1000·1000·500 FLOP = 1 GFLOP, and 2 MB on the bus of two GPUs: 500 FLOP a bus byte.
SHAPE = (1000, 1000, 500)


def case(mode: str, k: int = 500, op: str = "gemm_all_reduce", m: int = 1000) -> Case:
    params = {"bytes": 2 * m * 1000, "dtype": "bf16", "impl": "nccl", "k": k, "m": m, "n": 1000, "ranks": 2}
    flop = Work(2 * 2.0 * m * 1000 * k, "FLOP", None, "2·m·n·k on all ranks", no_peak="a step")
    bus = Work(2.0 * m * 1000 / (1 if op == "gemm_all_reduce" else 2), "B", None, "bus bytes", no_peak="a step")
    works = {"compute": (flop,), "communicate": (bus,)}.get(mode, (flop, bus))
    return Case(op, {**params, "mode": mode}, works)


def record(
    mode: str,
    seconds: float,
    parts: Mapping[str, float],
    power_w: float = 1000.0,
    clock_mhz: float | None = 1500.0,
    margin: float = 0.01,
    **of_case,
) -> Record:
    """One mode: its time and its parts', each with an interval of that margin on either side."""
    made = case(mode, **of_case)

    def time(name: str, value: float) -> Metric:
        return Metric(name, value, "s", "lower", value * (1 - margin), value * (1 + margin))

    return Record(
        made.key,
        "overlap",
        made,
        "measured",
        samples=Samples((seconds,) * 4, 1, 4 * seconds, "cuda_event", "stream", rank_seconds=(seconds, seconds)),
        telemetry=Telemetry(sm_clock_mhz=clock_mhz, power_w=power_w),
        metrics=(
            hand_made.rate(made.work[0].amount / seconds, f"{made.work[0].unit}/s", label=made.work[0].label),
            time("time", seconds),
            replace(time("time_p50", seconds), low=None, high=None),
            *(time(f"time.{part}", value) for part, value in parts.items()),
            Metric("power", power_w, "W"),
        ),
        wall_s=4.0,
    )


def step(
    compute: float = 4e-3, communicate: float = 2e-3, overlap: float = 4.5e-3, margin: float = 0.01, **of_case
) -> tuple[Record, ...]:
    """Four modes: 1.5 of 2 ms are hidden, while the GEMM takes a tenth longer at nine tenths of the clock."""
    gemm, collective = {"gemm": compute}, {"collective": communicate}
    beside = {"gemm": 1.1 * compute, "collective": 1.25 * communicate}
    return (
        record("compute", compute, gemm, 1400.0, 1500.0, margin, **of_case),
        record("overlap", overlap, beside, 1300.0, 1350.0, margin, **of_case),
        record("serial", compute + communicate, {**gemm, **collective}, 1100.0, 1600.0, margin, **of_case),
        record("communicate", communicate, collective, 600.0, 1980.0, margin, **of_case),
    )


def run(*records: Record, run_id: str = "r1") -> Run:
    """A run on a GPU that holds these records and one of another family."""
    return hand_made.ruled_run(hand_made.copy_record(), *records, run_id=run_id)


def swept_run() -> Run:
    """Five ratios with an all-reduce that takes 2 ms, equal to the GEMM's time at 1000 FLOP a bus byte; two others."""
    records = []
    for k, hidden in ((250, 0.9), (500, 0.8), (1500, 0.7), (2000, 0.85), (4000, 0.95)):
        compute, communicate = 2e-3 * k / 1000, 2e-3
        records += step(compute, communicate, compute + communicate - hidden * min(compute, communicate), k=k)
    for k in (500, 4000):
        compute, communicate = 4e-3 * k / 1000, 2e-3
        of_case = {"op": "gemm_all_to_all", "k": k, "m": 2000}
        records += step(compute, communicate, compute + communicate - 0.75 * min(compute, communicate), **of_case)
    return run(*records)
