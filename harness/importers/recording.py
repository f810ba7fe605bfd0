"""What every import shares: text as people really have it, one figure a record, and the run that holds them.

Nothing of a recording but figures, versions and device names reaches the run: no host, PCI id, pid or path.
"""

import hashlib
import json
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import harness
from harness import cautions, metrics, specs
from harness.errors import HarnessError
from harness.model import (
    Case,
    Check,
    DeviceFacts,
    Fact,
    Kind,
    Order,
    Outcome,
    Param,
    PeakSheet,
    Record,
    Run,
    Samples,
    Telemetry,
    Work,
    Worker,
)
from harness.store import SCHEMA_VERSION, SIZE_LIMIT_BYTES
from harness.units import MIB

TIMER = "imported"
ONE_FIGURE = "imported: one figure, no samples"
# A run file of so many records stays far below what `store` reads; a host of 16 GPUs gives 4,000.
MOST_FIGURES = 10_000
# A table's line is 200 characters long; what is longer is none.
LONGEST_LINE = 4096
MOST_DAMAGED_OBJECTS = 1000

_ANSI = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
# What launchers and log collectors put before a line: mpirun --tag-output, srun --label, torchrun, container logs.
_TAG = re.compile(
    r"\s*(?:\[\d+,\d+\](?:<std(?:out|err|diag)>)?:?"
    r"|\[(?:rank|default)?\d+\]:"
    r"|\d+:(?=\s)"
    r"|\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d\S*(?=\s)"
    r"|[\w.-]+\s*\|(?=\s))"
)
_NOT_RECORDED = "imported: the recording does not hold it"
_MISSING = dict.fromkeys(
    ("power_w", "sm_clock_mhz", "nvml_sm_clock_mhz", "pcie_generation", "pcie_lanes", "settled"), _NOT_RECORDED
)


@dataclass(frozen=True)
class Figure:
    """One figure of a recording: what was done, how long one launch took, or why there is no time.

    `seconds` is empty unless `outcome` is "measured"; several are the same case measured again.
    """

    op: str
    family: str
    params: Mapping[str, Param]
    work: tuple[Work, ...] = ()
    kind: Kind = "throughput"
    defaults: Mapping[str, Param] = field(default_factory=dict)
    footprint_bytes: int = 0
    seconds: tuple[float, ...] = ()
    launches: int = 1
    outcome: Outcome = "measured"
    reason: str = ""
    checks: tuple[Check, ...] = ()
    warnings: tuple[str, ...] = ()

    @property
    def case(self) -> Case:
        """The case that it is a figure of."""
        return Case(self.op, self.params, self.work, self.kind, self.defaults, footprint_bytes=self.footprint_bytes)


@dataclass(frozen=True)
class Recording:
    """All that one text holds; `gpu_names` are the devices that it names and that have a data sheet here."""

    figures: tuple[Figure, ...]
    environment: Mapping[str, Fact] = field(default_factory=dict)
    gpu_names: frozenset[str] = frozenset()
    gpu_count: int = 0
    partial: str = ""


def read_text(path: Path) -> str:
    """A recording's text, whatever bytes are in it; refused above the size that run files have too."""
    try:
        with path.open("rb") as file:
            data = file.read(SIZE_LIMIT_BYTES + 1)
    except OSError as error:
        raise HarnessError(f"cannot read {path}: {error.strerror}. Name a recording.") from error
    if len(data) > SIZE_LIMIT_BYTES:
        raise HarnessError(f"{path} is larger than {SIZE_LIMIT_BYTES // MIB} MiB. Cut out the tool's own output.")
    return data.decode("utf-8", errors="replace")


def plain_lines(text: str) -> list[str]:
    """Lines without colours, carriage returns and what launchers put before them; indentation stays."""
    return [_untagged(_ANSI.sub("", line)) for line in re.split(r"\r*\n|\r", text)]


def _untagged(line: str) -> str:
    for _ in range(3):
        tag = _TAG.match(line)
        if tag is None:
            return line
        line = line[tag.end() :]
    return line


def json_objects(
    lines: Sequence[str], is_wanted: Callable[[dict[str, Any]], bool], marker: re.Pattern[str]
) -> list[dict[str, Any]]:
    """The wanted objects of JSON somewhere in a text: of whole documents, or one by one where these are damaged.

    `marker` finds where a wanted object may begin.
    """
    whole = list(_whole_documents("\n".join(lines), is_wanted))
    # Log lines between its own lines: what is no line of styled JSON goes.
    text = "\n".join(line for line in lines if _STYLED_JSON.fullmatch(line))
    single, end, misses, decoder = [], 0, 0, json.JSONDecoder()
    for match in marker.finditer(text):
        found = _decoded(decoder, text, match.start()) if match.start() >= end else None
        if found is not None and isinstance(found[0], dict) and is_wanted(found[0]):
            single.append(found[0])
            end = found[1]
        elif found is None and match.start() >= end:
            misses += 1
            if misses > MOST_DAMAGED_OBJECTS:
                break
    return whole if len(whole) >= len(single) else single


def _whole_documents(text: str, is_wanted: Callable[[dict[str, Any]], bool]) -> Iterator[dict[str, Any]]:
    position, misses, decoder = text.find("{"), 0, json.JSONDecoder()
    # Log lines before a document may hold a brace too.
    while position >= 0 and misses < 20:
        found = _decoded(decoder, text, position)
        if found is None:
            misses += 1
            position = text.find("{", position + 1)
        else:
            yield from _walk(found[0], is_wanted)
            position = text.find("{", found[1])


_STYLED_JSON = re.compile(r'\s*(?:"[^"]*"\s*:\s*\S?.*|"[^"]*",?|-?[\d.]+(?:[eE][+-]?\d+)?,?|[\[\]{}]+,?|\{.*)\s*')


def _decoded(decoder: json.JSONDecoder, text: str, position: int) -> tuple[Any, int] | None:
    try:
        return decoder.raw_decode(text, position)
    except (ValueError, RecursionError):
        return None


def _walk(value: Any, is_wanted: Callable[[dict[str, Any]], bool]) -> Iterator[dict[str, Any]]:
    pending = [value]
    while pending:
        item = pending.pop(0)
        if isinstance(item, dict) and is_wanted(item):
            yield item
        elif isinstance(item, dict | list):
            pending[:0] = item.values() if isinstance(item, dict) else item


def number(value: object, largest: float) -> float | None:
    """A finite number above zero and not beyond `largest`, from JSON or text; else `None`."""
    if isinstance(value, bool) or not isinstance(value, int | float | str) or len(str(value)[:40]) == 40:
        return None
    try:
        found = float(value)
    except (ValueError, OverflowError):
        return None
    return found if math.isfinite(found) and 0 < found <= largest else None


def choose_gpu(asked: str, recordings: Iterable[Recording]) -> str:
    """The GPU that was asked for, unless the recordings name others; without one asked for, the one that they name."""
    named = sorted(set().union(*(recording.gpu_names for recording in recordings)))
    if asked and named and asked not in named:
        raise HarnessError(f"the recording is of {_quoted(named)}, --gpu names '{asked}'. Give the GPU it was made on.")
    if asked:
        return asked
    if len(named) != 1:
        said = f"names {_quoted(named)}" if named else "names no GPU that is known here"
        raise HarnessError(f'the recording {said}. Add --gpu "NVIDIA H200", the name as nvidia-smi shows it.')
    return named[0]


def _quoted(names: Iterable[str]) -> str:
    return " and ".join(f"'{name}'" for name in names)


def build_run(
    recordings: Sequence[Recording],
    *,
    gpu: str,
    created_at: str,
    label: str = "",
    origin: Literal["imported", "published"] = "imported",
) -> Run:
    """One run of all recordings. Its id follows from its content: an import repeated is no second measurement."""
    facts = facts_of(gpu, max((recording.gpu_count for recording in recordings), default=0))
    sheet = specs.lookup(facts)
    figures = merge(figure for recording in recordings for figure in recording.figures)
    records = tuple(to_record(figure, sheet, facts) for figure in figures)
    environment: dict[str, Fact] = {}
    for recording in recordings:
        environment |= recording.environment
    content = json.dumps([gpu, label, [[r.key, r.outcome, r.samples and r.samples.seconds] for r in records]])
    return Run(
        run_id=f"{origin}-{hashlib.sha256(content.encode()).hexdigest()[:16]}",
        created_at=created_at,
        schema_version=SCHEMA_VERSION,
        suite_version=harness.__version__,
        order=Order(profile=origin, label=label),
        device=facts,
        sheet=sheet,
        environment={"gpu": Fact(gpu), **environment},
        workers=(Worker(0, created_at, origin),),
        records=records,
        partial="; ".join(dict.fromkeys(recording.partial for recording in recordings if recording.partial)),
    )


def facts_of(gpu: str, gpu_count: int = 0) -> DeviceFacts:
    """What is known of a card from its name alone; its data sheet adds compute capability and L2 size."""
    row = specs.find(gpu)
    l2_mib = None if row is None else row.value("l2_mib")
    return DeviceFacts(
        kind="cuda",
        name=gpu,
        torch_device="cuda",
        gpu_count=gpu_count,
        compute_capability=None if row is None else row.compute_capability,
        l2_bytes=None if l2_mib is None else int(l2_mib * MIB),
    )


def merge(figures: Iterable[Figure]) -> list[Figure]:
    """One figure a key, in the order of the first: times of the same case stand together, a failure outweighs them."""
    merged: dict[str, Figure] = {}
    for figure in figures:
        key = figure.case.key
        before = merged.get(key)
        if before is None and len(merged) >= MOST_FIGURES:
            raise HarnessError(f"the recordings hold more than {MOST_FIGURES} figures. Import them in parts.")
        merged[key] = figure if before is None else _joined(before, figure)
    return list(merged.values())


def _joined(before: Figure, again: Figure) -> Figure:
    for figure in (before, again):
        if figure.outcome == "failed":
            return figure
    if "measured" not in (before.outcome, again.outcome):
        return before
    seconds = (*before.seconds, *again.seconds)[:200]
    first = before if before.outcome == "measured" else again
    return replace(first, seconds=seconds, checks=first.checks)


def to_record(figure: Figure, sheet: PeakSheet, facts: DeviceFacts) -> Record:
    """A figure with its derived metrics; what a recording does not hold is missing with its reason."""
    case, count = figure.case, len(figure.seconds)
    if figure.outcome != "measured":
        return Record(
            case.key,
            figure.family,
            case,
            figure.outcome,
            figure.reason,
            checks=figure.checks,
            warnings=figure.warnings,
        )
    seconds = tuple(float(f"{s:.7g}") for s in figure.seconds)
    samples = Samples(seconds, figure.launches, sum(seconds) * figure.launches, TIMER, "stream")
    telemetry = Telemetry(missing=_MISSING)
    derived = metrics.derive_metrics(case, samples, telemetry, sheet, facts)
    how_many = ONE_FIGURE if count == 1 else f"imported: {count} figures, no samples"
    return Record(
        key=case.key,
        family=figure.family,
        case=case,
        outcome="measured",
        samples=samples,
        telemetry=telemetry,
        checks=figure.checks,
        metrics=derived,
        warnings=(how_many, *figure.warnings, *cautions.warnings_of(case, samples, telemetry, sheet, derived)),
    )
