"""Known noise as sections: tables of strings, a line a case and card. Percent of the time a launch, unless named else.

Everything in them went through `text.clean`.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence

from harness import units
from harness.noise import SIDES, CardNoise, CaseNoise, Conditions, Group, NoiseFile, Spread, TooFew
from harness.report.sections import Block, Section
from harness.report.text import clean, counted, fold_keys

_LISTED_KEYS = 3
_COUNTED = {
    "unsettled": "unsettled, left out",
    "ruler_off": "ruler off, left out",
    "throttled": "throttled by heat or brake, in the figures",
    "starved": "starved launch queue, in the figures",
}


def noise_sections(noise: NoiseFile) -> Iterator[Section]:
    """Everything that a noise file says, top to bottom."""
    yield _head(noise)
    for number, group in enumerate(noise.groups, start=1):
        of = f", conditions {number} of {len(noise.groups)}" if len(noise.groups) > 1 else ""
        yield Section(f"conditions{of}", "", (), (), (conditions_line(group.conditions), *_machine_lines(group)))
        for family in dict.fromkeys(case.family for case in group.cases):
            cases = [case for case in group.cases if case.family == family]
            yield _runs_section(clean(family), cases)
            yield _inside_section(clean(family), cases)
        if group.cases:
            yield _families_section(group)
        if any(len(case.cards) > 1 for case in group.cases):
            yield _cards_section(group.cases)
        if group.too_few:
            yield Section("too few runs for a spread", "", (), (), tuple(_too_few_lines(group)))


def conditions_line(conditions: Conditions) -> str:
    """Conditions as one line; a dash is unknown."""
    power = units.format_number(conditions.power_limit_w, "W")
    ecc = {True: "on", False: "off", None: units.UNKNOWN}[conditions.ecc]
    parts = [
        f"driver {conditions.driver or units.UNKNOWN}",
        f"CUDA {conditions.cuda_runtime or units.UNKNOWN}",
        f"torch {conditions.torch or units.UNKNOWN}",
        f"triton {conditions.triton or units.UNKNOWN}",
        f"NCCL {conditions.nccl}" if conditions.nccl else "",
        f"limit {power}",
        f"ECC {ecc}",
        f"declared {conditions.declare}" if conditions.declare else "",
        f"{conditions.concurrent} cards at once" if conditions.concurrent > 1 else "",
        f"ofpeak {conditions.suite_version}",
        f"run schema {conditions.run_schema_version}",
    ]
    return clean(", ".join(part for part in parts if part))


def _head(noise: NoiseFile) -> Section:
    said = (
        f"{counted(len(noise.run_ids), 'run')} in {counted(noise.sets, 'set')}, "
        f"{noise.first_created_at} to {noise.last_created_at}"
    )
    without = f"{counted(noise.without_card, 'more run')} left out: no card is named" if noise.without_card else ""
    figures = (
        "figures but p99 and lag 1 are in %: of the time a launch; for energy of its joules, for cycles of its cycles"
    )
    power, alpha = units.format_percent(noise.power, 0), units.format_percent(noise.alpha, 0)
    found = (
        f"found by: the least slowdown that so many runs a side find in {power} of comparisons, {alpha} false alarms"
    )
    lines = tuple(clean(line) for line in (said, without, figures, found) if line)
    return Section(f"noise of {clean(noise.gpu)}", "", (), (), lines)


def _machine_lines(group: Group) -> Iterator[str]:
    """How many cards and boots there were: what no number of runs makes up for."""
    cards = {(card.site_key, card.card) for case in group.cases for card in case.cards}
    boots = max((card.boots for case in group.cases for card in case.cards), default=0)
    if cards:
        said = f"at most {boots} a card" if len(cards) > 1 else str(boots)
        yield f"{counted(len(cards), 'card')}; boots: {said if boots else units.UNKNOWN}"


def _runs_section(family: str, cases: Sequence[CaseNoise]) -> Section:
    heads = ("card", "/runs", "/blocks", "run to/run", "95 %/interval", "in a/block", "between/blocks")
    differences = (f"found by/{SIDES[0]} a side", *(f"/{side}" for side in SIDES[1:]))
    blocks = _blocks(
        cases,
        lambda card: (
            clean(card.card),
            str(card.runs),
            str(card.blocks.count),
            _percent(card.time.sd_ratio),
            _interval(card.time),
            _percent(card.blocks.within_sd_ratio),
            _percent(card.blocks.between_sd_ratio),
            *(_percent(card.detectable.get(str(side))) for side in SIDES),
        ),
    )
    remarks = (*_reasons("between blocks", cases, lambda card: card.blocks.reason), *_count_lines(cases))
    return Section(
        family, "sd over runs, and the least slowdown that so many runs find", (*heads, *differences), blocks, remarks
    )


def _inside_section(family: str, cases: Sequence[CaseNoise]) -> Section:
    heads = (
        "card",
        "sd in/a run",
        "p99 over/median",
        "lag 1,/samples",
        "lag 1,/runs",
        "drift/an hour",
        "± its/error",
        "last - first/block",
        "energy/sd",
        "cycles/sd",
    )
    blocks = _blocks(
        cases,
        lambda card: (
            clean(card.card),
            _percent(card.within.sd_ratio),
            _number(card.within.p99_ratio, 3),
            _number(card.within.lag1, 2),
            _number(card.course.lag1, 2),
            _percent(card.course.drift_per_h),
            _percent(card.course.drift_error_per_h),
            _percent(card.blocks.last_to_first),
            _percent(card.energy.sd_ratio),
            _percent(card.cycles.sd_ratio),
        ),
    )
    remarks = (
        *_reasons("of samples", cases, lambda card: card.within.reason),
        *_reasons("for drift", cases, lambda card: card.course.reason),
        *_reasons("for energy", cases, lambda card: card.energy.reason),
        *_reasons("for cycles", cases, lambda card: card.cycles.reason),
    )
    return Section(f"{family}, inside runs and over time", "", heads, blocks, remarks)


def _families_section(group: Group) -> Section:
    lines = tuple(
        (clean(f.family), str(f.cases), _percent(f.median_sd_ratio), _percent(f.worst_sd_ratio)) for f in group.families
    )
    remarks = tuple(f"worst of {clean(f.family)}: {clean(f.worst_key)}" for f in group.families)
    return Section("run to run, by family", "", ("", "cases", "median", "worst"), (Block("", lines),), remarks)


def _cards_section(cases: Sequence[CaseNoise]) -> Section:
    blocks = tuple(
        Block(
            clean(case.key),
            (
                (
                    counted(case.card_to_card.cards, "card"),
                    _percent(case.card_to_card.sd_ratio),
                    _percent(case.card_to_card.largest_difference),
                    _percent(case.time.sd_ratio),
                ),
            ),
        )
        for case in cases
    )
    remarks = tuple(
        f"no spread over cards ({counted(len(keys), 'case')}): {reason}"
        for reason, keys in _by_reason((case.card_to_card.reason, case.key) for case in cases).items()
    )
    heads = ("", "sd of/cards", "largest/difference", "run to/run")
    return Section("card to card", "means of a card's runs", heads, blocks, remarks)


def _too_few_lines(group: Group) -> Iterator[str]:
    """Cases that share their card and their numbers in one line, keys as patterns where there are many."""
    found = _by_reason((_how_few(case), case.key) for case in group.too_few)
    for said, keys in found.items():
        yield clean(f"{said} ({counted(len(keys), 'case')}): {_listed(keys)}")


def _how_few(case: TooFew) -> str:
    left_out = [
        f"{count} {_COUNTED[name]}"
        for name, count in (("unsettled", case.counts.unsettled), ("ruler_off", case.counts.ruler_off))
        if count
    ]
    return ", ".join((f"{counted(case.runs, 'run')} of card {case.card}", *left_out))


# Parts of a table.


def _blocks(cases: Sequence[CaseNoise], line: Callable[[CardNoise], tuple[str, ...]]) -> tuple[Block, ...]:
    return tuple(Block(clean(_name(case, cases)), tuple(line(card) for card in case.cards)) for case in cases)


def _name(case: CaseNoise, cases: Sequence[CaseNoise]) -> str:
    """The key; where a family's source changed between runs, which source too."""
    is_alone = sum(other.key == case.key for other in cases) == 1
    return case.key if is_alone else f"{case.key} (source {case.source or units.UNKNOWN})"


def _reasons(what: str, cases: Sequence[CaseNoise], reason: Callable[[CardNoise], str]) -> Iterator[str]:
    found = _by_reason((reason(card), case.key) for case in cases for card in case.cards)
    for said, keys in found.items():
        yield clean(f"no figure {what} ({counted(len(keys), 'case')}): {said}")


def _by_reason(pairs: Iterable[tuple[str, str]]) -> dict[str, list[str]]:
    """Keys by the reason that they share, each once; what has no reason is left out."""
    found: dict[str, dict[str, None]] = {}
    for reason, key in pairs:
        if reason:
            found.setdefault(reason, {})[key] = None
    return {reason: list(keys) for reason, keys in found.items()}


def _count_lines(cases: Sequence[CaseNoise]) -> Iterator[str]:
    """Runs that were odd, one line a kind, with the cases that had them."""
    for name, said in _COUNTED.items():
        odd = {case.key: sum(getattr(card.counts, name) for card in case.cards) for case in cases}
        found = {key: count for key, count in odd.items() if count}
        if found:
            yield clean(f"{said}: {counted(sum(found.values()), 'run')} of {_listed(list(found))}")


def _listed(keys: Sequence[str]) -> str:
    return " ".join(keys if len(keys) <= _LISTED_KEYS else fold_keys(keys))


def _percent(ratio: float | None) -> str:
    return units.UNKNOWN if ratio is None else f"{100 * ratio:.3f}"


def _number(value: float | None, decimals: int) -> str:
    return units.UNKNOWN if value is None else f"{value:.{decimals}f}"


def _interval(spread: Spread) -> str:
    if spread.low_ratio is None or spread.high_ratio is None:
        return units.UNKNOWN
    return f"{_percent(spread.low_ratio)} to {_percent(spread.high_ratio)}"
