"""A gate's outcome as JSON: every figure as a ratio, every reason as the sentence that people read."""

import json
import math
from typing import Any

from harness.gate.comparable import Change
from harness.gate.outcome import Dropped, Outcome, Result
from harness.gate.rules import Evidence
from harness.report.gate_line import verdict_line

# The history of this layout: 1 the first.
GATE_SCHEMA_VERSION = 1


def gate_json(outcome: Outcome) -> str:
    """The outcome as one JSON object that ends with a newline; no number in it is NaN or infinite."""
    facts = outcome.comparability
    document = {
        "gate_schema_version": GATE_SCHEMA_VERSION,
        "verdicts": list(outcome.verdicts),
        "exit_code": int(outcome.exit_code),
        "line": verdict_line(outcome),
        "gpu": outcome.gpu,
        "declared": list(outcome.changed),
        "changed": [_change(change) for change in facts.changed],
        "undeclared": {scope: [_change(change) for change in found] for scope, found in facts.undeclared.items()},
        "undeclared_sources": [_change(change) for change in facts.by_family.values()],
        "also_different": [_change(change) for change in facts.informative],
        "findings": list(outcome.findings),
        "cards": list(outcome.cards),
        "runs": list(outcome.runs),
        "boots": list(outcome.boots),
        "alpha": outcome.alpha,
        "tests": outcome.tests,
        "look": outcome.look,
        "only": list(outcome.only),
        "not_looked_at": outcome.aside,
        "injected": outcome.injected,
        "suspected": list(outcome.suspected),
        "assume_boot_sd_ratio": outcome.assume_boot_sd,
        "is_across_cards": outcome.is_across_cards,
        "results": [_result(result) for result in outcome.results],
        "candidate_only": list(outcome.new),
    }
    # ASCII: no character of a foreign file reaches a terminal as itself.
    return json.dumps(document, indent=1, allow_nan=False) + "\n"


def _change(change: Change) -> dict[str, str]:
    return {"fact": change.name, "old": change.old, "new": change.new, "card": change.where}


def _result(result: Result) -> dict[str, Any]:
    needed = result.decision.needed if result.decision else None
    return {
        "key": result.key,
        "family": result.family,
        "is_mean": result.is_mean,
        "verdict": result.verdict,
        "p_holm": result.decision.p_holm if result.decision else None,
        "time": _evidence(result.evidence),
        "tail": _evidence(result.tail),
        "energy": _evidence(result.energy),
        "needed": {"number": needed.number, "unit": needed.unit} if needed else None,
        "dropped": {"baseline": _dropped(result.dropped[0]), "candidate": _dropped(result.dropped[1])},
        "notes": list(result.notes),
        "cause": result.cause,
    }


def _dropped(side: Dropped) -> dict[str, Any]:
    return {"runs": side.runs, "causes": dict(side.causes)}


def _evidence(evidence: Evidence | None) -> dict[str, Any] | None:
    if evidence is None:
        return None
    return {
        "slowdown_ratio": _ratio(evidence.estimate),
        "low_ratio": _ratio(evidence.low),
        "high_ratio": _ratio(evidence.high),
        "margin_ratio": _ratio(evidence.margin),
        "detectable_ratio": _ratio(evidence.detectable),
        "p_slower": evidence.p_slower,
        "p_rank": evidence.p_rank,
        "unit": evidence.unit,
        "runs": list(evidence.runs),
        "boots": list(evidence.boots),
        "is_confounded": evidence.is_confounded,
    }


def _ratio(log: float) -> float:
    """A difference of logarithms as a ratio; two runs know nothing, and their bounds are beyond any number."""
    return float(f"{math.expm1(min(log, 700.0)):.6g}")
