"""What a gate found: a result a case and a family, what changed, and the exit codes that follow. Frozen data."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from harness.errors import ExitCode
from harness.gate.comparable import Comparability
from harness.gate.rules import Decision, Evidence

Verdict = Literal["not comparable", "regression", "missing", "inconclusive", "pass"]

# By precedence: what comes first decides the exit code.
EXIT_CODES: Mapping[Verdict, ExitCode] = {
    "not comparable": ExitCode.NOT_COMPARABLE,
    "regression": ExitCode.FAILED,
    "missing": ExitCode.MISSING,
    "inconclusive": ExitCode.INCONCLUSIVE,
    "pass": ExitCode.DONE,
}


@dataclass(frozen=True)
class Dropped:
    """Runs of one side that do not count, by cause, of `runs` in all."""

    runs: int
    causes: Mapping[str, int]

    @property
    def count(self) -> int:
        """How many runs do not count."""
        return sum(self.causes.values())


@dataclass(frozen=True)
class Result:
    """One case, or a family's mean (`is_mean`). `evidence` is `None` where too few runs are usable, or none comparable.

    `notes` are the reasons for the verdict, `cause` is why it is slower, and `tail` and `energy` the secondary tests;
    `energy` is `None` where joules are not gated.
    """

    key: str
    family: str
    verdict: Verdict
    evidence: Evidence | None = None
    decision: Decision | None = None
    tail: Evidence | None = None
    energy: Evidence | None = None
    dropped: tuple[Dropped, Dropped] = (Dropped(0, {}), Dropped(0, {}))
    notes: tuple[str, ...] = ()
    cause: str = ""
    is_mean: bool = False


@dataclass(frozen=True)
class Outcome:
    """Everything that a gate says. `results` are worst first; `new` are cases that only the candidate has.

    `suspected` tells of every case of either side in which silent corruption is suspected: then nothing passes.
    `title` is what changed in one phrase; `gpu` the card's name; `cards` the hashes that were compared. `injected` is
    what the candidate was slowed down by on purpose: such a verdict is about the gate, not about the change. `aside`
    cases of the baseline were not looked at, because `only` does not name them.
    """

    gpu: str
    title: str
    changed: tuple[str, ...]
    comparability: Comparability
    cards: tuple[str, ...]
    runs: tuple[int, int]
    boots: tuple[int, int]
    results: tuple[Result, ...]
    findings: tuple[str, ...]
    new: tuple[str, ...]
    alpha: float
    tests: int
    assume_boot_sd: float | None = None
    is_across_cards: bool = False
    look: int | None = None
    injected: str = ""
    only: tuple[str, ...] = ()
    aside: int = 0
    suspected: tuple[str, ...] = ()

    @property
    def verdicts(self) -> tuple[Verdict, ...]:
        """Every verdict that applies, by precedence; "pass" only where nothing else does."""
        found = {result.verdict for result in self.results}
        if self.comparability.undeclared.get("all"):
            found.add("not comparable")
        if self.suspected:
            found.add("inconclusive")
        bad: tuple[Verdict, ...] = tuple(verdict for verdict in EXIT_CODES if verdict in found and verdict != "pass")
        return bad or (("pass",) if found else ("inconclusive",))

    @property
    def exit_code(self) -> ExitCode:
        """The code of the verdict that takes precedence."""
        return EXIT_CODES[self.verdicts[0]]

    @property
    def cases(self) -> tuple[Result, ...]:
        """The results of single cases."""
        return tuple(result for result in self.results if not result.is_mean)
