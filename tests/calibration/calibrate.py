"""`make gate-calibration`: simulate the gate, print its tables, write docs/gate-calibration.md.

    python -m tests.calibration.calibrate [--print]

Every row has a seed of its own, so the page is the same on every machine until rules, policy or noise file change.
"""

# ruff: noqa: T201 - a script prints

import sys
import textwrap
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from harness import noise_files
from harness.gate.policy import Policy, load_policy
from tests.calibration import simulate
from tests.calibration.models import FORTY, NOISY, QUIET, TYPICAL, Design, NoiseModel, measured_model
from tests.calibration.simulate import MOST_RUNS, SEED, SIMULATIONS, Setting, Share

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "gate-calibration.md"
NOISE_FILE = ROOT / "results" / "noise" / "nvidia-h200.json"
RUNS = (3, 5, 10)
BOOT_SD = 0.003
DRIFT = 0.01
# (z at .95 + z at .80) x the square root of two boots.
STATED_FACTOR = (1.6449 + 0.8416) * 2**0.5
FAMILIES = ("memory", "gemm", "collectives", "driver")

Row = tuple[str, ...]


@dataclass(frozen=True)
class Table:
    """A table of the page under its title, with what must be said of it."""

    title: str
    before: str
    heads: Row
    rows: tuple[Row, ...]
    after: tuple[str, ...] = ()


def main(arguments: Sequence[str]) -> int:
    """Simulate everything, print it, and write the page unless only asked to print."""
    text = page()
    print(text, end="")
    if "--print" not in arguments:
        PAGE.write_text(text, encoding="utf-8")
        print(f"\nwritten: {PAGE.relative_to(ROOT)}", file=sys.stderr)
    return 0


def page() -> str:
    """The whole page, from its head to what it cannot show."""
    settings = Settings()
    tables: Iterable[Callable[[Settings], Table]] = (
        goals_table,
        equal_table,
        passing_table,
        finding_table,
        designs_table,
        looks_table,
    )
    parts = [_head(settings), *(_markdown(table(settings)) for table in tables), _limits()]
    return "\n\n".join(parts) + "\n"


class Settings:
    """The simulated gates by noise model and runs a side."""

    def __init__(self) -> None:
        self.policy: Policy = load_policy()
        self.measured, self.measured_cases = measured_model(noise_files.load(NOISE_FILE))
        self.models: tuple[NoiseModel, ...] = (QUIET, TYPICAL, NOISY, self.measured)

    def of(self, model: NoiseModel, runs: int) -> Setting:
        """One boot a side without a boot effect, which the operator states."""
        cases = self.measured_cases if model is self.measured else FORTY
        return Setting(model, Design("AB", runs), cases, self.policy)

    def each(self) -> Iterator[Setting]:
        """Every noise model at every number of runs."""
        for model in self.models:
            for runs in RUNS:
                yield self.of(model, runs)


# Tables.


def goals_table(settings: Settings) -> Table:
    """The goals that can be simulated: what was reached, and where not, what would."""
    typical = settings.of(TYPICAL, 5)
    false, passed = simulate.nothing_changed(typical)
    slower = _worst_pass(settings)
    found = simulate.finds_slower(typical, 2.0)
    family = _family_pass(settings)
    worst_found = min(FAMILIES, key=lambda name: found[name].ratio)
    enough = simulate.least_runs(typical, "all pass", 0.95)
    rows = [
        ("typical noise, one boot, 5 runs a side, 40 cases: any false regression", "at most 2 %", said(false)),
        ("the same: all pass", "at least 95 %", said(passed)),
        (f"slower by 1.2 x its margin, any noise: pass (worst: {slower[0]})", "at most 5 %", said(slower[1])),
        *(
            (f"slower by 2 x its margin, typical noise, 5 runs: found ({name})", "at least 95 %", said(found[name]))
            for name in FAMILIES
        ),
        (f"all cases of a family 1 % slower, H200 noise: pass (worst: {family[0]})", "not a pass", said(family[1])),
    ]
    met = [
        false.ratio <= 0.02,
        passed.ratio >= 0.95,
        slower[1].ratio <= 0.05,
        *(found[name].ratio >= 0.95 for name in FAMILIES),
        family[1].ratio <= 0.05,
    ]
    verdicts = [(*row, "reached" if is_met else "**not reached**") for row, is_met in zip(rows, met, strict=True)]
    return Table(
        "Figures to reach",
        "",
        ("what", "goal", "figure (95 % interval)", "verdict"),
        tuple(verdicts),
        tuple(_why_not(settings, typical, passed, found, worst_found, enough)),
    )


def _why_not(
    settings: Settings, typical: Setting, passed: Share, found: dict[str, Share], worst: str, enough: int | None
) -> Iterator[str]:
    policy = settings.policy
    if passed.ratio < 0.95:
        flat = replace(typical, flat_margin=0.02, has_families=False)
        half = 1.860 * 0.006 * (2 / 5) ** 0.5  # Student's t at .95 and 8 degrees of freedom
        yield (
            f"**All pass** falls short by {100 * (0.95 - passed.ratio):.0f} points, and it has to: with an sd of 0.6 % "
            f"and five runs a side the 95 % bound lies {100 * half:.2f} % above the estimate and the least detectable "
            f"slowdown is {100 * half * (1.860 + 0.889) / 1.860:.2f} %, above memory's margin of "
            f"{percent(policy.margin('memory', 'throughput'))} and the family mean's of {percent(policy.family_mean)}. "
            "Margins are never raised to fit the noise, so such a card is told that it needs more runs. "
            f"{_enough(enough)} reach 95 %. With a margin of 2 % for every case and no test of families' means it is "
            f"{said(simulate.nothing_changed(flat)[1])} at five runs; {_flat_least(flat)}"
        )
        for model in (QUIET, settings.measured):
            other = settings.of(model, 5)
            alone = replace(other, has_families=False)
            yield (
                f"With {model.name} noise all pass in {said(simulate.nothing_changed(other)[1])} at five runs; 95 % "
                f"need {_runs(simulate.least_runs(replace(other, design=Design('AB', 2)), 'all pass', 0.95))}. Without "
                f"the test of families' means it is {said(simulate.nothing_changed(alone)[1])}."
            )
    if found[worst].ratio < 0.95:
        needed = simulate.least_runs(typical, worst, 0.95)
        yield (
            f"**Found at 2 x its margin** falls short for {worst} by {100 * (0.95 - found[worst].ratio):.0f} points: "
            f"{percent(2 * policy.margin(worst, 'throughput'))} over an sd of 0.6 % is 3.3 sd, and Holm's correction "
            f"over 40 cases and their families takes most of it with five runs. {_enough(needed)} find it. What is not "
            "found is inconclusive: it does not pass."
        )
    yield (
        "**Not a pass** is counted as reached where at most 5 % pass: the gate's own error rate for a slowdown at its "
        "margin."
    )


def equal_table(settings: Settings) -> Table:
    """Nothing changed: what is called slower, what passes, and how many runs make 95 % pass."""
    rows = []
    for setting in settings.each():
        false, passed = simulate.nothing_changed(setting)
        rows.append((setting.model.name, str(setting.design.runs), said(false), said(passed)))
    return Table(
        "Nothing changed",
        "One boot a side, no boot effect, stated as `--assume-boot-sd 0%`. Forty cases; for the H200 the ten of its "
        "noise file. Whatever is neither is inconclusive.",
        ("noise", "runs a side", "any false regression", "all pass"),
        tuple(rows),
    )


def passing_table(settings: Settings) -> Table:
    """Every case slower by 1.2 margins: how often a case passes all the same."""
    rows = []
    for setting in settings.each():
        found = simulate.passes_slower(setting, 1.2)
        rows.append((setting.model.name, str(setting.design.runs), *_cells(found)))
    return Table(
        "Slower by 1.2 x its margin: passes",
        "The share of slowed cases that pass. The gate as a whole passes less often: it needs all of them.",
        ("noise", "runs a side", *FAMILIES),
        tuple(rows),
    )


def finding_table(settings: Settings) -> Table:
    """A single case slower by two margins: how often it is called a regression."""
    rows = []
    for setting in settings.each():
        found = simulate.finds_slower(setting, 2.0)
        rows.append((setting.model.name, str(setting.design.runs), *_cells(found)))
    return Table(
        "One case slower by 2 x its margin: found",
        "One case a simulation, all others unchanged, Holm over all. The H200's first gemm case is fp8, with an sd of "
        "0.55 %.",
        ("noise", "runs a side", *FAMILIES),
        tuple(rows),
    )


DESIGNS = (
    ("one boot, nothing stated", Design("AB", 10), None),
    ("one boot, no boot effect, 0 stated", Design("AB", 10), 0.0),
    ("one boot, boot sd 0.3 %, 0 stated (wrong)", Design("AB", 10, BOOT_SD), 0.0),
    ("one boot, boot sd 0.3 %, 0.3 % stated", Design("AB", 10, BOOT_SD), BOOT_SD),
    ("one boot, boot sd 0.1 %, 0.1 % stated", Design("AB", 10, BOOT_SD / 3), BOOT_SD / 3),
    ("2 boots x 5 (A B B A), boot sd 0.3 %", Design("ABBA", 5, BOOT_SD), None),
    ("3 boots x 3 (A B B A A B), boot sd 0.3 %", Design("ABBAAB", 3, BOOT_SD), None),
    ("5 boots x 2 (A B B A A B B A A B), boot sd 0.3 %", Design("ABBAABBAAB", 2, BOOT_SD), None),
    ("5 boots x 5, boot sd 0.3 %", Design("ABBAABBAAB", 5, BOOT_SD), None),
    ("drift of 1 %, one boot x 10, 0 stated", Design("AB", 10, drift=DRIFT), 0.0),
    ("drift of 1 %, 2 boots x 5 (A B B A)", Design("ABBA", 5, drift=DRIFT), None),
    ("drift of 1 %, 2 boots x 5 (A A B B)", Design("AABB", 5, drift=DRIFT), None),
    ("throttled runs, one boot x 5, 0 stated", Design("AB", 5, has_throttled=True), 0.0),
    ("throttled runs, one boot x 10, 0 stated", Design("AB", 10, has_throttled=True), 0.0),
)


def designs_table(settings: Settings) -> Table:
    """Boots, drift and throttled runs, with typical noise and the H200's: printed as they are."""
    rows = []
    for name, design, stated in DESIGNS:
        for model in (TYPICAL, settings.measured):
            if design.has_throttled and not model.throttle_ratio:
                continue
            setting = replace(settings.of(model, 5), design=design, assume_boot_sd=stated)
            false, passed = simulate.nothing_changed(setting)
            slower = max(share.ratio for share in simulate.passes_slower(setting, 1.2).values())
            rows.append((name, model.name, said(false), said(passed), percent(slower)))
    return Table(
        "Boots, drift, throttled runs",
        "Nothing changed, and in the last column every case 1.2 x its margin slower. A boot's effect is half alike in "
        f"all cases. {percent(TYPICAL.throttle_ratio, 0)} of runs are throttled and lose "
        f"{percent(TYPICAL.throttle_low, 0)} to {percent(TYPICAL.throttle_high, 0)}; telemetry tells "
        f"{percent(TYPICAL.caught_ratio, 0)} of them, which are dropped, and where the candidate lost more runs than "
        "the baseline nothing passes.",
        ("design", "noise", "any false regression", "all pass", "a case passes at 1.2 x (worst family)"),
        tuple(rows),
        (
            "A boot effect that nobody stated is taken for the driver's, and a drift for the candidate's: no test can "
            "tell them apart. Two boots a side in A B B A order can, and pay for it: two boots know their own spread "
            "badly, so almost nothing passes before there are more.",
            "A stated spread s between boots is the floor of what can be seen: with one boot a side and runs without "
            "noise the least detectable slowdown is 2.49 x 1.41 x s. So nothing passes above s = "
            + ", ".join(f"{percent(margin / STATED_FACTOR)} ({name})" for name, margin in _stated(settings.policy))
            + ".",
        ),
    )


def _stated(policy: Policy) -> Iterator[tuple[str, float]]:
    yield "a family's mean", policy.family_mean
    yield from ((family, policy.margin(family, "throughput")) for family in FAMILIES[:3])


def looks_table(settings: Settings) -> Table:
    """Five runs, then five more where that was inconclusive."""
    rows = []
    for model in settings.models:
        shares = []
        for alpha in (0.05, 0.03):
            setting = replace(settings.of(model, 10), alpha=alpha)
            shares += [said(simulate.passes_after_two_looks(setting, 1.0))]
        rows.append((model.name, *shares))
    return Table(
        "Five runs, and five more where they do not decide",
        "Every case slower by exactly its margin, judged at five runs a side and, if that is inconclusive, again at "
        "ten: how many pass.",
        ("noise", "alpha .05 a look", "alpha .03 a look"),
        tuple(rows),
    )


def _worst_pass(settings: Settings) -> tuple[str, Share]:
    """The noise, runs and family that let most slow cases pass."""
    found = [
        (f"{setting.model.name}, {setting.design.runs} runs, {family}", share)
        for setting in settings.each()
        for family, share in simulate.passes_slower(setting, 1.2).items()
    ]
    return max(found, key=lambda pair: pair[1].ratio)


def _family_pass(settings: Settings) -> tuple[str, Share]:
    found = [
        (f"{family}, {runs} runs", simulate.whole_family_slower(settings.of(settings.measured, runs), family, 0.01))
        for family in ("memory", "gemm")
        for runs in RUNS
    ]
    return max(found, key=lambda pair: pair[1].ratio)


def _flat_least(flat: Setting) -> str:
    least = simulate.least_runs(replace(flat, design=Design("AB", 2)), "all pass", 0.95)
    return f"95 % need {_runs(least)} there."


# Words.


def percent(ratio: float, decimals: int | None = None) -> str:
    """A share as percent, with the digits that it deserves."""
    if decimals is None:
        decimals = 2 if ratio < 0.02 else 1
    text = f"{100 * ratio:.{decimals}f}"
    return f"{text.rstrip('0').rstrip('.') if '.' in text else text} %"


def said(share: Share) -> str:
    """A share with its interval."""
    low, high = share.interval
    return f"{percent(share.ratio)} ({percent(low)[:-2]} to {percent(high)[:-2]})"


def _cells(found: dict[str, Share]) -> Row:
    return tuple(percent(found[name].ratio) if name in found else "–" for name in FAMILIES)


def _runs(number: int | None) -> str:
    return f"more than {MOST_RUNS} runs a side" if number is None else f"{number} runs a side"


def _enough(number: int | None) -> str:
    said_runs = _runs(number)
    return said_runs[0].upper() + said_runs[1:]


def _head(settings: Settings) -> str:
    policy = settings.policy
    margins = ", ".join(f"{name} {percent(policy.margin(name, 'throughput'))}" for name in FAMILIES[:3])
    models = "\n".join(
        f"| {m.name} | {percent(float(m.between_sd))} | {percent(m.within_sd)} | {m.lag1:g} | "
        f"{percent(m.spike_ratio) + ' of ' + percent(m.spike_size) if m.spike_ratio else '–'} | "
        f"{percent(m.throttle_ratio) if m.throttle_ratio else '–'} |"
        for m in (QUIET, TYPICAL, NOISY)
        if isinstance(m.between_sd, float)
    )
    written = (
        f"Written by `make gate-calibration`; do not edit. {SIMULATIONS} simulated comparisons a row, seed {SEED} and "
        "a number made of the row's own name. The rules are `harness/gate/rules.py`'s: `tests/calibration/twins.py` "
        "computes many comparisons at once, and a test holds every figure and verdict of it against them. The policy "
        f"is `harness/gate/policy.toml`: {margins}, latencies {percent(policy.latency)}, a family's mean "
        f"{percent(policy.family_mean)}."
    )
    model = (
        "A run's time of a case varies from run to run, half of that variance alike in all cases of a run; its samples "
        "vary around it, neighbours alike; spikes lengthen single samples. Three assumed levels, made before a GPU was "
        "measured, and the spreads of the committed noise file (H200, ten cases, 0.01 to 0.57 %, one boot):"
    )
    heads = (
        "noise",
        "run to run",
        "sample to sample",
        "neighbours' correlation",
        "spikes",
        "throttled runs, where told",
    )
    cases = ", ".join(f"{sum(case.family == name for case in FORTY)} {name}" for name in FAMILIES)
    return "\n\n".join(
        (
            "# How often the gate is right: simulated",
            _wrapped(written),
            _wrapped(model),
            "\n".join((_line(heads), _line(("---",) * len(heads)), models)),
            _wrapped(f"Forty cases: {cases} (all latencies)."),
        )
    )


_LIMITS = (
    "**The spread between boots and between drivers.** The committed noise is of one boot of one driver on one card. "
    "How far another boot of the same driver lies is not known; the 0.3 % above is an assumption. Where it is larger "
    "than what the operator states, the gate is wrong more often than the rows say that state it.",
    "**The shape of real noise.** Runs are drawn from a normal distribution. A card with two speeds (docs/trust.md, "
    "section 6) does not draw so: five runs may all meet one speed. `ofpeak gate-selftest` shows what real blocks do.",
    '**What runs share.** Half of the variance alike in all cases is an assumption. More of it makes "all pass" '
    "likelier and families' means noisier.",
    "**Tails, energy, clocks.** Only time is simulated. What the gate says of tails and energy comes on top.",
    "**Whether the dropped runs were the throttled ones.** That telemetry tells 90 % of them is an assumption, too.",
)


def _limits() -> str:
    said_items = (_wrapped(f"- {limit}", "  ") for limit in _LIMITS)
    return "## What simulations cannot show\n\n" + "\n".join(said_items)


def _wrapped(text: str, indent: str = "") -> str:
    """Lines of at most 120 characters, in which no number is parted from its percent sign."""
    joined = text.replace(" %", "\u00a0%")
    lines = textwrap.fill(joined, 120, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)
    return lines.replace("\u00a0", " ")


def _markdown(table: Table) -> str:
    lines = [f"## {table.title}", ""]
    if table.before:
        lines += [_wrapped(table.before), ""]
    lines += [_line(table.heads), _line(("---",) * len(table.heads)), *map(_line, table.rows)]
    lines += [line for paragraph in table.after for line in ("", _wrapped(paragraph))]
    return "\n".join(lines)


def _line(cells: Row) -> str:
    return f"| {' | '.join(cells)} |"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
