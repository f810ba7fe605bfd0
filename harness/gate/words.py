"""The gate's sentences: every reason with its numbers and what to do. Pure."""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Protocol

from harness.corruption import alarm, is_suspected
from harness.gate.comparable import BUNDLES, Change, Comparability
from harness.gate.outcome import Dropped, Verdict
from harness.gate.rules import Decision, Evidence, Needed
from harness.gate.sides import Absent, Reading, SideRun

NO_CARD_SPREAD = (
    "how far cards differ in it is not known, so another card's time says nothing: "
    "let `ofpeak noise` see several cards, or gate a card against itself"
)
# The fact that stands for a bundle in one phrase.
_HEADS = {"cuda": "cuda_runtime", "host": "kernel"}
_MOST_LISTED = 6


class Asked(Protocol):
    """What a sentence needs of the question."""

    @property
    def changed(self) -> tuple[str, ...]:
        """What was declared as changed."""

    @property
    def assume_boot_sd(self) -> float | None:
        """How far boots are said to differ."""


def suspected(baseline: Iterable[SideRun], candidate: Iterable[SideRun]) -> Iterator[str]:
    """Every case in which silent corruption is suspected: figures of such a card decide nothing."""
    for side, runs in (("baseline", baseline), ("candidate", candidate)):
        for run in runs:
            card = run.card[1] if run.card else "of unknown hash"
            for key, absent in run.absent.items():
                if is_suspected(absent.reason):
                    yield f"{side}, run {run.run_id}: {alarm(key, card, absent.reason)}"


def percent(ratio: float, decimals: int = 1) -> str:
    """A change: 0.031 -> '+3.1 %'; what rounds to nothing is '+0.0 %'."""
    text = f"{100 * ratio:+.{decimals}f} %"
    return text.replace("-0.0 %", "+0.0 %") if float(text[:-2]) == 0 else text


def slowdown(evidence: Evidence) -> str:
    """The estimate: '+3.1 % ± 0.4', the ± reaching to the upper bound."""
    half = 100 * (math.expm1(evidence.high) - math.expm1(evidence.estimate))
    return f"{percent(math.expm1(evidence.estimate), _decimals(evidence))} ± {half:.{_decimals(evidence)}f}"


def margin(evidence: Evidence) -> str:
    """The margin: '1.5 %'."""
    return f"{100 * math.expm1(evidence.margin):.4g} %"


def detectable(evidence: Evidence) -> str:
    """The least slowdown that this many runs with this noise find."""
    percents = 100 * math.expm1(min(evidence.detectable, 5.0))
    return f"{percents:.{2 if percents < 2 else 1}f} %"


def _decimals(evidence: Evidence) -> int:
    """Two decimals where the interval is finer than a tenth of a percent."""
    return 2 if evidence.high - evidence.estimate < 0.001 else 1


def title(changed: Sequence[Change], declared: Sequence[str], baseline: Sequence[SideRun]) -> str:
    """What changed in one phrase: 'driver 570.86 -> 580.159'."""
    found = {change.name: change for change in changed}
    said = []
    for name in declared:
        head = _HEADS.get(name, name)
        if head in found:
            said.append(found[head].words)
            continue
        other = next((found[fact] for fact in BUNDLES.get(name, ()) if fact in found), None)
        fact = baseline[0].facts.get(head)
        value = "unknown" if fact is None or fact.value is None else fact.value
        said.append(other.words if other else f"{head} {value} on both sides")
    return ", ".join(said)


def findings(comparability: Comparability) -> Iterator[str]:
    """What changed with the driver and is no verdict, and that nothing changed at all."""
    for change in comparability.findings:
        yield f"came with the driver: {change.words}"
    if not comparability.changed:
        yield "nothing that was declared as changed differs: like is compared with like"


def left_out(
    baseline: Sequence[SideRun], candidate: Sequence[SideRun], shared: Sequence[tuple[str, str]]
) -> Iterator[str]:
    """Runs of cards that are on one side only."""
    for name, runs in (("baseline", baseline), ("candidate", candidate)):
        alone = [run for run in runs if run.card not in shared]
        if alone:
            cards = sorted({run.card[1] if run.card else "unknown" for run in alone})
            listed = ", ".join(cards[:_MOST_LISTED])
            yield f"left out: {_count(len(alone), 'run')} of the {name} on cards that the other side lacks ({listed})"


def natures(baseline: Sequence[Reading], candidate: Sequence[Reading]) -> list[str]:
    """Where one key means different work on the two sides."""
    old, new = (sorted({reading.nature.words for reading in side}) for side in (baseline, candidate))
    return [] if not new or (old == new and len(old) == 1) else [f"work {' / '.join(old)} -> {' / '.join(new)}"]


def why_missing(absent: Sequence[Absent]) -> str:
    """Why the candidate has no figure of a case."""
    if not absent:
        return "the candidate's runs do not have this case: measure it, with the same PROFILE and ONLY"
    first = absent[0]
    return f"{first.outcome.replace('_', ' ')} in {_count(len(absent), 'run')} of the candidate: {first.reason}"


def too_few(dropped: tuple[Dropped, Dropped]) -> str:
    """A side without runs enough for a spread."""
    usable = [side.runs - side.count for side in dropped]
    return f"usable runs: {usable[0]} of the baseline, {usable[1]} of the candidate; three a side are the least"


def why_undecided(evidence: Evidence, decision: Decision, asked: Asked) -> str:
    """Why there is no verdict, and how many runs or boots would bring one."""
    if decision.reason == "too few":
        return f"{evidence.runs[0]} and {evidence.runs[1]} usable runs; three a side are the least, five are better"
    if decision.reason == "confounded":
        what = " and ".join(asked.changed)
        boots = "one boot a side" if max(evidence.boots) == 1 else f"{evidence.boots[0]} and {evidence.boots[1]} boots"
        return (
            f"{what} and boot are confounded ({boots}): measure two boots a side or more, "
            "or state how far boots differ: --assume-boot-sd 0.3%"
        )
    said = {
        "noise": _hidden(evidence, asked),
        "between": f"it is slower by {_range(evidence)}, which reaches beyond its margin of {margin(evidence)}",
        "unlikely": f"slower, but not certain among all tests (p {decision.p_holm:.2g} after Holm's correction)",
        "ranks": f"slower on the mean, but the runs' ranks contradict (p {evidence.p_rank or 0:.2g}): a few make it",
    }[decision.reason]
    return f"{said}; {_needed(evidence, decision.needed)}"


def _hidden(evidence: Evidence, asked: Asked) -> str:
    """What could hide a slowdown of the margin: the runs' own noise, or how far boots are said to differ."""
    stated = sum(error.variance for error in evidence.errors if error.count is None)
    is_stated = asked.assume_boot_sd and stated > sum(error.variance for error in evidence.errors) / 2
    what = f"boots that differ by {100 * (asked.assume_boot_sd or 0):.4g} %" if is_stated else "its noise"
    return f"{what} could hide {detectable(evidence)}, its margin is {margin(evidence)}"


def _needed(evidence: Evidence, needed: Needed | None) -> str:
    if needed is None or needed.number is None:
        return "no number of runs or boots up to 200 would decide: it lies at the margin"
    present = min(evidence.boots if needed.unit == "boot" else evidence.runs)
    more = max(1, needed.number - present)
    return f"about {_count(needed.number, needed.unit)} a side would decide ({more} more)"


def longer_tail(tail: Evidence) -> str:
    """A tail that became longer while the mean did not."""
    return f"longer tail: p99 over median {slowdown(tail)} (margin {margin(tail)}), while the mean time passes"


def joules_lost(sides: Sequence[tuple[Sequence[Reading], Sequence[Reading]]]) -> tuple[Verdict, str] | None:
    """Joules that the baseline knows and the candidate does not; `None` where they are no question."""
    known = [[sum(r.energy_j is not None for r in side) for side in pair] for pair in sides]
    old, new = (sum(pair[side] for pair in known) for side in (0, 1))
    counts = [sum(len(pair[side]) for pair in sides) for side in (0, 1)]
    if old < 2 or new >= 2:
        return None
    return (
        "inconclusive",
        f"its joules are known in {old} of {counts[0]} runs of the baseline, {new} of {counts[1]} of the candidate",
    )


def undecided_joules(energy: Evidence) -> str:
    """Joules whose interval reaches beyond their margin."""
    return (
        f"the time passes, its joules are undecided: {slowdown(energy)}, margin {margin(energy)}, "
        f"noise could hide {detectable(energy)}"
    )


def more_frequent(causes: Iterable[str], sides: tuple[Dropped, Dropped], totals: Sequence[int]) -> str:
    """Causes that drop more of the candidate's runs than of the baseline's."""
    counts = [(cause, *(side.causes.get(cause, 0) for side in sides)) for cause in causes]
    said = [f"{cause}: {old} of {totals[0]} -> {new} of {totals[1]} runs" for cause, old, new in counts]
    return f"more frequent in the candidate, so it cannot pass: {'; '.join(said)}"


def dropped(side: Dropped) -> str:
    """Runs that do not count: '2 (1 unsettled, 1 throttled)'."""
    if not side.count:
        return "0"
    return f"{side.count} ({', '.join(f'{number} {cause}' for cause, number in _ordered(side.causes))})"


def _ordered(causes: Mapping[str, int]) -> list[tuple[str, int]]:
    return sorted(causes.items(), key=lambda item: (-item[1], item[0]))


def _range(evidence: Evidence) -> str:
    low, high = (100 * math.expm1(min(bound, 5.0)) for bound in (evidence.low, evidence.high))
    return f"{low:+.{_decimals(evidence)}f} to {high:+.{_decimals(evidence)}f} %"


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
