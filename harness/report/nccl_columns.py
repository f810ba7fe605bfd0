"""Collectives in nccl-tests' columns, for those who read them daily: one table an operation, as each of its programs.

Times are microseconds a launch, 1 GB/s is 1e9 B/s, and `count` is what each rank gives to or gets from one other, as
nccl-tests prints them. How the launches were made, and what NCCL chose, stand to the right.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from harness.model import Record, Run
from harness.nccl_settings import has_own_world, settings_of, words_of
from harness.report.header import by_machine
from harness.report.text import clean
from harness.statistics import median_of_known

TYPES = {
    "fp64": "double",
    "fp32": "float",
    "fp16": "half",
    "bf16": "bfloat16",
    "fp8_e4m3": "f8e4m3",
    "fp8_e5m2": "f8e5m2",
}
ITEM_BYTES = {
    **{"fp64": 8, "int64": 8, "uint64": 8, "fp32": 4, "int32": 4, "uint32": 4},
    **{"fp16": 2, "bf16": 2, "int8": 1, "uint8": 1, "fp8_e4m3": 1, "fp8_e5m2": 1},
}
_SUMS = ("all_reduce", "reduce_scatter", "reduce")
_ROOTED = ("broadcast", "reduce", "gather", "scatter")
_OF_PARTS = ("all_gather", "reduce_scatter", "all_to_all", "alltoall", "gather", "scatter")
_PLACES = ("out_of_place", "in_place")
_GROUP = "{:>9}{:>8}{:>8}{:>8}"
_LINE = "{:>12}{:>14}{:>10}{:>8}{:>8}"


@dataclass(frozen=True)
class _Program:
    """What one table holds: as one run of an nccl-tests program."""

    op: str
    ranks: str
    impl: str
    launch: str
    settings: str = ""
    where: str = ""

    @property
    def title(self) -> str:
        """The line above the table."""
        where = f", on {self.where}" if self.where else ""
        return f"# {self.op}, {self.ranks} ranks, {self.impl}, launch {self.launch}{self.settings}{where}"


def nccl_lines(runs: Sequence[Run]) -> list[str]:
    """Every collective that was measured; medians over runs of one card and environment. Empty where none was."""
    programs: dict[_Program, dict[tuple[int, str], dict[str, list[Record]]]] = {}
    for where, record in ((where, record) for where, alike in by_machine(runs) for r in alike for record in r.measured):
        params = record.case.params
        size, dtype = params.get("bytes"), str(params.get("dtype"))
        told = params.get("ranks")
        if (
            not isinstance(told, int)
            or told < 1
            or "mode" in params
            or not isinstance(size, int)
            or dtype not in ITEM_BYTES
        ):
            continue
        ranks, impl, launch = (clean(params.get(name, "queued")) for name in ("ranks", "impl", "launch"))
        is_own = has_own_world(record.case)
        settings = f", ranks of its own: {clean(words_of(settings_of(record.case)))}" if is_own else ""
        program = _Program(clean(record.case.op), ranks, impl, launch, settings, where)
        place = str(params.get("buffers", "in_place"))
        programs.setdefault(program, {}).setdefault((size, dtype), {}).setdefault(place, []).append(record)
    return [line for program, rows in programs.items() for line in _table(program, rows)]


def _table(program: _Program, rows: Mapping[tuple[int, str], Mapping[str, Sequence[Record]]]) -> Iterator[str]:
    yield from ("", program.title)
    yield "#" + " " * 51 + f"{'out-of-place':>23}{'in-place':>33}"
    heads, units = ("time", "algbw", "busbw", "#wrong"), ("(us)", "(GB/s)", "(GB/s)", "")
    ends = f"  {'algorithm':<14} {'protocol':<8} channels"
    yield "#" + (_LINE.format("size", "count", "type", "redop", "root") + _GROUP.format(*heads) * 2)[1:] + ends
    yield ("#" + (_LINE.format("(B)", "(elements)", "", "", "") + _GROUP.format(*units) * 2)[1:]).rstrip()
    for (size, dtype), places in sorted(rows.items(), key=lambda row: (row[0][1] != "fp32", row[0][1], row[0][0])):
        yield _row(program, size, dtype, places)


def _row(program: _Program, size: int, dtype: str, places: Mapping[str, Sequence[Record]]) -> str:
    parts = int(program.ranks) if program.op in _OF_PARTS and program.ranks.isdecimal() else 1
    line = _LINE.format(
        size,
        size // ITEM_BYTES[dtype] // parts,
        TYPES.get(dtype, dtype),
        "sum" if program.op in _SUMS else "none",
        0 if program.op in _ROOTED else -1,
    )
    line += "".join(_group(places.get(place, ())) for place in _PLACES)
    return f"{line}  {_choice([record for records in places.values() for record in records])}".rstrip()


def _group(records: Sequence[Record]) -> str:
    """Time, both rates and the count of wrong elements; a figure exists only where every check counted none."""
    if not records:
        return _GROUP.format("", "", "", "")
    time_s, algorithm, bus = (_median(records, name) for name in ("time", "rate.algorithm", "rate"))
    wrong = sum(check.worst or 0 for record in records for check in record.checks if check.measure == "exact")
    is_checked = all(record.checks for record in records)
    return _GROUP.format(
        _five_digits(time_s, 1e6), _two_decimals(algorithm), _two_decimals(bus), f"{wrong:.0f}" if is_checked else "N/A"
    )


def _choice(records: Sequence[Record]) -> str:
    """What NCCL chose, where all of the row's records say the same."""
    told = {(t.algorithm, t.protocol, t.channels) for record in records if (t := record.telemetry) is not None}
    if len(told) != 1:
        return ""
    algorithm, protocol, channels = next(iter(told))
    return f"{clean(algorithm):<14} {clean(protocol):<8} {'' if channels is None else channels}" if algorithm else ""


def _median(records: Sequence[Record], name: str) -> float | None:
    return median_of_known(m.value for record in records if (m := record.metric(name)))


def _five_digits(value: float | None, scale: float) -> str:
    """As nccl-tests: two decimals, fewer where the number has more than four digits before the point."""
    if value is None:
        return "N/A"
    scaled = value * scale
    return f"{scaled:.{2 if scaled < 1e4 else 1 if scaled < 1e5 else 0}f}"


def _two_decimals(rate_bytes_per_s: float | None) -> str:
    return "N/A" if rate_bytes_per_s is None else f"{rate_bytes_per_s / 1e9:.2f}"
