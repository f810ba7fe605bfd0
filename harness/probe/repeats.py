"""Repeats of a deterministic case, bit for bit: whether they agree, and if not, how often and where they differ.

One difference may be a single event; it is confirmed if it comes again when the same inputs, filled in anew, are
launched several times more.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from harness.corruption import SUSPECTED
from harness.probe.load import Checker

# Ten launches find what comes in every fifth at nine of ten tries.
RERUNS = 10


@dataclass(frozen=True)
class Repeats:
    """Launches on equal inputs: how many gave other bits than most, in how many outputs, and where that was seen."""

    launches: int
    differing: int
    outputs: int
    differing_outputs: int = 0
    is_confirmed: bool = False
    place: str = ""

    @property
    def counts(self) -> str:
        """The counts in words."""
        return (
            f"{self.differing} of {self.launches} launches on the same inputs gave other bits than the rest, "
            f"in {self.differing_outputs} of {self.outputs} outputs"
        )

    @property
    def reason(self) -> str:
        """Why such a case has no figure, and what to do."""
        where = self.place or "where is not known, as the odd result was the first and is not kept"
        if self.is_confirmed:
            return f"{SUSPECTED}: {self.counts}; {where}. Take the card out of service until it was examined."
        return (
            f"bits differed once and did not again: {self.counts}, none of {RERUNS} further ones; {where}. "
            "Not confirmed: measure it again, and look at ECC in `ofpeak doctor`."
        )


def compare_repeats(outputs: Sequence[object], checker: Checker, again: Callable[[bool], None]) -> Repeats:
    """Launch once more on what lies in the inputs and compare; after a difference `RERUNS` times on inputs filled anew.

    `outputs` hold the first result. `again(is_filled_anew)` poisons them and launches.
    """
    seen = [_prints(outputs, checker)]
    again(False)
    seen.append(_prints(outputs, checker))
    odd = _differing(seen[0], seen[1])
    if not odd:
        return Repeats(2, 0, len(outputs))
    kept, place = checker.copy(outputs[odd[0]]), ""
    touched = set(odd)
    for _ in range(RERUNS):
        again(True)
        seen.append(_prints(outputs, checker))
        touched.update(_differing(seen[1], seen[-1]))
        if not place and seen[-1][odd[0]] != seen[1][odd[0]]:
            place = f"output {odd[0]}: {_place(*checker.differences(kept, outputs[odd[0]]))}"
    return Repeats(
        launches=len(seen),
        differing=len(seen) - Counter(seen).most_common(1)[0][1],
        outputs=len(outputs),
        differing_outputs=len(touched),
        is_confirmed=len(set(seen[2:])) > 1,
        place=place,
    )


def _prints(outputs: Sequence[object], checker: Checker) -> tuple[int, ...]:
    return tuple(checker.fingerprint(out) for out in outputs)


def _differing(first: Sequence[int], second: Sequence[int]) -> list[int]:
    return [number for number, (a, b) in enumerate(zip(first, second, strict=True)) if a != b]


def _place(count: int, first: Sequence[tuple[tuple[int, ...], int, int]]) -> str:
    """`12 elements differ, the first [3, 17]: 0x3f80 and 0x3f90 (xor 0x10)`."""
    shown = ", ".join(f"{list(at)}: {a:#x} and {b:#x} (xor {a ^ b:#x})" for at, a, b in first)
    return f"{count} element{'s differ' if count != 1 else ' differs'}, the first {shown}"
