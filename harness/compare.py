"""Sets of any hardware side by side: what was promised, what arrives, and the share of it. Pure but for reading files.

A *set* is the runs of one card under one label. Floor 3 of the suite.
"""

import math
import re
import statistics
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from harness.digests import CaseDigest, RunDigest, digest_run
from harness.errors import HarnessError
from harness.model import Run
from harness.statistics import median_of_known

ALL_FAMILIES = "all"

NO_SIGNIFICANCE = (
    "ratios of medians, without a significance test: sets of different hardware differ in more than their hardware. "
    "Between two sets of one card, look at the spread over runs beside them."
)


@dataclass(frozen=True)
class Set:
    """The runs of one card under one label. What differs between its runs is joined by a slash."""

    label: str
    runs: tuple[RunDigest, ...]
    source: str = ""

    @property
    def gpu(self) -> str:
        """The device's name as its driver gives it."""
        return self.runs[0].gpu

    @property
    def is_gpu(self) -> bool:
        """Whether this is no CPU."""
        return self.runs[0].device_kind != "cpu"

    @property
    def card(self) -> str:
        """The hash of the card; empty where it is unknown."""
        return self.runs[0].card

    @property
    def card_key(self) -> tuple[str, str] | None:
        """Site key and card: equal for one card only. `None` where either is unknown."""
        return (self.runs[0].site_key, self.card) if self.card and self.runs[0].site_key else None

    @property
    def power_limit_w(self) -> float | None:
        """The power limit under which it ran."""
        return self.runs[0].power_limit_w

    @property
    def declare(self) -> str:
        """The regime that the operator declared: "clocks=locked:1410"."""
        return self.runs[0].declare

    @property
    def inject(self) -> str:
        """What was slowed down on purpose: "gemm=3%"."""
        return self.runs[0].inject

    @property
    def drivers(self) -> tuple[str, ...]:
        """The drivers of its runs; more than one is a finding."""
        return tuple(dict.fromkeys(run.driver for run in self.runs if run.driver))

    @property
    def operator_label(self) -> str:
        """The operator's own name for the machine, or nothing."""
        return next((run.label for run in self.runs if run.label), "")

    def cases(self) -> dict[str, list[CaseDigest]]:
        """Every measured case by key, once a run."""
        found: dict[str, list[CaseDigest]] = {}
        for run in self.runs:
            for case in run.cases:
                found.setdefault(case.key, []).append(case)
        return found


@dataclass(frozen=True)
class Cell:
    """One case of one set: medians over its runs, and how they stand to the reference.

    `rate` is in `unit` a second for `B` and `FLOP`; for a latency it is the time in seconds (`unit` is `s`), and
    `delivered` is then the reference's time over this one: above 1 is better everywhere. `reasons` says by field
    name why a figure is `None`.
    """

    rate: float | None
    unit: str
    runs: int
    spec_ratio: float | None = None
    at_clock_ratio: float | None = None
    energy_per_work_j: float | None = None
    power_w: float | None = None
    sm_clock_mhz: float | None = None
    limited_by: str = "unknown"
    bound: str = ""
    promised_per_s: float | None = None
    is_verified: bool = True
    promised: float | None = None
    delivered: float | None = None
    delivered_over_promised: float | None = None
    reasons: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Row:
    """One case in all sets, `cells` in the order of the sets; `None` where a set lacks it."""

    family: str
    key: str
    label: str
    better: str
    cells: tuple[Cell | None, ...]

    @property
    def is_common(self) -> bool:
        """Whether every set has it."""
        return all(cell is not None for cell in self.cells)


@dataclass(frozen=True)
class Means:
    """Geometric means of one set over the cases that all sets have; each with the number of cases it is of.

    `delivered` is of all common cases with a rate; `promised` and `delivered_over_promised` only of those for which
    every set has a promise.
    """

    delivered: float | None
    delivered_cases: int
    promised: float | None
    delivered_over_promised: float | None
    promised_cases: int
    spec_ratio: float | None
    spec_cases: int
    energy_ratio: float | None
    energy_cases: int


@dataclass(frozen=True)
class Family:
    """The geometric means of one family, or of all; `cells` in the order of the sets."""

    family: str
    cases: int
    cells: tuple[Means, ...]


@dataclass(frozen=True)
class Lack:
    """Cases that other sets have and this one lacks, for one reason."""

    label: str
    reason: str
    keys: tuple[str, ...]


@dataclass(frozen=True)
class Comparison:
    """Everything that `compare` shows. The reference is `sets[reference]`."""

    sets: tuple[Set, ...]
    reference: int
    rows: tuple[Row, ...]
    families: tuple[Family, ...]
    lacking: tuple[Lack, ...]
    notes: tuple[str, ...]

    @property
    def labels(self) -> tuple[str, ...]:
        """The labels in the order of the sets."""
        return tuple(s.label for s in self.sets)

    @property
    def reference_label(self) -> str:
        """The label of the reference."""
        return self.sets[self.reference].label


# Sets


def load_sets(paths: Sequence[Path], labels: Sequence[str] = (), *, use_cache: bool = True) -> tuple[Set, ...]:
    """One set a path (a run file or a folder of them); a folder with several cards or regimes becomes several sets.

    Labels are given one a path; else it is the operator's own, the GPU's name, or the path's, whichever is unique.
    """
    from harness.digest_files import read_digests

    if not paths:
        raise HarnessError("nothing to compare: name run files or folders of them.")
    if labels and len(labels) != len(paths):
        raise HarnessError(f"labels: {len(labels)}, sets: {len(paths)}. Give --label one name for every SET, in order.")
    _refuse_twice(labels)
    loaded = read_digests(paths, use_cache=use_cache)
    parts = [(number, group) for number, runs in enumerate(loaded) for group in _split_by_machine(runs)]
    named = _names([(paths[n], labels[n] if labels else "", group) for n, group in parts])
    return tuple(Set(name, tuple(group), str(paths[n])) for name, (n, group) in zip(named, parts, strict=True))


def set_of(label: str, runs: Iterable[Run]) -> Set:
    """A set of runs that are in memory already."""
    digests = tuple(digest_run(run) for run in runs)
    if not digests:
        raise HarnessError(f"the set '{label}' holds no run.")
    return Set(label, digests)


def _split_by_machine(runs: Sequence[RunDigest]) -> list[list[RunDigest]]:
    groups: dict[tuple[object, ...], list[RunDigest]] = {}
    for run in runs:
        machine = (run.gpu, run.site_key, run.card, run.power_limit_w, run.declare, run.concurrent, run.inject)
        groups.setdefault(machine, []).append(run)
    return list(groups.values())


def _names(parts: Sequence[tuple[Path, str, Sequence[RunDigest]]]) -> list[str]:
    """A name for every set, none of them twice: the first of several ways that tells it from all others."""
    names = [label or runs[0].label or runs[0].gpu or "unnamed" for _, label, runs in parts]
    names = _where_twice(names, [label or runs[0].label or _path_name(path) for path, label, runs in parts])
    names = _where_twice(names, _with_differences(names, [runs[0] for _, _, runs in parts]))
    return _where_twice(names, [f"{name} #{number}" for number, name in enumerate(names, start=1)])


def _where_twice(names: Sequence[str], others: Sequence[str]) -> list[str]:
    counts = Counter(names)
    return [name if counts[name] == 1 else other for name, other in zip(names, others, strict=True)]


def _with_differences(names: Sequence[str], runs: Sequence[RunDigest]) -> list[str]:
    """Each name with that of its card, limit and regime in which it differs from those of the same name."""
    alike: dict[str, list[tuple[str, ...]]] = {}
    for name, run in zip(names, runs, strict=True):
        alike.setdefault(name, []).append(_machine_words(run))
    named = []
    for name, run in zip(names, runs, strict=True):
        columns = [set(column) for column in zip(*alike[name], strict=True)]
        words = [word for word, column in zip(_machine_words(run), columns, strict=True) if len(column) > 1]
        named.append(" ".join([name, *(word for word in words if word)]))
    return named


def _machine_words(run: RunDigest) -> tuple[str, ...]:
    limit = "" if run.power_limit_w is None else f"{run.power_limit_w:g} W"
    at_once = f"{run.concurrent} at once" if run.concurrent > 1 else ""
    return run.gpu, run.card[:6], limit, run.declare, at_once, f"INJECTED {run.inject}" if run.inject else ""


def _path_name(path: Path) -> str:
    absolute = path.absolute()
    return f"{absolute.parent.name}/{absolute.stem}" if absolute.suffix == ".json" else absolute.name


# Comparing


def compare(sets: Sequence[Set], reference: str | None = None) -> Comparison:
    """The sets against one of them: by label, the first by default."""
    at = _reference_index(sets, reference)
    cases = [s.cases() for s in sets]
    keys = sorted({(group[0].family, key) for found in cases for key, group in found.items()}, key=_natural)
    rows = tuple(_row(family, key, [found.get(key) for found in cases], at, sets[at].label) for family, key in keys)
    common = [row for row in rows if row.is_common]
    names = list(dict.fromkeys(row.family for row in common))
    families = [_family(name, [row for row in common if row.family == name], at) for name in names]
    if len(families) > 1:
        families.append(_family(ALL_FAMILIES, common, at))
    return Comparison(
        sets=tuple(sets),
        reference=at,
        rows=rows,
        families=tuple(families),
        lacking=tuple(_lacking(sets, rows)),
        notes=tuple(_notes(sets, rows, at)),
    )


def geometric_mean(ratios: Iterable[float | None]) -> float | None:
    """The geometric mean of the positive ones that are known; `None` of none."""
    known = [math.log(ratio) for ratio in ratios if ratio is not None and ratio > 0]
    return math.exp(statistics.fmean(known)) if known else None


def _reference_index(sets: Sequence[Set], reference: str | None) -> int:
    labels = [s.label for s in sets]
    if not sets:
        raise HarnessError("nothing to compare: name run files or folders of them.")
    _refuse_twice(labels)
    if reference is None:
        return 0
    if reference not in labels:
        raise HarnessError(f"no set is labelled '{reference}'. Use one of {quoted(labels)} as --reference.")
    return labels.index(reference)


def _refuse_twice(labels: Sequence[str]) -> None:
    twice = next((label for label, count in Counter(labels).items() if count > 1), None)
    if twice is not None:
        raise HarnessError(f"two sets are labelled '{twice}'. Give every SET a name of its own with --label.")


def quoted(labels: Sequence[str], most: int = 8) -> str:
    """Labels for a message: the first few, quoted."""
    rest = f" and {len(labels) - most} more" if len(labels) > most else ""
    return ", ".join(f"'{label}'" for label in labels[:most]) + rest


def _natural(family_and_key: tuple[str, str]) -> tuple[str, list[tuple[int, str]]]:
    """Numbers in a key sort as numbers: bytes=8 before bytes=64. By digits, since a foreign number may be any size."""
    family, key = family_and_key
    return family, [(len(part.lstrip("0")) if part.isdigit() else 0, part) for part in re.split(r"(\d+)", key)]


def _row(family: str, key: str, found: Sequence[Sequence[CaseDigest] | None], at: int, reference_label: str) -> Row:
    shown = next(group for group in (found[at], *found) if group)[0]
    cells = [_cell(group) if group else None for group in found]
    base = cells[at]
    against = [
        None if cell is None else _held_against(cell, group[0], base, found[at], index == at, reference_label)
        for index, (cell, group) in enumerate(zip(cells, (g or () for g in found), strict=True))
    ]
    return Row(family, key, shown.label, shown.better, tuple(against))


# What has no median over runs that count differently.
_COUNTED = ("rate", "spec_ratio", "at_clock_ratio", "energy_per_work_j", "promised_per_s")


def _cell(cases: Sequence[CaseDigest]) -> Cell:
    first = cases[0]
    if len({(c.unit, c.label) for c in cases}) > 1:
        why = f"its runs count {' and '.join(dict.fromkeys(_convention(c) for c in cases))}"
        return Cell(None, first.unit, len(cases), reasons=dict.fromkeys(_COUNTED, why))
    gaps = {
        "spec_ratio": (median_of_known(c.spec_ratio for c in cases), first.spec_reason),
        "at_clock_ratio": (median_of_known(c.at_clock_ratio for c in cases), first.at_clock_reason),
        "energy_per_work_j": (median_of_known(c.energy_per_work_j for c in cases), first.energy_reason),
        "promised_per_s": (median_of_known(c.promised_per_s for c in cases), first.promise_reason),
    }
    values = {name: value for name, (value, _) in gaps.items()}
    return Cell(
        rate=median_of_known(c.value for c in cases),
        unit=first.unit,
        runs=len(cases),
        power_w=median_of_known(c.power_w for c in cases),
        sm_clock_mhz=median_of_known(c.sm_clock_mhz for c in cases),
        limited_by=_limits([c.limited_by for c in cases if c.limited_by != "unknown"]),
        bound=first.bound,
        is_verified=all(c.is_verified for c in cases),
        reasons={name: reason for name, (value, reason) in gaps.items() if value is None},
        **values,
    )


def _limits(words: Sequence[str]) -> str:
    """What limited the runs, the commonest first."""
    if len(set(words)) < 2:
        return words[0] if words else "unknown"
    return "/".join(name for name, _ in Counter(words).most_common())


def _held_against(
    cell: Cell,
    case: CaseDigest,
    base: Cell | None,
    base_cases: Sequence[CaseDigest] | None,
    is_reference: bool,
    reference_label: str,
) -> Cell:
    """The cell with its speed-ups over the reference's, or why there are none."""
    if base is None or not base_cases:
        why = f"the reference '{reference_label}' lacks this case"
        return _with(cell, None, None, why, why)
    delivered, no_delivered = _delivered(cell, case, base, base_cases[0])
    promised, no_promised = _promised(cell, base, is_reference, reference_label)
    if delivered is None:
        promised, no_promised = None, no_delivered
    return _with(cell, delivered, promised, no_delivered, no_promised)


def _with(cell: Cell, delivered: float | None, promised: float | None, no_delivered: str, no_promised: str) -> Cell:
    share = delivered / promised if delivered is not None and promised else None
    reasons = dict(cell.reasons)
    if delivered is None:
        reasons["delivered"] = no_delivered
    if promised is None:
        reasons["promised"] = no_promised
    if share is None:
        reasons["delivered_over_promised"] = no_delivered if delivered is None else no_promised
    return replace(cell, delivered=delivered, promised=promised, delivered_over_promised=share, reasons=reasons)


def _delivered(cell: Cell, case: CaseDigest, base: Cell, base_case: CaseDigest) -> tuple[float | None, str]:
    """The ratio of rates, or of times turned over: above 1 is better."""
    why = cell.reasons.get("rate") or base.reasons.get("rate")
    if why:
        return None, why
    mine, its = (case.unit, case.label, case.better), (base_case.unit, base_case.label, base_case.better)
    if mine != its:
        return None, f"counts {_convention(case)}, the reference {_convention(base_case)}"
    if not cell.rate or not base.rate or cell.rate < 0 or base.rate < 0:
        return None, "no ratio can be taken of a figure that is unknown, zero or negative"
    if case.better not in ("higher", "lower"):
        return None, "the figure has no better direction"
    return (cell.rate / base.rate if case.better == "higher" else base.rate / cell.rate), ""


def _convention(case: CaseDigest) -> str:
    return f"'{' '.join(part for part in (case.unit, case.label) if part)}'"


def _promised(cell: Cell, base: Cell, is_reference: bool, reference_label: str) -> tuple[float | None, str]:
    if not cell.promised_per_s:
        return None, cell.reasons.get("promised_per_s", "") or "no peak is known"
    if is_reference:
        return 1.0, ""
    if not base.promised_per_s:
        return None, f"reference '{reference_label}': {base.reasons.get('promised_per_s', '') or 'no peak is known'}"
    return cell.promised_per_s / base.promised_per_s, ""


def _family(name: str, common: Sequence[Row], at: int) -> Family:
    """Means over the cases that all sets have; a promise counts where every set has one."""
    rows = [[cell for cell in row.cells if cell is not None] for row in common]
    delivered = [cells for cells in rows if all(c.delivered is not None for c in cells)]
    promised = [cells for cells in delivered if all(c.promised is not None for c in cells)]
    spec = [cells for cells in rows if all(c.spec_ratio for c in cells)]
    energy = [cells for cells in rows if all(c.energy_per_work_j for c in cells)]
    means = [
        Means(
            delivered=geometric_mean(cells[index].delivered for cells in delivered),
            delivered_cases=len(delivered),
            promised=geometric_mean(cells[index].promised for cells in promised),
            delivered_over_promised=geometric_mean(cells[index].delivered_over_promised for cells in promised),
            promised_cases=len(promised),
            spec_ratio=geometric_mean(cells[index].spec_ratio for cells in spec),
            spec_cases=len(spec),
            energy_ratio=geometric_mean(_ratio(cells[index], cells[at]) for cells in energy),
            energy_cases=len(energy),
        )
        for index in range(len(common[0].cells))
    ]
    return Family(name, len(common), tuple(means))


def _ratio(cell: Cell, base: Cell) -> float | None:
    """Joules a unit of work over the reference's: below 1 is better."""
    energy, base_energy = cell.energy_per_work_j, base.energy_per_work_j
    return energy / base_energy if energy and base_energy else None


def _lacking(sets: Sequence[Set], rows: Sequence[Row]) -> Iterator[Lack]:
    for index, one in enumerate(sets):
        said = {absent.key: absent for run in one.runs for absent in run.absent}
        keys_by_reason: dict[str, list[str]] = {}
        for row in rows:
            if row.cells[index] is None:
                absent = said.get(row.key)
                outcome = absent.outcome.replace("_", " ") if absent else ""
                reason = f"{outcome}: {absent.reason or 'no reason given'}" if absent else "not among its cases"
                keys_by_reason.setdefault(reason, []).append(row.key)
        for reason, keys in keys_by_reason.items():
            yield Lack(one.label, reason, tuple(keys))


# What a reader must know


def _notes(sets: Sequence[Set], rows: Sequence[Row], at: int) -> Iterator[str]:
    if len(sets) > 1:
        yield NO_SIGNIFICANCE
        if not rows:
            yield "no set has a measured case."
        elif not any(row.is_common for row in rows):
            yield "no case is common to all sets: there are no geometric means. Compare fewer sets, or measure more."
    if len({one.is_gpu for one in sets}) > 1:
        cpus = quoted([one.label for one in sets if not one.is_gpu])
        yield f"{cpus}: a CPU beside GPUs. No peak is known for it, and its cases may be smaller ones."
    yield from _promise_notes(sets)
    yield from _joined(
        (one.label for one in sets if one.is_gpu and one.card_key is None),
        "no card key, so whether it is another set's card is unknown",
    )
    for one in sets:
        yield from _set_notes(one)
    yield from _bound_notes(sets, rows, at)


def _promise_notes(sets: Sequence[Set]) -> Iterator[str]:
    """Whose data sheet is unknown, and whose peaks nobody has read."""
    labels_by_reason: dict[str, list[str]] = {}
    for one in sets:
        run = one.runs[0]
        if one.is_gpu and run.sheet_match != "exact":
            reason = run.sheet_reason or f"no data sheet is known for '{one.gpu}'"
            labels_by_reason.setdefault(reason, []).append(one.label)
    for reason, labels in labels_by_reason.items():
        yield f"{quoted(labels)}: no promised speed-up but of a link; {reason}"
    yield from _joined(
        (one.label for one in sets if any(not c.is_verified for run in one.runs for c in run.cases)),
        "promised by peaks that were recalled and read nowhere (unverified)",
    )


def _joined(labels: Iterable[str], said: str) -> Iterator[str]:
    known = list(labels)
    if known:
        yield f"{quoted(known)}: {said}."


def _set_notes(one: Set) -> Iterator[str]:
    if len(one.drivers) > 1:
        yield f"'{one.label}': its runs have {len(one.drivers)} drivers, {quoted(one.drivers)}; medians span them."
    partial = sum(bool(run.partial) for run in one.runs)
    if partial:
        yield f"'{one.label}': {partial} of {len(one.runs)} runs are partial."
    unsettled = sorted({c.key for run in one.runs for c in run.cases if c.settled is False})
    if unsettled:
        count = "1 case" if len(unsettled) == 1 else f"{len(unsettled)} cases"
        yield f"'{one.label}': power or clock still moved in {count}, for example {unsettled[0]}."


def _bound_notes(sets: Sequence[Set], rows: Sequence[Row], at: int) -> Iterator[str]:
    """Where another peak binds than on the reference, `promised` is the ratio of rooflines, not of one peak."""
    for index, one in enumerate(sets):
        pairs = [(row.cells[index], row.cells[at]) for row in rows]
        moved = [(a.bound, b.bound) for a, b in pairs if a and b and a.promised and a.bound != b.bound]
        if moved:
            mine, its = moved[0]
            count = "1 case is" if len(moved) == 1 else f"{len(moved)} cases are"
            yield f"'{one.label}': {count} bound by '{mine}', on the reference by '{its}'; promised is by roofline."
