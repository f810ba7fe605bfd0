"""Runs for the tests of the page: one with every section, one whose every free text is an attack, and large sets."""

import functools
from collections.abc import Mapping
from dataclasses import replace

from harness.model import Case, Fact, Metric, PeakSheet, Record, Ruler, RulerPart, Run, Samples, Telemetry, Work, Worker
from harness.report.views import Source
from tests import hand_made, soaks

LONG = "long" * 5000

# What a page, a terminal, rich, plotly or a spreadsheet could be made to run or to load.
ATTACKS = (
    "<script>window.hacked = 1</script>",
    "</script><script>window.hacked = 2</script>",
    '"><img src=x onerror="window.hacked = 3">',
    "<svg onload=window.hacked=4>",
    "</title></style></table><h1 id=intruder>",
    '<a href="javascript:window.hacked=5">click</a>',
    "{{ 7 * 7 }}{% raw %}",
    "\x1b[31mred\x1b[0m \u202eright to left",
    "[bold red]rich[/bold red] [link=https://evil.example]x[/link]",
    '=HYPERLINK("https://evil.example")',
    "var:--text",
    "%{x}<extra>",
    LONG,
)
ATTACK = " ".join(ATTACKS)

# What a file of schema 1 holds: windows alone, and no true clock of each moment.
OLD_TIMELINE = {
    "time_s": (0.0, 0.1, 0.2),
    "power_w": (690.0, 700.0, 710.0),
    "nvml_sm_clock_mhz": (1500.0, None, 1470.0),
    "temperature_c": (59.0, 60.0, 61.0),
}


def timeline(seconds: float) -> dict[str, tuple[float | None, ...]]:
    """What a file of schema 2 holds of launches of that length: 0.2 s of settling, from twice the rate, and 0.2 s."""
    return {
        "time_s": (-0.2, -0.1, 0.0, 0.1, 0.2),
        "power_w": (400.0, 650.0, 690.0, 700.0, 710.0),
        "sm_clock_mhz": (1935.0, 1500.0, 1336.0, None, 1336.0),
        "nvml_sm_clock_mhz": (1980.0, 1600.0, 1500.0, None, 1470.0),
        "temperature_c": (57.0, 58.0, 59.0, 60.0, 61.0),
        "launch_s": (seconds / 2, seconds / 1.25, seconds, None, seconds),
    }


def burst(seconds: float) -> dict[str, tuple[float | None, ...]]:
    """The first second from idle of launches that take that long in the end: from 1.25 times the rate."""
    return {
        "time_s": (0.0, 0.25, 0.5, 0.75, 1.0),
        "launch_s": (seconds / 1.25, seconds / 1.1, None, seconds, seconds),
        "sm_clock_mhz": (1935.0, 1500.0, 1400.0, 1340.0, 1336.0),
    }


def gemm(impl: str, n: int = 8192, dtype: str = "bf16", rate_flop_per_s: float = 6.7e14) -> Record:
    """A GEMM at two thirds of a peak of 1 PFLOP/s: 92 % of what 73 % of the clock allow."""
    flop = 2.0 * 8192 * 8192 * n
    case = Case(
        "gemm",
        {"dtype": dtype, "impl": impl, "k": 8192, "m": 8192, "n": n},
        (Work(flop, "FLOP", "bf16", "2·m·n·k"), Work(4e8, "B", "memory", "operands and result once")),
    )
    share = rate_flop_per_s / 1e15
    return _measured(
        "gemm",
        case,
        flop / rate_flop_per_s,
        Metric("rate", rate_flop_per_s, "FLOP/s", "higher", rate_flop_per_s * 0.99, rate_flop_per_s * 1.01, "2·m·n·k"),
        Metric("spec_ratio", share, "ratio", "higher", share * 0.99, share * 1.01, "bf16"),
        Metric("at_clock_ratio", share / 0.73, "ratio", "higher", label="bf16"),
        Metric("clock_ratio", 0.73, "ratio", label="of 1830 MHz"),
        hand_made.joules("energy_per_work", 1.0e-12, "J/FLOP", 0.002),
        hand_made.joules("energy_net_per_work", 0.8e-12, "J/FLOP", 0.003),
        burst=burst(flop / rate_flop_per_s),
    )


def copy(size_bytes: int, rate_bytes_per_s: float = 3e12) -> Record:
    """A copy at three quarters of a memory of 4 TB/s."""
    case = Case(
        "copy", {"bytes": size_bytes, "impl": "torch"}, (Work(2.0 * size_bytes, "B", "memory", "read + written"),)
    )
    share = rate_bytes_per_s / 4e12
    return _measured(
        "memory",
        case,
        2 * size_bytes / rate_bytes_per_s,
        hand_made.rate(rate_bytes_per_s, label="read + written"),
        Metric("spec_ratio", share, "ratio", "higher", share * 0.99, share * 1.01, "memory"),
        hand_made.joules("energy_per_work", 140e-12, "J/B", 0.005),
    )


def all_reduce(size_bytes: int, rate_bytes_per_s: float) -> Record:
    """An all-reduce over two GPUs."""
    case = Case(
        "all_reduce",
        {"bytes": size_bytes, "dtype": "fp32", "impl": "nccl", "ranks": 2},
        (Work(float(size_bytes), "B", None, "bus", no_peak="the algorithm is not known"),),
    )
    seconds = size_bytes / rate_bytes_per_s
    return _measured("collectives", case, seconds, hand_made.rate(rate_bytes_per_s, label="bus"))


def full_source(label: str = "", run_id: str = "r1", factor: float = 1.0) -> Source:
    """A set of one run in which every section of the page has something to show."""
    run = hand_made.ruled_run(
        gemm("torch", rate_flop_per_s=6.6e14 * factor),
        gemm("triton", rate_flop_per_s=6.7e14 * factor),
        copy(2**28, 2.8e12 * factor),
        copy(2**30, 3.0e12 * factor),
        all_reduce(8, 1.3e6),
        all_reduce(2**30, 3.0e11 * factor),
        hand_made.without_figure(hand_made.gemm_case(impl="other"), "gemm", "failed", "wrong result: 10 dB"),
        run_id=run_id,
    )
    return Source((replace(run, device=replace(run.device, l2_bytes=60 * 2**20)),), ("run-001.json",), label)


@functools.cache
def soak_records() -> tuple[Record, ...]:
    """A GEMM that warms up and throttles for a moment, and a copy that does neither, for four minutes each."""
    run = hand_made.gpu_run()
    return tuple(
        soaks.soak_record(soaks.soak_case(op), script, run.device, run.sheet)
        for op, script in (("soak_gemm", soaks.warming), ("soak_copy", soaks.streaming))
    )


def soak_source(label: str = "", run_id: str = "r1") -> Source:
    """A set of one soak."""
    run = hand_made.ruled_run(*soak_records(), run_id=run_id)
    return Source((replace(run, order=replace(run.order, profile="soak")),), ("run-001.json",), label)


def old_source(label: str = "") -> Source:
    """The same as a file of schema 1 holds it: no ruler, no burst, no settling, no interval of the energy."""
    (run,) = full_source().runs
    records = tuple(
        replace(
            record,
            telemetry=_old_telemetry(record.telemetry or Telemetry()),
            metrics=tuple(
                replace(m, low=None, high=None, systematic_ratio=None) if m.name == "energy_per_work" else m
                for m in record.metrics
                if m.name != "energy_net_per_work"
            ),
        )
        for record in run.measured
    )
    workers = tuple(replace(worker, ruler=None) for worker in run.workers)
    return Source((replace(run, schema_version=1, records=records, workers=workers),), ("run-001.json",), label)


def _old_telemetry(telemetry: Telemetry) -> Telemetry:
    return Telemetry(
        settled=telemetry.settled,
        sm_clock_mhz=telemetry.sm_clock_mhz,
        nvml_sm_clock_mhz=telemetry.nvml_sm_clock_mhz,
        power_w=telemetry.power_w,
        power_limit_w=telemetry.power_limit_w,
        limited_by=telemetry.limited_by,
        timeline=OLD_TIMELINE,
    )


def hostile_run() -> Run:
    """A run in which every text that a file may choose freely attacks its reader."""
    records = [
        replace(
            record,
            family=ATTACK,
            warnings=(ATTACK, *ATTACKS),
            telemetry=replace(record.telemetry or Telemetry(), limited_by=ATTACK, missing={"sm_clock_mhz": ATTACK}),
            metrics=tuple(replace(m, label=ATTACK, reason=ATTACK) for m in record.metrics),
            case=replace(record.case, work=tuple(replace(w, no_peak=ATTACK) for w in record.case.work)),
            predecessor=ATTACK,
        )
        for record in full_source().runs[0].measured
    ]
    failed = [
        hand_made.without_figure(hand_made.gemm_case(n=n), "gemm", "failed", attack) for n, attack in enumerate(ATTACKS)
    ]
    run = hand_made.gpu_run(*records, *failed)
    return replace(
        run,
        run_id=ATTACK,
        created_at=ATTACK,
        suite_version=ATTACK,
        device=replace(run.device, name=ATTACK, l2_bytes=2**20),
        sheet=PeakSheet(ATTACK, "exact", ATTACK, run.sheet.peaks),
        environment={
            "driver": Fact(ATTACK, ATTACK),
            "card": Fact(None, ATTACK),
            **{f"env.{number}{attack}": Fact(attack) for number, attack in enumerate(ATTACKS)},
        },
        workers=(Worker(0, ATTACK, ATTACK, ruler=_hostile_ruler()),),
        order=replace(run.order, profile=ATTACK, only=(ATTACK,), declare=ATTACK, label=ATTACK),
        partial=ATTACK,
    )


def _hostile_ruler() -> Ruler:
    names = (ATTACK, *(f"{kind}_{ATTACK}" for kind in ("spin", "pipe")))
    parts = [RulerPart(name, False, 1.0, unit, 0.0, 2.0, ATTACK) for name in names for unit in ("s", "ratio", ATTACK)]
    return Ruler("off", tuple(replace(part, name=f"{part.name}{n}") for n, part in enumerate(parts)), ATTACK)


def large_source(number: int, cases: int = 100, samples: int = 80) -> Source:
    """A set of one run of many cases, each with a time line of settling and window, and half of them with a burst."""
    columns = {name: tuple(float(i) for i in range(samples)) for name in timeline(1.0)}
    columns["time_s"] = tuple(0.1 * (i - samples // 2) for i in range(samples))
    curve = {name: tuple(float(i + 1) for i in range(50)) for name in burst(1.0)}
    records = [
        replace(
            record,
            telemetry=replace(
                record.telemetry or Telemetry(), timeline=columns, burst=curve if record.family == "gemm" else {}
            ),
        )
        for record in (
            *(gemm("torch", n) for n in range(1, cases // 2 + 1)),
            *(copy(n) for n in range(1, cases // 2 + 1)),
        )
    ]
    return Source((hand_made.ruled_run(*records, run_id=f"r{number}"),), (f"run-{number}.json",), f"set {number}")


def _measured(
    family: str,
    case: Case,
    seconds: float,
    *metrics: Metric,
    burst: Mapping[str, tuple[float | None, ...]] | None = None,
) -> Record:
    telemetry = Telemetry(
        settled=True,
        sm_clock_mhz=1336.0,
        nvml_sm_clock_mhz=1470.0,
        power_w=690.0,
        power_error_w=0.5,
        power_counter_w=690.0,
        power_instant_w=692.0,
        power_samples_w=689.0,
        energy_check_ratio=690 / 692 - 1,
        idle_power_w=120.0,
        power_limit_w=700.0,
        tensor_busy_ratio=0.93 if family == "gemm" else 0.0,
        dram_busy_ratio=0.25,
        limited_by="power",
        timeline=timeline(seconds),
        burst=burst or {},
    )
    return Record(
        case.key,
        family,
        case,
        "measured",
        samples=Samples((seconds,) * 4, 1, 4 * seconds, "events", "stream"),
        telemetry=telemetry,
        metrics=(*metrics, hand_made.time(seconds), Metric("nvml_clock_ratio", 1.1, "ratio")),
    )
