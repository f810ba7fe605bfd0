"""From the runs of both sides to the outcome: pair cards, compare facts, judge every case, decide over all of them."""

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from harness.errors import HarnessError
from harness.gate import rules, words
from harness.gate.comparable import Change, Comparability, Pair, compare_facts
from harness.gate.outcome import Dropped, Outcome, Result, Verdict
from harness.gate.policy import Policy
from harness.gate.rules import Evidence
from harness.gate.sides import Nature, Reading, SideRun, refuse_shared
from harness.gate.why import POWER_LIMITS, cause_of, energy_cause, gap_finding, joules_alone, shifts_of
from harness.model import SOAK, is_wanted

# What keeps a case from passing where it is a larger share of the candidate's runs.
_STARRED = ("partial", "failed", "not measured", "unsettled", "throttled")
# What says nothing about either side: such runs are as if they had not been.
_OUTSIDE = ("ruler off", "other processes")
_BUNDLED = "driver"
_SIDES: tuple[Literal[0], Literal[1]] = (0, 1)

Quantity = Callable[[Reading], float | None]


@dataclass(frozen=True, slots=True)
class _Used:
    """A reading that counts, with its run and its card."""

    run_id: str
    card: str
    reading: Reading


Boots = Mapping[str, Sequence[_Used]]


@dataclass(frozen=True)
class Question:
    """What the operator asks: what changed, and what else they know. `card_sd` is the known spread by key.

    `only` are patterns as of `ofpeak run --only`: other cases are not looked at, and the verdict says so.
    """

    changed: tuple[str, ...] = (_BUNDLED,)
    assume_boot_sd: float | None = None
    is_across_cards: bool = False
    card_sd: Mapping[str, float] = field(default_factory=dict)
    look: int | None = None
    only: tuple[str, ...] = ()

    @property
    def alpha(self) -> float:
        """The error rate of one look."""
        return rules.ALPHA if self.look is None else rules.LOOK_ALPHA


def gate(baseline: Sequence[SideRun], candidate: Sequence[SideRun], policy: Policy, question: Question) -> Outcome:
    """May what changed go out? `HarnessError` for sides that nobody can judge."""
    refuse_shared(baseline, candidate)
    injected = _injection(baseline, candidate)
    # Of every case: a card that flips bits decides nothing, whichever cases are judged.
    suspected = tuple(words.suspected(baseline, candidate))
    every = _keys(baseline)
    baseline, candidate = _narrowed(baseline, question.only), _narrowed(candidate, question.only)
    families = {reading.nature.family: None for run in (*baseline, *candidate) for reading in run.readings.values()}
    if not any(run.readings for run in baseline):
        if all(run.facts["profile"].value == SOAK for run in baseline):
            raise HarnessError("the baseline holds soaks alone, which no gate judges. Use 'compare', or measure quick.")
        named = f" that --only {' '.join(question.only)} names" if question.only else ""
        raise HarnessError(
            f"the baseline holds no measured case{named}, so there is nothing to compare with. "
            + ("Name families or keys that it holds." if named else "Measure it again.")
        )
    pairs, left_out, no_card = _pair_cards(baseline, candidate, question.is_across_cards)
    comparability = compare_facts(pairs, question.changed, families)
    if no_card is not None:
        undeclared = dict(comparability.undeclared)
        undeclared["all"] = (*undeclared.get("all", ()), no_card)
        comparability = replace(comparability, undeclared=undeclared)
    is_comparable = not comparability.undeclared.get("all")
    judged = _Judging(pairs, policy, question, comparability).results() if is_comparable else []
    used = ([run for _, side, _ in pairs for run in side], [run for _, _, side in pairs for run in side])
    return Outcome(
        gpu=baseline[0].gpu,
        title=words.title(comparability.changed, question.changed, baseline),
        changed=question.changed,
        comparability=comparability,
        cards=tuple(label for label, _, _ in pairs if label),
        runs=(len(used[0]), len(used[1])),
        boots=(_count_boots(used[0]), _count_boots(used[1])),
        results=tuple(sorted((j.result for j in judged), key=_worst_first)),
        findings=(*left_out, *words.findings(comparability), *_gap_findings(judged)),
        injected=injected,
        suspected=suspected,
        new=tuple(sorted(_keys(used[1]) - _keys(used[0]))) if is_comparable else (),
        alpha=question.alpha,
        tests=sum(j.result.evidence is not None for j in judged),
        assume_boot_sd=question.assume_boot_sd,
        is_across_cards=question.is_across_cards and not any(label for label, _, _ in pairs),
        look=question.look,
        only=question.only,
        aside=len(every - _keys(baseline)),
    )


def _narrowed(runs: Sequence[SideRun], only: Sequence[str]) -> list[SideRun]:
    """The runs with those cases alone."""
    return [
        replace(
            run,
            readings={key: r for key, r in run.readings.items() if is_wanted(r.nature.family, key, only)},
            absent={key: a for key, a in run.absent.items() if is_wanted(a.family, key, only)},
        )
        for run in runs
    ]


def _injection(baseline: Sequence[SideRun], candidate: Sequence[SideRun]) -> str:
    """What the candidate was slowed down by on purpose, to test this gate; "" for real runs.

    A baseline that was would let everything pass, and a candidate that was so in part is nothing.
    """
    slowed = next((run for run in baseline if run.injected), None)
    if slowed is not None:
        raise HarnessError(
            f"baseline: run {slowed.run_id} was slowed down on purpose ({' '.join(slowed.injected)}): beside it "
            "everything would look fast. Name runs without INJECT."
        )
    kinds = {run.injected for run in candidate}
    if len(kinds) > 1:
        raise HarnessError("candidate: some runs were slowed down on purpose and some were not. Name one kind.")
    return " ".join(next(iter(kinds), ()))


# Cards


def _pair_cards(
    baseline: Sequence[SideRun], candidate: Sequence[SideRun], is_across_cards: bool
) -> tuple[list[Pair], list[str], Change | None]:
    """Each card with itself; where none is on both sides all with all, which is no comparison unless asked for."""
    sides: list[dict[tuple[str, str], list[SideRun]]] = [{}, {}]
    for side, runs in zip(sides, (baseline, candidate), strict=True):
        for run in runs:
            if run.card is not None:
                side.setdefault(run.card, []).append(run)
    shared = [card for card in sides[0] if card in sides[1]]
    if shared:
        pairs: list[Pair] = [(card[1], sides[0][card], sides[1][card]) for card in shared]
        return pairs, list(words.left_out(baseline, candidate, shared)), None
    pairs = [("", list(baseline), list(candidate))]
    if is_across_cards:
        return pairs, [], None
    cards = [sorted({run.card[1] if run.card else "unknown" for run in side}) for side in (baseline, candidate)]
    return pairs, [], Change("card", " / ".join(cards[0]), " / ".join(cards[1]))


def _count_boots(runs: Iterable[SideRun]) -> int:
    return len({run.boot for run in runs})


def _keys(runs: Iterable[SideRun]) -> set[str]:
    return {key for run in runs for key in run.readings}


# Cases


@dataclass(frozen=True)
class _Judged:
    """A result with the usable readings behind it, by card: baseline and candidate by boot."""

    result: Result
    nature: Nature | None = None
    sides: tuple[tuple[Boots, Boots], ...] = ()

    def readings(self) -> list[tuple[list[Reading], list[Reading]]]:
        """The usable readings of every card that has some on both sides."""
        flat = [tuple([used.reading for used in _flat(side)] for side in pair) for pair in self.sides]
        return [(pair[0], pair[1]) for pair in flat if pair[0] and pair[1]]


class _Judging:
    """One comparison under way."""

    def __init__(self, pairs: Sequence[Pair], policy: Policy, question: Question, facts: Comparability) -> None:
        self._pairs = pairs
        self._policy = policy
        self._question = question
        self._facts = facts

    def results(self) -> list[_Judged]:
        """Every case of the baseline and every family's mean, with its verdict."""
        baseline = [run for _, side, _ in self._pairs for run in side]
        cases = [self._case(key) for key in sorted(_keys(baseline))]
        judged = [*cases, *self._means(cases)]
        at = [i for i, one in enumerate(judged) if one.result.evidence is not None]
        decisions = rules.decide([e for i in at if (e := judged[i].result.evidence)], alpha=self._question.alpha)
        for i, decision in zip(at, decisions, strict=True):
            judged[i] = replace(judged[i], result=replace(judged[i].result, decision=decision))
        return list(self._concluded(judged))

    def _case(self, key: str) -> _Judged:
        """The evidence on one case; already a verdict where it cannot be compared or is missing."""
        baseline = [r for _, side, _ in self._pairs for run in side if (r := run.readings.get(key))]
        candidate = [r for _, _, side in self._pairs for run in side if (r := run.readings.get(key))]
        nature = baseline[0].nature
        result = Result(key, nature.family, "pass", dropped=self._dropped(key))
        changes = self._facts.against(nature.family, nature.is_on_host, nature.is_between_gpus)
        against = [change.words for change in changes]
        against += words.natures(baseline, candidate)
        if against:
            return _Judged(replace(result, verdict="not comparable", notes=tuple(against)))
        if not candidate:
            absent = [run.absent[key] for _, _, side in self._pairs for run in side if key in run.absent]
            return _Judged(replace(result, verdict="missing", notes=(words.why_missing(absent),)))
        sides = tuple((self._usable(old, key), self._usable(new, key)) for _, old, new in self._pairs)
        margin = self._policy.margin(nature.family, nature.kind)
        result = replace(
            result,
            evidence=self._evidence(sides, lambda r: r.log_s, margin, key),
            tail=self._evidence(sides, lambda r: r.log_tail, self._policy.tail, key),
            energy=self._energy(sides, key),
        )
        return _Judged(result, nature, sides)

    def _evidence(
        self, sides: Sequence[tuple[Boots, Boots]], value: Quantity, margin: float, key: str
    ) -> Evidence | None:
        """The cards' differences as one; `None` where no card has two runs a side that know the quantity."""
        question, found = self._question, []
        for pair in sides:
            values = [
                [[v for used in boot if (v := value(used.reading)) is not None] for boot in side.values()]
                for side in pair
            ]
            if all(sum(map(len, side)) >= 2 for side in values):
                found.append(
                    rules.judge(
                        values[0],
                        values[1],
                        margin,
                        alpha=question.alpha,
                        assume_boot_sd=question.assume_boot_sd,
                        across_card_sd=question.card_sd.get(key) if self._is_across else None,
                        cards=_count_cards(pair),
                    )
                )
        return rules.combine(found) if found else None

    @property
    def _is_across(self) -> bool:
        return self._question.is_across_cards and not self._pairs[0][0]

    def _energy(self, sides: Sequence[tuple[Boots, Boots]], key: str) -> Evidence | None:
        """The joules, where no run of either side was at its power limit: there they are only the time again."""
        if any(u.reading.limited_by in POWER_LIMITS for pair in sides for side in pair for u in _flat(side)):
            return None
        joules = self._policy.energy
        return self._evidence(sides, lambda r: None if r.energy_j is None else math.log(r.energy_j), joules, key)

    def _means(self, cases: Sequence[_Judged]) -> Iterator[_Judged]:
        """The mean of every family's throughput cases: what is small in each case and in all of them."""
        members: dict[str, list[_Judged]] = {}
        for case in cases:
            if case.nature is not None and case.nature.kind == "throughput" and case.result.evidence is not None:
                members.setdefault(case.nature.family, []).append(case)
        for family, alike in members.items():
            if len(alike) > 1:
                yield self._mean(family, alike)

    def _mean(self, family: str, cases: Sequence[_Judged]) -> _Judged:
        question, found = self._question, []
        known = [sd for case in cases if (sd := question.card_sd.get(case.result.key)) is not None]
        for at in range(len(self._pairs)):
            sides = [_relative([case.sides[at] for case in cases], side) for side in _SIDES]
            if all(sum(map(len, side)) >= 2 for side in sides):
                found.append(
                    rules.judge(
                        sides[0],
                        sides[1],
                        self._policy.family_mean,
                        alpha=question.alpha,
                        assume_boot_sd=question.assume_boot_sd,
                        across_card_sd=max(known, default=None) if self._is_across else None,
                        cards=_count_cards(cases[0].sides[at]),
                    )
                )
        key = f"mean of {len(cases)} cases of {family}"
        evidence = rules.combine(found) if found else None
        return _Judged(Result(key, family, "pass", evidence=evidence, is_mean=True))

    # Which runs count

    def _usable(self, runs: Sequence[SideRun], key: str) -> Boots:
        boots: dict[str, list[_Used]] = {}
        for run in runs:
            if not self._cause(run, key):
                card = "" if run.card is None else "/".join(run.card)
                # Across cards a card is what a boot is within one: the same boot of two cards is two.
                boot = f"{run.boot} {card}" if self._is_across else run.boot
                boots.setdefault(boot, []).append(_Used(run.run_id, card, run.readings[key]))
        return boots

    def _cause(self, run: SideRun, key: str) -> str:
        """Why a run does not count for a case; "" where it does. None of the rules looks at the time."""
        drop, reading = self._policy.drop, run.readings.get(key)
        if "ruler_off" in drop and run.is_ruler_off:
            return "ruler off"
        if "other_processes" in drop and run.other_processes:
            return "other processes"
        if "partial" in drop and run.is_partial:
            return "partial"
        if reading is None:
            return "failed" if key in run.absent and run.absent[key].outcome == "failed" else "not measured"
        if "unsettled" in drop and reading.is_unsettled:
            return "unsettled"
        return "throttled" if reading.limited_by in self._policy.throttled else ""

    def _dropped(self, key: str) -> tuple[Dropped, Dropped]:
        sides = ([r for _, side, _ in self._pairs for r in side], [r for _, _, side in self._pairs for r in side])
        counts = [Counter(cause for run in side if (cause := self._cause(run, key))) for side in sides]
        return Dropped(len(sides[0]), dict(counts[0])), Dropped(len(sides[1]), dict(counts[1]))

    # Verdicts

    def _concluded(self, judged: Sequence[_Judged]) -> Iterator[_Judged]:
        """Verdicts with reasons and causes. Tails and joules have a Holm correction of their own, over all of them."""
        tests = [
            (i, name, evidence)
            for i, one in enumerate(judged)
            for name in ("tail", "energy")
            if (evidence := getattr(one.result, name)) is not None
        ]
        corrected = rules.holm([evidence.p_slower for _, _, evidence in tests])
        p_values = {(i, name): p for (i, name, _), p in zip(tests, corrected, strict=True)}
        for i, one in enumerate(judged):
            if one.result.verdict != "pass":
                yield one
            else:
                p_tail, p_energy = (p_values.get((i, name), 1.0) for name in ("tail", "energy"))
                yield replace(one, result=self._conclude(one, p_tail, p_energy))

    def _conclude(self, one: _Judged, p_tail: float, p_energy: float) -> Result:
        result, decision = one.result, one.result.decision
        if result.evidence is None or decision is None:
            return replace(result, verdict="inconclusive", notes=(words.too_few(result.dropped),))
        if decision.verdict != "pass":
            is_slower = decision.verdict == "regression"
            cause = cause_of(shifts_of(one.readings())) if is_slower and not result.is_mean else ""
            note = "" if is_slower else words.why_undecided(result.evidence, decision, self._question)
            return replace(result, verdict=decision.verdict, notes=(note,) if note else (), cause=cause)
        if result.is_mean:
            return self._unknown_cards(result)
        verdicts = [self._tail(result, p_tail), self._joules(one, p_energy), self._frequency(result)]
        found = [found for found in verdicts if found is not None]
        for verdict in ("regression", "inconclusive"):
            if any(v == verdict for v, _ in found):
                return replace(result, verdict=verdict, notes=tuple(note for _, note in found))
        return self._unknown_cards(result)

    def _unknown_cards(self, result: Result) -> Result:
        """Across cards nothing passes whose spread between cards is not known."""
        if self._is_across and not self._question.card_sd.get(result.key) and not result.is_mean:
            return replace(result, verdict="inconclusive", notes=(words.NO_CARD_SPREAD,))
        if self._is_across and result.is_mean and not self._question.card_sd:
            return replace(result, verdict="inconclusive", notes=(words.NO_CARD_SPREAD,))
        return result

    def _tail(self, result: Result, p_holm: float) -> tuple[Verdict, str] | None:
        tail = result.tail
        if tail is None or tail.is_confounded or not rules.is_established(tail, p_holm, self._question.alpha):
            return None
        return "regression", words.longer_tail(tail)

    def _joules(self, one: _Judged, p_holm: float) -> tuple[Verdict, str] | None:
        energy = one.result.energy
        if energy is None:
            return words.joules_lost(one.readings())
        if energy.is_confounded or not energy.is_enough:
            return "inconclusive", words.undecided_joules(energy)
        if rules.is_established(energy, p_holm, self._question.alpha):
            shifts = shifts_of(one.readings())
            cause = energy_cause(shifts)
            return ("regression", cause) if cause else ("inconclusive", joules_alone(shifts))
        if energy.high < energy.margin and energy.detectable <= energy.margin:
            return None
        return "inconclusive", words.undecided_joules(energy)

    def _frequency(self, result: Result) -> tuple[Verdict, str] | None:
        """Causes that are more frequent in the candidate's runs: dropping them would hide what the change did."""
        sides = result.dropped
        totals = [side.runs - sum(side.causes.get(cause, 0) for cause in _OUTSIDE) for side in sides]
        more = [
            cause
            for cause in _STARRED
            if sides[1].causes.get(cause, 0) * totals[0] > sides[0].causes.get(cause, 0) * totals[1]
        ]
        return ("inconclusive", words.more_frequent(more, sides, totals)) if more else None


def _flat(side: Boots) -> list[_Used]:
    return [used for boot in side.values() for used in boot]


def _count_cards(pair: tuple[Boots, Boots]) -> tuple[int, int]:
    counts = [len({used.card for used in _flat(side)}) for side in pair]
    return max(1, counts[0]), max(1, counts[1])


def _relative(pairs: Sequence[tuple[Boots, Boots]], side: Literal[0, 1]) -> list[list[float]]:
    """The mean L of every run over the cases, each relative to the baseline's mean of that case, by boot."""
    found: dict[str, dict[str, list[float]]] = {}
    for pair in pairs:
        before = [used.reading.log_s for used in _flat(pair[0])]
        if before:
            centre = math.fsum(before) / len(before)
            for boot, readings in pair[side].items():
                for used in readings:
                    found.setdefault(boot, {}).setdefault(used.run_id, []).append(used.reading.log_s - centre)
    return [[math.fsum(logs) / len(logs) for logs in runs.values()] for runs in found.values()]


def _gap_findings(judged: Sequence[_Judged]) -> Iterator[str]:
    """NVML's clock against the true one, said once with the case in which it moved most."""
    moved = []
    for one in judged:
        sides = one.readings()
        if sides and (said := gap_finding(shifts := shifts_of(sides))):
            moved.append((abs(shifts.gap.change) if shifts.gap else 0.0, one.result.key, said))
    if moved:
        _, key, said = max(moved)
        more = f", and in {len(moved) - 1} more" if len(moved) > 1 else ""
        yield f"{said} in {key}{more}"


def _worst_first(result: Result) -> tuple[int, float, str]:
    order = ("not comparable", "regression", "missing", "inconclusive", "pass")
    evidence = result.evidence
    relative = evidence.estimate / evidence.margin if evidence else 0.0
    return order.index(result.verdict), -relative, result.key
