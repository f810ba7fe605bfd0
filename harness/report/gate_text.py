"""A gate's outcome as sections: worst first, then why, then what else differs. The same for terminal and Markdown.

Everything in them went through `text.clean`.
"""

from collections.abc import Iterator, Sequence

from harness import units
from harness.gate import words
from harness.gate.comparable import BUNDLES, Change
from harness.gate.outcome import Outcome, Result
from harness.report.sections import Block, Section
from harness.report.text import clean, counted, fold_keys

_HEADS = ("", "slower", "±", "margin", "can/show", "runs", "/dropped", "boots", "verdict")


def gate_sections(outcome: Outcome) -> Iterator[Section]:
    """Everything that a gate says but its last line."""
    yield _head(outcome)
    against = outcome.comparability.undeclared.get("all", ())
    if against:
        yield Section("not comparable", "what differs and was not declared", (), (), tuple(_difference_lines(against)))
    if outcome.results:
        yield Section("cases", "worst first; more time a launch, in percent", _HEADS, (_rows(outcome.results),), _key())
    reasons = tuple(_reason_lines(outcome.results))
    if reasons:
        yield Section("why", "", (), (), reasons)
    if outcome.findings:
        yield Section("findings", "no verdicts", (), (), tuple(clean(finding) for finding in outcome.findings))
    others = tuple(_other_lines(outcome))
    if others:
        yield Section("also different", "not judged", (), (), others)


def _head(outcome: Outcome) -> Section:
    baseline, candidate = outcome.runs
    cards = f"{counted(len(outcome.cards), 'card')} ({', '.join(outcome.cards)})" if outcome.cards else "across cards"
    boots = f"boots {outcome.boots[0]} and {outcome.boots[1]}"
    if outcome.assume_boot_sd is not None:
        boots += f", assumed to differ by {100 * outcome.assume_boot_sd:.4g} % where there is one a side"
    look = f", look {outcome.look} of several" if outcome.look else ""
    lines = [
        *outcome.suspected,
        *([f"INJECTED: the candidate did more than it counts ({outcome.injected})"] if outcome.injected else []),
        f"what changed: {outcome.title}",
        f"baseline {counted(baseline, 'run')}, candidate {counted(candidate, 'run')}, {cards}, {boots}",
        f"{counted(outcome.tests, 'test')} in one Holm correction, alpha {outcome.alpha:.2f}{look}",
        *(f"with it: {change.words}" for change in outcome.comparability.changed if change.words not in outcome.title),
    ]
    return Section(f"gate of {clean(outcome.gpu)}", "", (), (), tuple(clean(line) for line in lines))


def _rows(results: Sequence[Result]) -> Block:
    return Block("", tuple(_row(result) for result in results))


def _row(result: Result) -> tuple[str, ...]:
    evidence, (old, new) = result.evidence, result.dropped
    dropped = "" if result.is_mean else f"{old.count} / {new.count}"
    if evidence is None:
        unknown = (units.UNKNOWN,) * 4
        runs = units.UNKNOWN if result.is_mean else f"{old.runs - old.count} / {new.runs - new.count}"
        return clean(result.key), *unknown, runs, dropped, units.UNKNOWN, result.verdict
    estimate, half = words.slowdown(evidence).split(" % ± ")
    return (
        clean(result.key),
        estimate,
        half,
        words.margin(evidence).removesuffix(" %"),
        words.detectable(evidence).removesuffix(" %"),
        f"{evidence.runs[0]} / {evidence.runs[1]}",
        dropped,
        f"{evidence.boots[0]} / {evidence.boots[1]}",
        result.verdict,
    )


def _key() -> tuple[str, ...]:
    return (
        "±: to the upper 95 % bound, which must be below the margin to pass; can show: the least slowdown that so many "
        "runs with this noise find in 80 % of comparisons; runs, dropped and boots: baseline / candidate",
    )


def _reason_lines(results: Sequence[Result]) -> Iterator[str]:
    """Every reason once, with the cases that share it; worst first."""
    alike: dict[tuple[str, str], list[str]] = {}
    for result in results:
        for reason in (*result.notes, result.cause, _dropped(result)):
            if reason:
                alike.setdefault((result.verdict, reason), []).append(clean(result.key))
    for (verdict, reason), keys in alike.items():
        yield clean(f"{verdict}: {'; '.join(fold_keys(keys))}: {reason}")


def _dropped(result: Result) -> str:
    if result.verdict not in ("regression", "inconclusive") or not any(side.count for side in result.dropped):
        return ""
    old, new = (words.dropped(side) for side in result.dropped)
    return f"runs dropped: baseline {old}, candidate {new}"


def _difference_lines(changes: Sequence[Change]) -> Iterator[str]:
    for change in changes:
        yield clean(change.words)
    bundles = [name for name, facts in BUNDLES.items() if any(change.name in facts for change in changes)]
    if bundles:
        yield f"if that is what changed, declare it: --changed {','.join(bundles)} (with driver, if that changed too)"
    schemas = next((change for change in changes if change.name == "run_schema"), None)
    if schemas:
        yield (
            f"files of schema {schemas.old} and {schemas.new} do not hold the same facts, so that some are unknown on "
            "one side: measure the older side again"
        )
    if any(change.name == "card" for change in changes):
        yield "no card is on both sides: --across-cards adds the known spread between cards"


def _other_lines(outcome: Outcome) -> Iterator[str]:
    for change in outcome.comparability.informative:
        yield clean(change.words)
    undeclared = outcome.comparability.undeclared
    for change in undeclared.get("links", ()):
        yield clean(f"{change.words}: counts for collectives only")
    for change in undeclared.get("host", ()):
        yield clean(f"{change.words}: counts for latencies and host copies only")
    if outcome.new:
        listed = ", ".join(outcome.new[:3]) + (" ..." if len(outcome.new) > 3 else "")
        yield clean(f"{counted(len(outcome.new), 'case')} in the candidate only: {listed}")
