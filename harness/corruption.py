"""Equal inputs that gave other bits: how a case says it, and how runs are asked for it. Floor 1.

A case that finds it has failed, and its reason begins with these words: they are all that a lean reader keeps of it.
"""

from collections.abc import Iterable

from harness.model import Run

SUSPECTED = "suspected silent corruption"


def is_suspected(reason: str) -> bool:
    """Whether a case failed because repeats on equal inputs differed, and did again when they were run again."""
    return reason.startswith(f"{SUSPECTED}: ")


def alarm(key: str, card: str, reason: str) -> str:
    """One sentence with case, card and counts."""
    return f"{SUSPECTED.upper()} in {key} on card {card}: {reason.removeprefix(f'{SUSPECTED}: ')}"


def alarms_of(runs: Iterable[Run]) -> tuple[str, ...]:
    """A sentence a case and card for everything that is suspected; of several runs, that of the first."""
    found: dict[tuple[str, str], list[str]] = {}
    for run in runs:
        card = str(run.fact("card") or "of unknown hash")
        for record in run.not_measured:
            if record.outcome == "failed" and is_suspected(record.reason):
                found.setdefault((record.key, card), []).append(record.reason)
    return tuple(_told(*case, reasons) for case, reasons in found.items())


def _told(key: str, card: str, reasons: list[str]) -> str:
    more = f" The same case in {len(reasons) - 1} more." if len(reasons) > 1 else ""
    return alarm(key, card, reasons[0]) + more
