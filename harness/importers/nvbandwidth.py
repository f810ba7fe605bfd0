"""nvbandwidth's JSON (`-j`) and its text tables as figures of ours.

nvbandwidth counts bytes ONE way everywhere, also in `device_local_copy`, whose bytes a data sheet counts twice (read
and written); only its totals of two directions and of several peers are sums. Every key says `counted=`.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from harness import specs
from harness.importers.recording import LONGEST_LINE, Figure, Recording, json_objects, number, plain_lines
from harness.model import Fact, Kind, Outcome, Param, Work
from harness.units import MIB

PROTOCOL = "nvbandwidth"
DEFAULT_BUFFER_MIB = 512
# nvbandwidth's own: 16 copies between two events, the median of 3 such groups.
COPIES_PER_SAMPLE = 16
LATENCY_BUFFER_BYTES = 2 * MIB
MOST_GB_PER_S = 1e6
MOST_NS = 1e9
# Cells are printed with six digits or two decimals.
SUM_RATIO = 1e-4
# Above what PCIe Gen6 x16 carries one way, only NVLink can have carried it.
_PCIE_AT_MOST = specs.pcie_peak(6, 16)

EXPECTED = "nvbandwidth: its JSON ('testcases') or 'Running host_to_device_memcpy_ce.' and tables"

_HOST = re.compile(r"(host_to_device|device_to_host|all_to_host|host_to_all)(_bidirectional)?_memcpy_(ce|sm)")
_PEER = re.compile(r"device_to_device(_bidirectional)?_memcpy_(read|write)_(ce|sm)")
_FAN = re.compile(r"(all_to_one|one_to_all)_(read|write)_(ce|sm)")
_NAME = re.compile(r"[a-z][a-z0-9_]{2,79}")

_RUNNING = re.compile(r"\s*(Running|Waiving)\s+([a-z][a-z0-9_]+)\.?\s*")
_STATUS = re.compile(r"\s*(waived|error|not found)\b.*", re.IGNORECASE)
_FAILURE = re.compile(r"\s*(?:ASSERT in expression|Invalid value when checking|CUDA_ERROR|\[?CUDA_?ERROR|Aborted\b).*")
_TITLE = re.compile(r"\s*\S.*\((?:GB/s|ns)\)\s*")
_COLUMNS = re.compile(r"\s*\d{1,4}(?:\s+\d{1,4})*\s*")
_CELL = r"(?:\d+(?:\.\d+)?(?:[eE][+-]?\d+)?|N/A|nan|-nan|inf)"
_ROW = re.compile(rf"\s*(\d{{1,4}})((?:\s+{_CELL})+)\s*")
# read1, read2, write1, write2, total: the tables of a test of two directions.
_TABLE_SUFFIX = re.compile(r"_(?:(?:read|write)?[12]|total)$")
_SUM = re.compile(r"\s*SUM\s+([a-z][a-z0-9_]+)\s+(\S+)\s*")

_DRIVER = re.compile(r'(?<!CUDA )Driver Version"?\s*:\s*"?(\d+(?:\.\d+){1,3})\b')
_CUDA = re.compile(r'CUDA (?:Runtime|Driver) Version"?\s*:\s*"?(\d{4,6})\b')
_VERSION = re.compile(r'(?:nvbandwidth Version:\s*|"version"\s*:\s*")v?(\d+(?:\.\d+){0,2})\b')
_DEVICE = re.compile(r'(?:Device\s+|device\s+|")(\d{1,3}):\s+([A-Za-z][\w .+/-]*?)\s*(?:\(|"|$)')
_JSON_TEST = re.compile(r'\{\s*"(?:average|bandwidth_description|bandwidth_matrix|error|max|min|name|status|sum)"')


@dataclass(frozen=True)
class _Table:
    """Rows of cells below their title; `total` is the sum that was printed with them."""

    title: str
    rows: tuple[tuple[object, ...], ...] = ()
    total: float | None = None

    @property
    def is_right(self) -> bool:
        """Whether the cells add up: one that was lost or slipped in does not go unseen."""
        columns = max((len(row) for row in self.rows), default=0)
        if any(len(row) != columns for row in self.rows):
            return False
        if self.total is None:
            return True
        # Of two directions and their total, the sum is that of the total.
        rows = self.rows[-columns:] if len(self.rows) > columns else self.rows
        cells = [number(cell, MOST_NS) or 0.0 for row in rows for cell in row]
        return abs(sum(cells) - self.total) <= SUM_RATIO * self.total + 0.01 * len(cells)


@dataclass(frozen=True)
class _Test:
    """One of nvbandwidth's tests as it was printed; JSON has all its rows in one table."""

    name: str
    tables: tuple[_Table, ...] = ()
    outcome: Outcome = "measured"
    reason: str = ""


def is_ours(text: str) -> bool:
    """Whether this looks like nvbandwidth's output at all."""
    return bool(re.search(r"nvbandwidth|bandwidth_matrix|_memcpy_(?:read_|write_)?(?:ce|sm)\b|device_local_copy", text))


def parse(text: str, buffer_mib: int = 0) -> Recording:
    """Every figure in the text; none of them where it is not nvbandwidth's. `buffer_mib` 0: not known, so 512."""
    lines = plain_lines(text)
    tests = json_objects(lines, _is_test, _JSON_TEST)
    found = [_json_test(test) for test in tests] if tests else _text_tests(lines)
    said = "\n".join(lines)
    count = 1 + max((int(match[1]) for match in _DEVICE.finditer(said)), default=-1)
    columns = max((len(row) for test in found for table in test.tables for row in table.rows), default=0)
    return Recording(
        figures=tuple(figure for test in found for figure in _figures(test, buffer_mib)),
        environment=_environment(said),
        gpu_names=frozenset(m[2] for m in _DEVICE.finditer(said) if specs.find(m[2]) is not None),
        gpu_count=max(count, columns),
        partial="" if not tests or _is_closed(lines) else "the recording's JSON is damaged or cut short",
    )


def _is_closed(lines: Sequence[str]) -> bool:
    text = "\n".join(lines)
    return text.count("{") <= text.count("}")


def _environment(text: str) -> dict[str, Fact]:
    facts = {}
    driver, cuda, version = _DRIVER.search(text), _CUDA.search(text), _VERSION.search(text)
    if driver:
        facts["driver"] = Fact(driver[1])
    if cuda:
        # nvbandwidth calls it the runtime's version and asks the driver for it.
        thousands = int(cuda[1])
        facts["cuda_driver"] = Fact(f"{thousands // 1000}.{thousands % 1000 // 10}")
    if version:
        facts["nvbandwidth"] = Fact(version[1], role="informative")
    return facts


# Reading


def _is_test(data: dict[str, Any]) -> bool:
    name = data.get("name")
    has_content = "bandwidth_matrix" in data or "status" in data
    return isinstance(name, str) and _NAME.fullmatch(name) is not None and has_content


def _json_test(data: Mapping[str, Any]) -> _Test:
    matrix, status = data.get("bandwidth_matrix"), str(data.get("status", "Passed")).lower()
    if isinstance(matrix, list) and status == "passed" and "error" not in data:
        rows = tuple(tuple(row) for row in matrix if isinstance(row, list))
        table = _Table(str(data.get("bandwidth_description", "")), rows, number(data.get("sum"), 1e15))
        return _Test(data["name"], (table,)) if table.is_right else _damaged(data["name"])
    return _without_figures(data["name"], status)


def _damaged(name: str) -> _Test:
    return _Test(name, outcome="failed", reason="its figures do not add up to the sum beside them: the text is damaged")


def _without_figures(name: str, status: str) -> _Test:
    """What is said of a failed test is not kept: it may hold paths and host names."""
    if status in ("waived", "waiving"):
        return _Test(name, outcome="not_applicable", reason="nvbandwidth waived it on this machine")
    if status == "not found":
        return _Test(name, outcome="not_run", reason="this version of nvbandwidth does not have it")
    if status in ("running", "passed"):
        return _Test(name, outcome="failed", reason="the recording holds no figures of it: it ended before or was cut")
    return _Test(name, outcome="failed", reason="nvbandwidth reports an error in it")


def _text_tests(lines: Sequence[str]) -> list[_Test]:
    reader = _TablesReader()
    for line in lines:
        if len(line) <= LONGEST_LINE:
            reader.read(line)
    reader.end()
    return reader.tests


class _TablesReader:
    """Tests of text output, line by line; what is no line of nvbandwidth's is passed over.

    A row counts only below its table's title and column numbers, with as many cells and the index that comes next.
    """

    def __init__(self) -> None:
        self.tests: list[_Test] = []
        self._test: _Test | None = None
        self._table: _Table | None = None
        self._columns = 0
        self._status = "running"

    def read(self, line: str) -> None:
        """Take in one line."""
        if begun := _RUNNING.fullmatch(line):
            self.end()
            self._test = _Test(begun[2])
            self._status = "waived" if begun[1] == "Waiving" else "running"
        elif summed := _SUM.fullmatch(line):
            self._end_table(_TABLE_SUFFIX.sub("", summed[1]), number(summed[2], 1e15))
        elif _TITLE.fullmatch(line):
            self._keep_table()
            self._table, self._columns = _Table(line.strip()), 0
        elif self._table is not None and self._read_row(self._table, line):
            pass
        elif _FAILURE.match(line):
            self._status = "error"
        elif (status := _STATUS.fullmatch(line)) and self._test is not None and not self._test.tables:
            self._status = status[1].lower()

    def end(self) -> None:
        """The test ends here; without figures it was waived, failed or cut."""
        self._keep_table()
        test = self._test
        if test is not None and self._status == "running" and test.tables:
            self.tests.append(test if all(table.is_right for table in test.tables) else _damaged(test.name))
        elif test is not None:
            self.tests.append(_without_figures(test.name, self._status))
        self._test = None

    def _read_row(self, table: _Table, line: str) -> bool:
        """Whether the line is the table's: its column numbers, or the row that comes next."""
        row = _ROW.fullmatch(line)
        if not self._columns and _COLUMNS.fullmatch(line):
            self._columns = len(line.split())
        elif row and self._columns == len(row[2].split()) and int(row[1]) == len(table.rows):
            self._table = replace(table, rows=(*table.rows, tuple(row[2].split())))
        else:
            return False
        return True

    def _keep_table(self) -> None:
        """The open table becomes the open test's; one without rows, or that belongs to no test, is dropped."""
        if self._test is not None and self._table is not None and self._table.rows:
            self._test = replace(self._test, tables=(*self._test.tables, self._table))
        self._table = None

    def _end_table(self, name: str, total: float | None) -> None:
        """A table's sum names its test again: that of a table whose beginning was cut away or garbled."""
        table, self._table = self._table, None
        if self._test is None or self._test.name != name:
            self.end()
            self._test, self._status = _Test(name), "running"
        # A test of two directions has several tables, each with its sum.
        self._table = None if table is None else replace(table, total=total)
        self._keep_table()


# Figures


def _figures(test: _Test, buffer_mib: int) -> Iterator[Figure]:
    size = (buffer_mib or DEFAULT_BUFFER_MIB) * MIB
    if not test.name or _NAME.fullmatch(test.name) is None:
        return
    if test.outcome != "measured":
        yield _nothing({"test": test.name}, test.outcome, test.reason)
        return
    warnings: tuple[str, ...] = ()
    if not buffer_mib:
        warnings = (f"assumed: a buffer of {DEFAULT_BUFFER_MIB} MiB, nvbandwidth's default; it records no size",)
    if test.name.endswith("_latency_sm"):
        yield from _latencies(test)
    elif described := list(_described(test, size)):
        yield from (replace(figure, warnings=warnings) for figure in described)
    else:
        yield _nothing({"test": test.name}, "not_run", "what this test counts is not known here")


def _nothing(params: Mapping[str, Param], outcome: Outcome, reason: str) -> Figure:
    return Figure(PROTOCOL, "memory", params, outcome=outcome, reason=reason, kind="quality")


def _described(test: _Test, size: int) -> Iterator[Figure]:
    host, peer, fan = (pattern.fullmatch(test.name) for pattern in (_HOST, _PEER, _FAN))
    if test.name == "device_local_copy":
        for gpu, cell in _cells_of_one_row(test):
            yield _local_copy(gpu, cell, size)
    elif host:
        for gpu, cell in _cells_of_one_row(test):
            yield _host_copy(host, gpu, cell, size)
    elif fan:
        cells = list(_cells_of_one_row(test))
        for gpu, cell in cells:
            yield _fan_copy(fan, gpu, cell, size, peers=len(cells) - 1)
    elif peer:
        for way, source, destination, cell in _pairs(test, is_two_way=bool(peer[1])):
            yield _peer_copy(peer, way, (source, destination), cell, size)


def _cells_of_one_row(test: _Test) -> Iterator[tuple[int, object]]:
    if test.tables and test.tables[0].rows:
        yield from enumerate(test.tables[0].rows[0])


def _local_copy(gpu: int, cell: object, size: int) -> Figure:
    work = (Work(size, "B", "memory", "one way"), Work(2 * size, "B", "memory", "read + written"))
    params: dict[str, Param] = {"bytes": size, "gpu": gpu, "impl": "ce", "counted": "one_way"}
    return _rated("copy", params, work, cell, size, footprint_bytes=2 * size)


def _host_copy(match: "re.Match[str]", gpu: int, cell: object, size: int) -> Figure:
    """The figure is that of one direction and one GPU, also while others or the other direction are busy."""
    direction = "h2d" if match[1] in ("host_to_device", "host_to_all") else "d2h"
    everyone = match[1] in ("all_to_host", "host_to_all")
    load = {(False, False): "", (False, True): "opposite", (True, False): "all_gpus", (True, True): "all_gpus_both"}
    said = {
        "": "one way",
        "opposite": "one way, the other way busy",
        "all_gpus": "one way, this GPU's own, all copying",
        "all_gpus_both": "one way, this GPU's own, all copying both ways",
    }
    busy = load[everyone, bool(match[2])]
    params: dict[str, Param] = {"bytes": size, "direction": direction, "gpu": gpu, "impl": match[3]}
    params |= {"counted": "one_way"} | ({"load": busy} if busy else {})
    return _rated("memcpy", params, (Work(size, "B", "host_link", said[busy]),), cell, size)


def _peer_copy(match: "re.Match[str]", way: str, pair: tuple[int, int], cell: object, size: int) -> Figure:
    params: dict[str, Param] = {"bytes": size, "access": match[2], "impl": match[3], "row": pair[0], "column": pair[1]}
    if way == "total":
        amount, peak, label, counted = 2 * size, "nvlink_both", "both ways together", "both_ways"
    else:
        label = "one way, the other way busy" if way else "one way"
        amount, peak, counted = size, "nvlink", "one_way"
    params |= {"counted": counted} | ({"way": way} if way else {})
    return _rated("peer_copy", params, (_link_work(amount, peak, label, cell),), cell, amount)


def _fan_copy(match: "re.Match[str]", gpu: int, cell: object, size: int, peers: int) -> Figure:
    amount = max(1, peers) * size
    params: dict[str, Param] = {"bytes": size, "gpu": gpu, "impl": match[3], "access": match[2], "pattern": match[1]}
    params |= {"counted": "all_peers", "peers": max(1, peers)}
    return _rated("peer_copy", params, (_link_work(amount, "nvlink", "sum over the peers", cell),), cell, amount)


def _link_work(amount: int, peak: str, label: str, cell: object) -> Work:
    """The recording does not say what joins two GPUs; only a rate beyond PCIe shows that it is NVLink."""
    rate = number(cell, MOST_GB_PER_S)
    at_most = 0.0 if _PCIE_AT_MOST is None else _PCIE_AT_MOST.value * (2 if peak == "nvlink_both" else 1)
    if rate is not None and rate * 1e9 > at_most:
        return Work(amount, "B", peak, label)
    return Work(amount, "B", None, label, no_peak="the recording does not say which link joins the GPUs")


def _pairs(test: _Test, is_two_way: bool) -> Iterator[tuple[str, int, int, object]]:
    """Cells off the diagonal with their direction."""
    for table in test.tables:
        count = max((len(row) for row in table.rows), default=0)
        for number_, row in enumerate(table.rows if count else ()):
            block, source = divmod(number_, count)
            way = _way(table, block, count) if is_two_way else ""
            yield from (
                (way, source, destination, cell) for destination, cell in enumerate(row) if source != destination
            )


def _way(table: _Table, block: int, columns: int) -> str:
    """By the table's title; JSON has one title for three blocks in this order. Before 0.8 there is one direction."""
    if len(table.rows) > columns:
        return ("first", "second", "total")[min(block, 2)]
    title = table.title.lower()
    return "total" if "total" in title else "second" if re.search(r"(?:read|write)2", title) else "first"


def _latencies(test: _Test) -> Iterator[Figure]:
    is_host = test.name.startswith("host_")
    cells = (
        [({"gpu": gpu}, cell) for gpu, cell in _cells_of_one_row(test)]
        if is_host
        else [({"row": a, "column": b}, cell) for _, a, b, cell in _pairs(test, is_two_way=False)]
    )
    for place, cell in cells:
        params: dict[str, Param] = {"bytes": LATENCY_BUFFER_BYTES, "impl": "sm", **place}
        op = "host_latency" if is_host else "peer_latency"
        yield _timed(op, params, (), cell, number(cell, MOST_NS), 1e-9, kind="latency")


def _rated(
    op: str, params: dict[str, Param], work: tuple[Work, ...], cell: object, amount: float, footprint_bytes: int = 0
) -> Figure:
    rate = number(cell, MOST_GB_PER_S)
    seconds = None if rate is None else amount / (rate * 1e9)
    return _timed(op, params, work, cell, seconds, 1.0, footprint_bytes=footprint_bytes, launches=COPIES_PER_SAMPLE)


def _timed(
    op: str,
    params: dict[str, Param],
    work: tuple[Work, ...],
    cell: object,
    time: float | None,
    unit_s: float,
    *,
    kind: Kind = "throughput",
    footprint_bytes: int = 0,
    launches: int = 1,
) -> Figure:
    figure = Figure(
        op,
        "memory",
        {**params, "protocol": PROTOCOL},
        work,
        kind,
        footprint_bytes=footprint_bytes,
        launches=launches,
    )
    if time is not None:
        return replace(figure, seconds=(time * unit_s,))
    if cell == "N/A":
        return replace(figure, outcome="not_applicable", reason="nvbandwidth gives N/A: no access between the two")
    return replace(figure, outcome="failed", reason="nvbandwidth's figure is not a number above zero")
