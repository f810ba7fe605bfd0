"""Sets made by hand for the tests of comparing: two cards whose figures can be divided in the head."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from harness.compare import Set, set_of
from harness.model import Case, Fact, Metric, Peak, PeakSheet, Record, Run, Samples, Telemetry, Work
from tests import hand_made

COPY = hand_made.COPY
READ = Case("read", {"bytes": 2**32}, (Work(4e9, "B", "memory", "read"),))
GEMM = hand_made.GEMM
LATENCY = Case("all_reduce", {"bytes": 8}, (Work(8, "B", None, "bus"),), kind="latency")
H2D = Case("memcpy", {"direction": "h2d"}, (Work(1e9, "B", "host_link", "one way"),))

OLD_SHEET = PeakSheet(
    "Old", "exact", peaks={"memory": Peak(2e12, "B", "read", ""), "bf16": Peak(5e14, "FLOP", "read", "")}
)
NEW_SHEET = PeakSheet(
    "New", "exact", peaks={"memory": Peak(4e12, "B", "read", ""), "bf16": Peak(2e15, "FLOP", "read", "")}
)
NO_SHEET = PeakSheet(None, "none", "no entry for 'NVIDIA Test' in harness/specs.toml")

HOSTILE = "<script>alert(1)</script>\x1b[31m[bold]red[/bold]|`\u202e" + "x" * 300


def samples(seconds: float) -> Samples:
    """Two groups of ten launches."""
    return Samples((seconds, seconds), 10, 20 * seconds, "events", "stream")


def record(
    case: Case, family: str, rate: float, joules: float | None = None, share: float | None = None, **telemetry: object
) -> Record:
    """A measured case with that headline: a rate, or for a latency a time in seconds."""
    is_latency = case.kind == "latency"
    seconds = rate if is_latency else case.work[0].amount / rate
    unit = case.work[0].unit
    headline = (
        Metric("time_p50", rate, "s", "lower")
        if is_latency
        else Metric("rate", rate, f"{unit}/s", "higher", label=case.work[0].label)
    )
    energy = Metric("energy_per_work", joules, f"J/{unit}", reason="" if joules else "no power")
    ratio = Metric(
        "at_clock_ratio", 0.9 if unit == "FLOP" else None, "ratio", reason="" if unit == "FLOP" else "memory"
    )
    spec = Metric("spec_ratio", share, "ratio", "higher", reason="" if share or not is_latency else "a latency")
    watched = Telemetry(**{"settled": True, "limited_by": "none", **telemetry})  # type: ignore[arg-type]
    return Record(
        case.key,
        family,
        case,
        "measured",
        samples=samples(seconds),
        telemetry=watched,
        metrics=(headline, spec, ratio, energy),
    )


def run(
    *records: Record,
    run_id: str = "r",
    name: str = "NVIDIA Test",
    sheet: PeakSheet = OLD_SHEET,
    card: str | None = "c0ffee",
    limit_w: float = 700.0,
    declare: str = "",
    label: str = "",
) -> Run:
    """A run of one card."""
    made = hand_made.gpu_run(*records, run_id=run_id)
    facts: Mapping[str, Fact] = {"card": Fact(card), "power_limit_w": Fact(limit_w)}
    return replace(
        made,
        device=replace(made.device, name=name),
        sheet=sheet,
        environment={**made.environment, **facts},
        order=replace(made.order, declare=declare, label=label),
        site_key="site" if card else "",
    )


def old(*extra: Record) -> Run:
    """1 TB/s of 2, 250 TFLOP/s of 500, an all-reduce of 8 us."""
    records = (
        record(COPY, "memory", 1e12, 2e-10, 0.5),
        record(GEMM, "gemm", 2.5e14, 2e-12, 0.5),
        record(LATENCY, "links", 8e-6),
    )
    return run(*records, *extra, run_id="old", name="NVIDIA Old")


def new(*extra: Record) -> Run:
    """3 TB/s of 4, 800 TFLOP/s of 2000, an all-reduce of 4 us: promised 2x and 4x, delivered 3x, 3.2x and 2x."""
    records = (
        record(COPY, "memory", 3e12, 1e-10, 0.75),
        record(GEMM, "gemm", 8e14, 1e-12, 0.4),
        record(LATENCY, "links", 4e-6),
    )
    return run(*records, *extra, run_id="new", name="NVIDIA New", sheet=NEW_SHEET, card="decaf")


def two_sets() -> tuple[Set, Set]:
    """The old card and the new one, which has a read besides."""
    return set_of("old", [old()]), set_of("new", [new(record(READ, "memory", 3.6e12))])


def cards(rates: Sequence[float], **odd: object) -> list[Set]:
    """A fleet with these copy rates; the last card's telemetry is another's."""
    usual = {
        "sm_clock_mhz": 1980.0,
        "temperature_end_c": 60.0,
        "power_limit_w": 700.0,
        "throttle_ratio": {"board": 0.0},
    }
    sets = []
    for number, rate in enumerate(rates):
        watched = usual | (odd if number == len(rates) - 1 else {})
        made = run(record(COPY, "memory", rate, **watched), card=f"card{number}", label=f"rack {number}")
        sets.append(set_of(f"s{number}", [made]))
    return sets
