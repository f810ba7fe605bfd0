"""A comparison, its costs and a fleet as CSV and JSON: base units, and every reason. Pure."""

import csv
import io
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields
from typing import Any

from harness.compare import Comparison, Set
from harness.costs import Costs
from harness.efficiency import Efficiency
from harness.fleet import Fleet
from harness.model import to_plain
from harness.report.text import clean

# CSV


_CELL_COLUMNS = (
    "rate", "unit", "runs", "spec_ratio", "at_clock_ratio", "energy_per_work_j", "power_w", "sm_clock_mhz",
    "limited_by", "bound", "promised", "delivered", "delivered_over_promised",
)  # fmt: skip


def comparison_csv(comparison: Comparison, costs: Costs | None = None) -> str:
    """One row a case and set, in base units; the costs of the case behind it where prices are stated."""
    bills = {case.key: dict(zip(costs.labels, case.bills, strict=True)) for case in costs.cases} if costs else {}
    heads = ["family", "key", "convention", "set", "gpu", "is_reference", *_CELL_COLUMNS]
    rows = []
    for row in comparison.rows:
        for one, cell in zip(comparison.sets, row.cells, strict=True):
            if cell is not None:
                start = [row.family, row.key, row.label, one.label, one.gpu, one.label == comparison.reference_label]
                bill = bills.get(row.key, {}).get(one.label)
                end = [bill.hours, bill.kwh, bill.usd] if bill else [None] * 3
                reasons = "; ".join(f"{name}: {reason}" for name, reason in cell.reasons.items() if reason)
                figures = [getattr(cell, name) for name in _CELL_COLUMNS]
                rows.append([*start, *figures, *(end if bills else ()), reasons])
    lump = ["hours_per_lump", "kwh_per_lump", "usd_per_lump"] if bills else []
    return _csv([*heads, *lump, "reasons"], rows)


def fleet_csv(fleet: Fleet) -> str:
    """One row an outlier, the worst first."""
    heads = ["label", "operator_label", "card", "family", "key", "z", "value", "median", "unit", "ratio", "causes"]
    rows = [[*(getattr(f, name) for name in heads[:-1]), "; ".join(f.causes)] for f in fleet.findings]
    return _csv(heads, rows)


def _csv(heads: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(heads)
    writer.writerows([_csv_cell(value) for value in row] for row in rows)
    return out.getvalue()


def _csv_cell(value: Any) -> Any:
    """Text that no spreadsheet takes for a formula, numbers as they are."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if not isinstance(value, str):
        return value
    text = clean(value)
    return f"'{text}" if text[:1] in ("=", "+", "-", "@") else text


# JSON


def comparison_json(comparison: Comparison, costs: Costs | None = None, efficiencies: Sequence[Efficiency] = ()) -> str:
    """The whole comparison; sets are named by label, figures are in base units, text is as the files have it."""
    labels = comparison.labels
    document: dict[str, Any] = {
        "reference": comparison.reference_label,
        "sets": [_plain_set(one) for one in comparison.sets],
        "rows": [
            {"family": r.family, "key": r.key, "convention": r.label, "better": r.better, "cells": _by(labels, r.cells)}
            for r in comparison.rows
        ],
        "geometric_means": [
            {"family": f.family, "cases": f.cases, "cells": _by(labels, f.cells)} for f in comparison.families
        ],
        "lacking": [_whole(lack) for lack in comparison.lacking],
        "notes": list(comparison.notes),
    }
    if costs is not None:
        document["costs"] = _whole(costs)
    if efficiencies:
        document["efficiency"] = [_whole(table) for table in efficiencies]
    return _json(document)


def fleet_json(fleet: Fleet) -> str:
    """The whole fleet: every finding, card and spread."""
    return _json(_whole(fleet))


def _plain_set(one: Set) -> dict[str, Any]:
    names = ("label", "gpu", "card", "operator_label", "power_limit_w", "declare", "drivers", "source")
    run = one.runs[0]
    return {
        **{name: to_plain(getattr(one, name)) for name in names},
        "runs": [r.run_id for r in one.runs],
        "sheet": {"gpu": run.sheet_gpu, "match": run.sheet_match, "reason": run.sheet_reason},
    }


def _by(labels: Sequence[str], cells: Sequence[Any]) -> dict[str, Any]:
    return {label: _whole(cell) for label, cell in zip(labels, cells, strict=True)}


def _whole(data: Any) -> Any:
    """Dataclasses as dictionaries with every field: a reader need not know what is left out at its default."""
    if hasattr(data, "__dataclass_fields__"):
        return {f.name: _whole(getattr(data, f.name)) for f in fields(data)}
    if isinstance(data, Mapping):
        return {str(key): _whole(value) for key, value in data.items()}
    return [_whole(value) for value in data] if isinstance(data, list | tuple) else data


def _json(document: Any) -> str:
    # ASCII: no character of a foreign file reaches a terminal as itself.
    return json.dumps(document, indent=1, allow_nan=False) + "\n"
