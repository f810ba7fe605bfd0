"""The gate's last line, which alone tells the outcome: all that applies, what changed, the worst case."""

from harness.corruption import SUSPECTED
from harness.gate import words
from harness.gate.outcome import Outcome, Result, Verdict
from harness.report.text import clean, counted

_NAMES: dict[Verdict, str] = {
    "not comparable": "NOT COMPARABLE",
    "regression": "REGRESSION",
    "missing": "MISSING",
    "inconclusive": "INCONCLUSIVE",
    "pass": "PASS",
}
_MOST_DIFFERENCES = 3


def verdict_line(outcome: Outcome) -> str:
    """`PASS: driver 570.86 -> 580.159 on NVIDIA H200, 41 cases, worst +0.3 % ± 0.4 (margin 1.5 %)`."""
    names = ", ".join(_NAMES[verdict] for verdict in outcome.verdicts)
    head = f"{names}: {outcome.title} on {outcome.gpu}"
    if outcome.suspected:
        names += f" ({SUSPECTED.upper()})"
        head = f"{names}: {outcome.title} on {outcome.gpu}"
    if outcome.injected:
        head = f"{names} (candidate INJECTED {outcome.injected}, a test of the gate): {outcome.title} on {outcome.gpu}"
    against = outcome.comparability.undeclared.get("all", ())
    if against:
        shown = "; ".join(change.words for change in against[:_MOST_DIFFERENCES])
        rest = len(against) - _MOST_DIFFERENCES
        return clean(f"{head}: {shown}" + (f"; and {counted(rest, 'more difference')}" if rest > 0 else ""))
    said = [_looked_at(outcome), *_counts(outcome), *_worst(outcome), *_stated(outcome)]
    return clean(f"{head}, {', '.join(said)}")


def _looked_at(outcome: Outcome) -> str:
    cases = counted(len(outcome.cases), "case")
    return f"{cases} of --only {' '.join(outcome.only)} ({outcome.aside} not looked at)" if outcome.only else cases


def _counts(outcome: Outcome) -> list[str]:
    if outcome.verdicts == ("pass",):
        return []
    found = []
    for verdict, said in (
        ("regression", "slower"),
        ("not comparable", "not comparable"),
        ("missing", "missing"),
        ("inconclusive", "inconclusive"),
    ):
        number = sum(result.verdict == verdict for result in outcome.cases)
        means = [result.family for result in outcome.results if result.is_mean and result.verdict == verdict]
        parts = [str(number)] * (number > 0) + [f"the mean of {' and '.join(means)}"] * bool(means)
        if parts:
            found.append(f"{' and '.join(parts)} {said}")
    return found


def _worst(outcome: Outcome) -> list[str]:
    """The case, or family's mean, that is slowest for its margin; its name where it is no pass."""
    judged = [(result, e.estimate / e.margin) for result in outcome.results if (e := result.evidence) is not None]
    if not judged:
        return []
    slow = [pair for pair in judged if pair[0].verdict == "regression"]
    worst = max(slow or judged, key=lambda pair: pair[1])[0]
    return [f"worst {_name(worst, outcome)}{figures(worst)}"]


def _name(result: Result, outcome: Outcome) -> str:
    return "" if outcome.verdicts == ("pass",) else f"{result.key} "


def figures(result: Result) -> str:
    """How much slower a judged case is, and what margin it has."""
    assert result.evidence is not None
    return f"{words.slowdown(result.evidence)} (margin {words.margin(result.evidence)})"


def _stated(outcome: Outcome) -> list[str]:
    said = []
    if outcome.assume_boot_sd is not None:
        said.append(f"boots assumed to differ by {100 * outcome.assume_boot_sd:.4g} %")
    if outcome.is_across_cards:
        said.append("across cards")
    return said
