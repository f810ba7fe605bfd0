"""nccl-tests' text tables and its JSON (`-J`, versions 1 to 3) as figures of ours.

Times are microseconds a call, with what launching costs amortised over the calls of a loop; `size` is the larger of
what one rank sends and receives; algorithm bandwidth is size / time, bus bandwidth that times a factor of the
collective and the number of ranks, so that it can be held against a link whatever the number.
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from harness import specs
from harness.errors import HarnessError
from harness.importers.recording import LONGEST_LINE, Figure, Recording, json_objects, number, plain_lines
from harness.model import Check, Fact, Param, Work

PROTOCOL = "nccl-tests"
EXPECTED = "nccl-tests: its table ('size count type redop root time algbw busbw') or its JSON ('results')"

MOST_US = 1e9
MOST_BYTES = 2**50
# Printed times have 2 decimals or 5 digits, rates 2 decimals: more than that apart, a row was damaged.
CONSISTENT_RATIO = 0.02
CONSISTENT_GB_PER_S = 0.006

# Share of the size that crosses each rank's link, by the number of ranks.
FACTORS: Mapping[str, Callable[[int], float]] = {
    "all_reduce": lambda n: 2 * (n - 1) / n,
    "all_gather": lambda n: (n - 1) / n,
    "reduce_scatter": lambda n: (n - 1) / n,
    "alltoall": lambda n: (n - 1) / n,
    "gather": lambda n: (n - 1) / n,
    "scatter": lambda n: (n - 1) / n,
    "broadcast": lambda n: 1.0,
    "reduce": lambda n: 1.0,
    "sendrecv": lambda n: 1.0,
}
DTYPES = {
    "int8": "int8",
    "uint8": "uint8",
    "int32": "int32",
    "uint32": "uint32",
    "int64": "int64",
    "uint64": "uint64",
    "half": "fp16",
    "float": "fp32",
    "double": "fp64",
    "bfloat16": "bf16",
    "fp8_e4m3": "fp8_e4m3",
    "f8e4m3": "fp8_e4m3",
    "fp8_e5m2": "fp8_e5m2",
    "f8e5m2": "fp8_e5m2",
}
REDOPS = ("sum", "prod", "max", "min", "avg", "mulsum", "none")
PLACES = ("out_of_place", "in_place")
NO_PEAK = "the algorithm that the library chose is not known"

_ROW = re.compile(
    rf"(?<!\S)(\d{{1,16}})\s+(\d{{1,16}})\s+({'|'.join(sorted(DTYPES, key=len, reverse=True))})(?!\S)"
    rf"(?:\s+({'|'.join(REDOPS)})(?!\S))?(.*)$"
)
_TOKEN = re.compile(r"-?(?:\d+(?:\.\d+)?(?:[eE][+-]?\d+)?|N/A|nan|inf)")
_HEADER = re.compile(r"nThread\s+(\d+)\s+nGpus\s+(\d+)\b")
_SETTING = {
    "iters": re.compile(r"(?<!warmup )\biters:\s*(\d+)"),
    "aggregated": re.compile(r"\bagg iters:\s*(\d+)"),
    "graph": re.compile(r"\bgraph:\s*(\d+)"),
}
_RANK = re.compile(
    r"\bRank\s+(\d+)\s+(?:Group\s+\d+\s+)?Pid\s+\d+\s+on\s+(\S+)\s+device\s+\d+\s+\[[^\]]{0,40}\]\s+(.*)$"
)
_COLUMNS = re.compile(r"\bsize\s+count\s+type\b.*\btime\b.*\bbusbw\s+(#wrong|error)")
_PROGRAM = re.compile(rf"(?<![a-z_])({'|'.join((*FACTORS, 'alltoallv', 'hypercube'))})_perf(?:_mpi)?\b")
_SUMMARY = re.compile(r"Avg bus bandwidth\s*:")
_OUT_OF_BOUNDS = re.compile(r"Out of bounds values\s*:\s*(\d{1,12})")
_FAILURE = re.compile(r"Test (?:NCCL |CUDA )?failure")
_LIBRARY = re.compile(r'(?:nccl-library=|"nccl_version"\s*:\s*)(\d{4,6})\b|NCCL version (\d+\.\d+\.\d+)\b')
_JSON_RESULT = re.compile(r'\{\s*"(?:size|actual_iterations|count|experiment_name|in_place)"')
_JSON_ARGS = re.compile(r'"args"\s*:\s*\[\s*"([^"]*)"')


@dataclass
class _Table:
    """What the lines above a table say of it."""

    op: str = ""
    ranks: set[int] = field(default_factory=set)
    hosts: set[str] = field(default_factory=set)
    ranks_at_least: int = 0
    settings: dict[str, int] = field(default_factory=dict)
    counts_wrong: bool = True
    has_root: bool | None = None
    is_per_iteration: bool = False
    rows: list["_Row"] = field(default_factory=list)
    out_of_bounds: int = 0
    is_whole: bool = False
    has_failed: bool = False


@dataclass(frozen=True)
class _Row:
    """One size, in place or not; `wrong` is `None` where nothing was checked."""

    size: int
    dtype: str
    redop: str
    root: int
    place: str = ""
    time_us: float | None = None
    algorithm_gb_per_s: float | None = None
    bus_gb_per_s: float | None = None
    wrong: float | None = None
    is_damaged: bool = False


def is_ours(text: str) -> bool:
    """Whether this looks like nccl-tests' output at all."""
    return bool(re.search(r"nccl-tests|\balgbw\b|\"alg_bw\"|\bminBytes\b|[a-z]_perf\b", text))


def parse(text: str, collective: str = "") -> Recording:
    """Every figure in the text; none of them where it is not nccl-tests'. `collective` names what the text does not."""
    lines = plain_lines(text)
    results = json_objects(lines, _is_result, _JSON_RESULT)
    tables = [_json_table(lines, results)] if results else _text_tables(lines)
    tables = [table for table in tables if table.rows]
    said = "\n".join(lines)
    named = frozenset(name for name in _gpu_names(lines, said) if specs.find(name) is not None)
    return Recording(
        figures=tuple(figure for table in tables for figure in _figures(table, collective)),
        environment=_environment(said),
        gpu_names=named,
        gpu_count=max((_ranks(table, collective) or 0 for table in tables), default=0),
        partial=_partial(tables),
    )


def works(op: str, size_bytes: int, ranks: int | None, bus_ratio: float | None = None) -> tuple[Work, Work]:
    """Bus and algorithm bytes of one call; `bus_ratio` stands in where the number of ranks is not known."""
    factor = FACTORS[op](ranks) if ranks and op in FACTORS else bus_ratio or 1.0
    return (
        Work(factor * size_bytes, "B", None, "bus", no_peak=NO_PEAK),
        Work(size_bytes, "B", None, "algorithm", no_peak="no link carries the algorithm's bytes"),
    )


def _partial(tables: Sequence[_Table]) -> str:
    if any(table.has_failed for table in tables):
        return "nccl-tests reports a failure, so sizes are missing"
    if any(not table.is_whole for table in tables):
        return "the recording ends before the table's summary"
    return ""


def _gpu_names(lines: Sequence[str], text: str) -> Iterator[str]:
    for line in lines:
        if len(line) <= LONGEST_LINE and (match := _RANK.search(line)):
            yield match[3].strip()
    yield from re.findall(r'"device_info"\s*:\s*"([^"]{1,80})"', text)


def _environment(text: str) -> dict[str, Fact]:
    library = _LIBRARY.search(text)
    if not library:
        return {}
    if library[2]:
        return {"nccl": Fact(library[2])}
    code = int(library[1])
    # NCCL_VERSION: before 2.9 major*1000 + minor*100 + patch, after it major*10000 + minor*100 + patch.
    major = code // 10000 if code >= 10000 else code // 1000
    return {"nccl": Fact(f"{major}.{code % (10000 if code >= 10000 else 1000) // 100}.{code % 100}")}


# Reading


def _text_tables(lines: Sequence[str]) -> list[_Table]:
    tables = [_Table()]
    program = ""
    for line in lines:
        if len(line) > LONGEST_LINE:
            continue
        if match := _PROGRAM.search(line):
            program = match[1]
        if match := _HEADER.search(line):
            # Every rank of an MPI run may print it: a new table begins only after rows.
            if tables[-1].rows:
                tables.append(_Table())
            _read_header(tables[-1], line, match)
        _read_line(tables[-1], line)
        if not tables[-1].rows or not tables[-1].op:
            tables[-1].op = program or tables[-1].op
    return tables


def _read_header(table: _Table, line: str, match: "re.Match[str]") -> None:
    table.ranks_at_least = _small(match[1]) * _small(match[2])
    for name, pattern in _SETTING.items():
        if found := pattern.search(line):
            table.settings[name] = _small(found[1])


def _small(digits: str) -> int:
    return int(digits[:6])


def _read_line(table: _Table, line: str) -> None:
    if match := _RANK.search(line):
        table.ranks.add(_small(match[1]))
        table.hosts.add(match[2])
    elif match := _COLUMNS.search(line):
        table.counts_wrong = match[1] == "#wrong"
        table.has_root = "root" in line.split()
        table.is_per_iteration = "i_min" in line
    elif match := _OUT_OF_BOUNDS.search(line):
        table.out_of_bounds = int(match[1])
    elif _SUMMARY.search(line):
        table.is_whole = True
    elif _FAILURE.search(line):
        table.has_failed = True
    elif match := _ROW.search(line):
        table.rows.extend(_rows(match, table))


def _rows(match: "re.Match[str]", table: _Table) -> Iterator[_Row]:
    """The groups of a row, out of place and in place; one that a cut or a foreign word ended is damaged."""
    tokens = match[5].split()
    numbers = tokens[: next((n for n, token in enumerate(tokens) if not _TOKEN.fullmatch(token)), len(tokens))]
    # Older versions have no root; without the column's title, the count of numbers tells.
    has_root = len(numbers) % 4 == 1 if table.has_root is None else table.has_root
    root = int(numbers[0]) if has_root and numbers and re.fullmatch(r"-?\d{1,6}", numbers[0]) else -1
    numbers = numbers[1:] if has_root else numbers
    width = 8 if table.is_per_iteration else 4
    # Where nothing is done out of place, its columns are blank.
    is_in_place_alone = len(numbers) == width and re.match(r"\s+(?:-?\d+)?\s{20,}\S", match[5]) is not None
    empty = _Row(int(match[1]), DTYPES[match[3]], match[4] or "none", root)
    for place, start in (("in_place", 0),) if is_in_place_alone else ((PLACES[0], 0), (PLACES[1], width)):
        group = numbers[start : start + width]
        if len(group) < width:
            yield replace(empty, place=place, is_damaged=True)
            continue
        time, algorithm, bus, wrong = group[:4]
        yield replace(
            empty,
            place=place,
            time_us=number(time, MOST_US),
            algorithm_gb_per_s=_rate(algorithm),
            bus_gb_per_s=_rate(bus),
            wrong=_wrong(wrong) if table.counts_wrong else None,
        )


def _rate(value: object) -> float | None:
    """A rate of 0.00 is one too: that of 8 bytes."""
    return 0.0 if _is_zero(value) else number(value, 1e6)


def _wrong(value: object) -> float | None:
    return 0.0 if _is_zero(value) else number(value, 2.0**63)


def _is_zero(value: object) -> bool:
    return not isinstance(value, bool) and str(value)[:20] in ("0", "0.0", "0.00", "0.000000", "0e+00")


def _is_result(data: dict[str, Any]) -> bool:
    return "size" in data and "type" in data and any(isinstance(data.get(place), dict) for place in PLACES)


def _json_table(lines: Sequence[str], results: Sequence[Mapping[str, Any]]) -> _Table:
    """One document's results; only named fields are looked at, since `env` holds all of the process's variables."""
    text = "\n".join(lines)
    table = _Table()
    arguments = _JSON_ARGS.search(text)
    program = _PROGRAM.search(arguments[1] if arguments else "")
    table.op = program[1] if program else ""
    for name, word in (("iters", "iterations"), ("aggregated", "aggregated_iterations"), ("graph", "graph")):
        if found := re.search(rf'"{word}"\s*:\s*(\d{{1,6}})', text):
            table.settings[name] = int(found[1])
    table.hosts = set(re.findall(r'"hostname"\s*:\s*"([^"]*)"', text))
    per_process = [re.search(rf'"{name}"\s*:\s*(\d{{1,6}})', text) for name in ("nthreads", "ngpus")]
    processes = len(re.findall(r'"device_hex"\s*:', text))
    # Each process lists its first device only.
    threads, gpus = (int(found[1]) if found else 1 for found in per_process)
    table.ranks_at_least = threads * gpus
    table.ranks = set(range(processes * threads * gpus)) if processes * threads * gpus <= 10_000 else set()
    table.is_whole = '"average_bus_bandwidth"' in text
    errors = re.search(r'"errors"\s*:\s*\[\s*"([^"]*)"', text)
    table.has_failed = errors is not None and errors[1] not in ("", "no error")
    for result in results:
        table.rows.extend(_json_rows(result))
    return table


def _json_rows(result: Mapping[str, Any]) -> Iterator[_Row]:
    size, dtype = number(result.get("size"), MOST_BYTES), DTYPES.get(str(result.get("type")).strip())
    if size is None or dtype is None:
        return
    redop, root = str(result.get("redop", "none")).strip(), str(result.get("root", -1)).strip()
    for place in PLACES:
        body = result.get(place)
        if isinstance(body, dict):
            yield _Row(
                int(size),
                dtype,
                redop if redop in REDOPS else "none",
                int(root) if re.fullmatch(r"-?\d{1,6}", root) else -1,
                place,
                number(body.get("time"), MOST_US),
                _rate(body.get("alg_bw")),
                _rate(body.get("bus_bw")),
                _wrong(body.get("nwrong")),
            )


# Figures


def _figures(table: _Table, collective: str) -> Iterator[Figure]:
    op = _op(table, collective)
    ranks = _ranks(table, collective)
    for row in table.rows:
        if 0 < row.size <= MOST_BYTES:
            yield _figure(table, row, op, ranks)


def _op(table: _Table, collective: str) -> str:
    op = table.op or collective
    if op:
        return op
    raise HarnessError(
        "the recording does not say which collective it is of. Add --collective all_reduce (or the one that was run)."
    )


def _ranks(table: _Table, collective: str) -> int | None:
    """Ranks by the list of devices where the bandwidths agree with it, else as the bandwidths' ratio tells."""
    op = table.op or collective
    listed = max(len(table.ranks), table.ranks_at_least)
    ratio = _bus_ratio(table)
    if op not in FACTORS or ratio is None:
        return listed or None
    if listed and abs(FACTORS[op](listed) - ratio) < 0.01:
        return listed
    told = [n for n in range(2, 129) if abs(FACTORS[op](n) - ratio) < 0.002]
    return told[0] if len(told) == 1 else None


def _bus_ratio(table: _Table) -> float | None:
    """Bus over algorithm bandwidth, from the fastest row: the one whose printed digits say most."""
    pairs = [
        (row.algorithm_gb_per_s, row.bus_gb_per_s)
        for row in table.rows
        if row.algorithm_gb_per_s and row.bus_gb_per_s is not None and not row.is_damaged and _agrees(row)
    ]
    fastest = max(pairs, default=None)
    return fastest[1] / fastest[0] if fastest and fastest[0] >= 1.0 else None


def _agrees(row: _Row) -> bool:
    """Whether size, time and algorithm bandwidth of a row tell the same."""
    if row.time_us is None or row.algorithm_gb_per_s is None:
        return False
    expected = row.size / row.time_us / 1e3
    return abs(row.algorithm_gb_per_s - expected) <= CONSISTENT_GB_PER_S + CONSISTENT_RATIO * expected


def _figure(table: _Table, row: _Row, op: str, ranks: int | None) -> Figure:
    params: dict[str, Param] = {
        "bytes": row.size,
        "dtype": row.dtype,
        "impl": "nccl",
        "ranks": ranks or "unknown",
        "hosts": max(1, len(table.hosts)),
        "redop": row.redop,
        "root": max(0, row.root),
        "launch": "graph" if table.settings.get("graph") else "loop",
        "protocol": PROTOCOL,
    }
    figure = Figure(
        op,
        "collectives",
        params | {"buffers": row.place},
        works(op, row.size, ranks, _bus_ratio(table)),
        defaults={"hosts": 1, "redop": _usual_redop(op), "root": 0, "launch": "loop"},
        launches=max(1, table.settings.get("iters", 1) * table.settings.get("aggregated", 1)),
    )
    return _judged(figure, table, row, op)


def _usual_redop(op: str) -> str:
    return "sum" if op in ("all_reduce", "reduce_scatter", "reduce") else "none"


def _judged(figure: Figure, table: _Table, row: _Row, op: str) -> Figure:
    """With its time if the row is whole, right and in itself consistent; else why not."""
    if row.is_damaged or row.time_us is None:
        return replace(figure, outcome="failed", reason="this row of the recording is cut or holds no time")
    if row.wrong:
        check = Check("after", "exact", False, row.wrong, 0.0, "nccl-tests' own")
        reason = f"wrong result: {row.wrong:.0f} elements, by nccl-tests' own check"
        return replace(figure, outcome="failed", reason=reason, checks=(check,))
    if not table.counts_wrong and table.out_of_bounds:
        reason = f"wrong results: {table.out_of_bounds} values out of bounds in this table, in which rows is not said"
        return replace(figure, outcome="failed", reason=reason)
    if op in FACTORS and not _agrees(row):
        return replace(figure, outcome="failed", reason="size, time and bandwidth of this row contradict each other")
    seconds = (row.time_us * 1e-6,)
    if row.wrong is None and table.counts_wrong:
        return replace(figure, seconds=seconds, warnings=("unchecked: nccl-tests ran without its check of results",))
    checks = (Check("after", "exact", True, 0.0, 0.0, "nccl-tests' own"),) if table.counts_wrong else ()
    return replace(figure, seconds=seconds, checks=checks)
