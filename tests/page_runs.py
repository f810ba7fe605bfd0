"""Runs for the tests of the page: one with every section, one whose every free text is an attack, and large sets."""

from dataclasses import replace

from harness.model import Case, Fact, Metric, PeakSheet, Record, Run, Samples, Telemetry, Work, Worker
from harness.report.views import Source
from tests import hand_made

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

_TIMELINE = {
    "time_s": (0.0, 0.1, 0.2),
    "power_w": (690.0, 700.0, 710.0),
    "nvml_sm_clock_mhz": (1500.0, None, 1470.0),
    "temperature_c": (59.0, 60.0, 61.0),
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
        Metric("energy_per_work", 1.0e-12, "J/FLOP", "lower"),
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
        Metric("energy_per_work", 140e-12, "J/B", "lower"),
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
    run = hand_made.gpu_run(
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
        workers=(Worker(0, ATTACK, ATTACK),),
        order=replace(run.order, profile=ATTACK, only=(ATTACK,), declare=ATTACK, label=ATTACK),
        partial=ATTACK,
    )


def large_source(number: int, cases: int = 100, samples: int = 20) -> Source:
    """A set of one run of many cases, each with a time line."""
    timeline = {name: tuple(float(i) for i in range(samples)) for name in _TIMELINE}
    records = [
        replace(record, telemetry=replace(record.telemetry or Telemetry(), timeline=timeline))
        for record in (
            *(gemm("torch", n) for n in range(1, cases // 2 + 1)),
            *(copy(n) for n in range(1, cases // 2 + 1)),
        )
    ]
    return Source((hand_made.gpu_run(*records, run_id=f"r{number}"),), (f"run-{number}.json",), f"set {number}")


def _measured(family: str, case: Case, seconds: float, *metrics: Metric) -> Record:
    telemetry = Telemetry(
        settled=True,
        sm_clock_mhz=1336.0,
        nvml_sm_clock_mhz=1470.0,
        power_w=690.0,
        power_limit_w=700.0,
        limited_by="power",
        timeline=_TIMELINE,
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
