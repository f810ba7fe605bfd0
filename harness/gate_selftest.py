"""The gate on runs in which nothing changed, and on the same runs with a slowdown put in: how often is it right?

Runs of one card under the same driver, libraries and limits are cut into blocks that follow each other in time, never
shuffled: what drifts or comes in spells must show. Each block is gated against each other, both ways, by the gate's
own rules. Floor 3.
"""

import itertools
import math
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, TypeVar

import numpy as np

from harness import lean_files
from harness.errors import HarnessError
from harness.gate.judging import Question, gate
from harness.gate.outcome import Outcome
from harness.gate.policy import Policy
from harness.gate.rules import LEAST_RUNS
from harness.gate.sides import Reading, SideRun, side_run
from harness.model import Record, Run, Samples, moment_of
from harness.noise import conditions_of
from harness.noise_finding import cut_blocks

SLOWDOWNS = (0.005, 0.01, 0.02, 0.03, 0.05)
SEED = 20261130
# Of many blocks and cases so many pairs a grouping, and so many trials a figure, drawn by the seed.
MOST_PAIRS = 200
MOST_TRIALS = 60
SOME_RATIO = 0.4
TAIL_RATIO = 0.05

Grouping = Literal["halves", "starts", "days", "5 in a row", "3 in a row"]
GROUPINGS: tuple[Grouping, ...] = ("halves", "starts", "days", "5 in a row", "3 in a row")
Pattern = Literal["every sample", "40 % of samples", "slowest 5 % of samples"]
PATTERNS: tuple[Pattern, ...] = ("every sample", "40 % of samples", "slowest 5 % of samples")


@dataclass(frozen=True)
class TestRun:
    """A run with its place in time; `start` names the set, boot and block of time that it belongs to."""

    run: Run
    side: SideRun
    began_s: float
    day: str
    start: tuple[str, str, int]


Block = tuple[TestRun, ...]
T = TypeVar("T")


@dataclass(frozen=True)
class Alarm:
    """A case, or a family's mean, that the gate called slower although nothing was changed."""

    baseline: str
    candidate: str
    key: str
    slowdown: float
    margin: float
    cause: str


@dataclass(frozen=True)
class Equal:
    """Blocks of one grouping against each other. `independent` counts pairs that share no block.

    `false` and `passes` are comparisons: with any false regression, and with a pass of everything. `cases` counts the
    verdicts of single cases, `undecided` by key those that were neither. `above` counts by key the intervals that lie
    above zero: where runs are independent one in twenty does (alpha), and spells of slow runs make it more.
    """

    grouping: Grouping
    blocks: int
    independent: int
    comparisons: int
    false: int
    passes: int
    cases: Mapping[str, int]
    undecided: Mapping[str, int]
    above: Mapping[str, int]
    alarms: tuple[Alarm, ...]
    reason: str = ""


@dataclass(frozen=True)
class Power:
    """What became of a slowdown in one case of a family: so many trials called it slower, so many let it pass."""

    family: str
    pattern: Pattern
    slowdown: float
    trials: int
    found: int
    passed: int


@dataclass(frozen=True)
class SelfTest:
    """What the gate says of these runs. `powered_by` is the grouping whose blocks the slowdowns were put into."""

    gpus: tuple[str, ...]
    runs: int
    cards: int
    drivers: tuple[str, ...]
    boots: int
    first_created_at: str
    last_created_at: str
    assume_boot_sd: float
    margins: Mapping[str, tuple[float, ...]]
    equal: tuple[Equal, ...]
    powered_by: Grouping | None
    power: tuple[Power, ...]


def selftest(files: Sequence[Path], policy: Policy, assume_boot_sd: float = 0.0) -> SelfTest:
    """The self-test of these run files; `HarnessError` where no card has runs enough that are alike."""
    runs = _read(files)
    series = _series(runs)
    usable = [alike for alike in series if len(alike) >= 2 * LEAST_RUNS]
    if not usable:
        most = max(map(len, series))
        raise HarnessError(
            f"a self-test needs {2 * LEAST_RUNS} runs of one card under the same conditions; of {len(runs)} there are "
            f"at most {most}. Measure more: `make bench PROFILE=quick RUNS=20`."
        )
    question = Question(assume_boot_sd=assume_boot_sd)
    blocks = {grouping: [_cut(grouping, alike) for alike in usable] for grouping in GROUPINGS}
    equal = tuple(_equal(grouping, blocks[grouping], policy, question) for grouping in GROUPINGS)
    candidates: tuple[Grouping, ...] = ("5 in a row", "halves")
    powered_by = next((g for g in candidates if any(len(cut) > 1 for cut in blocks[g])), None)
    kept = [run for alike in usable for run in alike]
    moments = sorted((run.began_s, run.run.created_at) for run in kept)
    return SelfTest(
        gpus=tuple(dict.fromkeys(run.side.gpu for run in kept)),
        runs=len(kept),
        cards=len({run.side.card for run in kept}),
        drivers=tuple(dict.fromkeys(run.side.driver for run in kept)),
        boots=len({run.side.boot for run in kept}),
        first_created_at=moments[0][1],
        last_created_at=moments[-1][1],
        assume_boot_sd=assume_boot_sd,
        margins=_margins(kept, policy),
        equal=equal,
        powered_by=powered_by,
        power=tuple(_power(blocks[powered_by], policy, question)) if powered_by else (),
    )


def slow_down(samples: Samples, pattern: Pattern, slowdown: float, rng: np.random.Generator) -> Samples:
    """The samples with a slowdown in all of them, in 40 % drawn by chance, or in the slowest 5 %."""
    seconds = np.array(samples.seconds)
    count = len(seconds)
    if pattern == "every sample":
        slow = np.arange(count)
    elif pattern == "40 % of samples":
        slow = rng.choice(count, max(1, round(SOME_RATIO * count)), replace=False)
    else:
        slow = np.argsort(seconds)[-math.ceil(TAIL_RATIO * count) :]
    slower = seconds.copy()
    slower[slow] *= 1 + slowdown
    window_s = samples.window_s * float(slower.sum() / seconds.sum())
    return replace(samples, seconds=tuple(slower.tolist()), window_s=window_s)


# Runs and blocks


def _read(files: Sequence[Path]) -> list[TestRun]:
    loaded: dict[str, tuple[Path, Run]] = {}
    for file in files:
        run = lean_files.load(file)
        if run.run_id in loaded:
            raise HarnessError(f"{loaded[run.run_id][0]} and {file} hold the same run. Name each once.")
        loaded[run.run_id] = (file, run)
    return list(_placed(loaded.values()))


def _placed(loaded: Iterable[tuple[Path, Run]]) -> Iterator[TestRun]:
    """Runs with their starts: a set's runs since one boot, cut where the pause between two is a long one."""
    alike: dict[tuple[str, str, object], list[tuple[float, Run, SideRun]]] = {}
    for file, run in loaded:
        side = side_run(run, str(file))
        place = (str(file.absolute().parent), side.boot, side.card)
        alike.setdefault(place, []).append((moment_of(run.created_at).timestamp(), run, side))
    for (folder, boot, _), found in alike.items():
        found.sort(key=lambda one: (one[0], one[1].run_id))
        for number, (began_s, run, side) in zip(cut_blocks([one[0] for one in found]), found, strict=True):
            yield TestRun(run, side, began_s, moment_of(run.created_at).date().isoformat(), (folder, boot, number))


def _series(runs: Sequence[TestRun]) -> list[list[TestRun]]:
    """Runs of one card under the same conditions, in order of time."""
    found: dict[object, list[TestRun]] = {}
    for run in sorted(runs, key=lambda run: (run.began_s, run.run.run_id)):
        found.setdefault((run.side.gpu, run.side.card, conditions_of(run.run)), []).append(run)
    return list(found.values())


def _cut(grouping: Grouping, runs: Sequence[TestRun]) -> list[Block]:
    """The blocks of a series with runs enough for a verdict; what is left over is in none."""
    if grouping == "halves":
        half = len(runs) // 2
        cut: list[Sequence[TestRun]] = [runs[:half], runs[half:]]
    elif grouping in ("starts", "days"):
        name: Callable[[TestRun], object] = (lambda run: run.start) if grouping == "starts" else (lambda run: run.day)
        groups: dict[object, list[TestRun]] = {}
        for run in runs:
            groups.setdefault(name(run), []).append(run)
        cut = list(groups.values())
    else:
        size = int(grouping.partition(" ")[0])
        cut = [runs[first : first + size] for first in range(0, len(runs) - size + 1, size)]
    return [tuple(block) for block in cut if len(block) >= LEAST_RUNS]


# Equal sides


def _equal(grouping: Grouping, cut: Sequence[Sequence[Block]], policy: Policy, question: Question) -> Equal:
    blocks = sum(map(len, cut))
    pairs = [pair for alike in cut for pair in itertools.permutations(alike, 2)]
    outcomes = [(old, new, _gate(old, new, policy, question)) for old, new in _drawn(pairs, MOST_PAIRS, grouping)]
    judged = [result for _, _, outcome in outcomes for result in outcome.cases]
    return Equal(
        grouping=grouping,
        blocks=blocks,
        independent=sum(len(alike) // 2 for alike in cut),
        comparisons=len(outcomes),
        false=sum(any(r.verdict == "regression" for r in outcome.results) for _, _, outcome in outcomes),
        passes=sum(outcome.verdicts == ("pass",) for _, _, outcome in outcomes),
        cases=Counter(result.verdict for result in judged),
        undecided=Counter(
            result.key
            for _, _, outcome in outcomes
            for result in outcome.results
            if result.verdict not in ("pass", "regression")
        ),
        above=Counter(result.key for result in judged if result.evidence is not None and result.evidence.low > 0),
        alarms=tuple(alarm for old, new, outcome in outcomes for alarm in _alarms(old, new, outcome)),
        reason="" if outcomes else f"fewer than two blocks of {LEAST_RUNS} runs or more",
    )


def _gate(old: Block, new: Block, policy: Policy, question: Question) -> Outcome:
    return gate([run.side for run in old], [run.side for run in new], policy, question)


def _alarms(old: Block, new: Block, outcome: Outcome) -> Iterator[Alarm]:
    for result in outcome.results:
        if result.verdict == "regression":
            evidence = result.evidence
            yield Alarm(
                _span(old),
                _span(new),
                result.key,
                math.expm1(evidence.estimate) if evidence else math.nan,
                math.expm1(evidence.margin) if evidence else math.nan,
                result.cause or "; ".join(result.notes),
            )


def _span(block: Block) -> str:
    """When a block's runs began: `16:33 to 16:38`, with the day where it is not one."""
    first, last = (moment_of(run.run.created_at) for run in (block[0], block[-1]))
    form = "%H:%M" if first.date() == last.date() else "%Y-%m-%d %H:%M"
    return f"{first:%Y-%m-%d %H:%M} to {last.strftime(form)}"


# Slowdowns put in


def _power(cut: Sequence[Sequence[Block]], policy: Policy, question: Question) -> Iterator[Power]:
    """A slowdown in one case of all the candidate's runs, everything else as measured."""
    pairs = [pair for alike in cut for pair in itertools.permutations(alike, 2)]
    families: dict[str, list[str]] = {}
    for key, reading in sorted(_readings(pairs).items()):
        families.setdefault(reading.nature.family, []).append(key)
    for family, keys in families.items():
        trials = [(old, new, key) for old, new in pairs for key in keys if _holds(old, new, key)]
        if not trials:
            continue
        for pattern in PATTERNS:
            for slowdown in SLOWDOWNS:
                name = f"{family} {pattern} {slowdown}"
                rng = np.random.default_rng([SEED, zlib.crc32(name.encode())])
                drawn = _drawn(trials, MOST_TRIALS, name)
                verdicts = [_slowed(*trial, pattern, slowdown, rng, policy, question) for trial in drawn]
                found, passed = verdicts.count("regression"), verdicts.count("pass")
                yield Power(family, pattern, slowdown, len(drawn), found, passed)


def _slowed(
    old: Block,
    new: Block,
    key: str,
    pattern: Pattern,
    slowdown: float,
    rng: np.random.Generator,
    policy: Policy,
    question: Question,
) -> str:
    """The verdict on a case whose every run of the candidate was slowed down."""
    sides = [_slow_side(run, key, pattern, slowdown, rng) for run in new]
    outcome = gate([run.side for run in old], sides, policy, question)
    return next(result.verdict for result in outcome.results if result.key == key)


def _slow_side(test: TestRun, key: str, pattern: Pattern, slowdown: float, rng: np.random.Generator) -> SideRun:
    if key not in test.side.readings:
        return test.side
    record = next(record for record in test.run.records if record.key == key)
    slow = side_run(replace(test.run, records=(_slow_record(record, pattern, slowdown, rng),)))
    return replace(test.side, readings={**test.side.readings, key: slow.readings[key]})


def _slow_record(record: Record, pattern: Pattern, slowdown: float, rng: np.random.Generator) -> Record:
    assert record.samples is not None
    return replace(record, samples=slow_down(record.samples, pattern, slowdown, rng))


def _readings(pairs: Iterable[tuple[Block, Block]]) -> dict[str, Reading]:
    return {key: reading for old, _ in pairs for run in old for key, reading in run.side.readings.items()}


def _holds(old: Block, new: Block, key: str) -> bool:
    return all(any(key in run.side.readings for run in block) for block in (old, new))


def _margins(runs: Iterable[TestRun], policy: Policy) -> dict[str, tuple[float, ...]]:
    """The margins that the cases of each family have."""
    found: dict[str, set[float]] = {}
    for run in runs:
        for reading in run.side.readings.values():
            nature = reading.nature
            found.setdefault(nature.family, set()).add(policy.margin(nature.family, nature.kind))
    return {family: tuple(sorted(margins)) for family, margins in sorted(found.items())}


def _drawn(items: Sequence[T], most: int, name: str) -> list[T]:
    """All items, or so many of them by a seed of that name, in their order."""
    if len(items) <= most:
        return list(items)
    rng = np.random.default_rng([SEED, zlib.crc32(name.encode())])
    return [items[place] for place in sorted(rng.choice(len(items), most, replace=False).tolist())]
