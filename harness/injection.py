"""A slowdown that is asked for: more work is done than counted, so that a gate can be seen to find it. Floor 1.

Such runs are marked in their order, in every record that was touched, and wherever they are printed.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

from harness.errors import HarnessError

# Tenths of a percent: a CUDA graph of at most a thousand launches then holds a whole number of extra ones.
_TEXT = re.compile(r"(?P<pattern>\S+)=(?P<percent>\d{1,3}(\.\d)?)%")


@dataclass(frozen=True)
class Injection:
    """The families or keys that a glob names, and the share by which their work is increased."""

    pattern: str
    extra: Fraction


def read_injection(text: str) -> Injection:
    """`gemm=3%` as what it means; HarnessError for anything else."""
    found = _TEXT.fullmatch(text)
    extra = Fraction(found["percent"]) / 100 if found else Fraction(0)
    if found is None or not 0 < extra <= 1:
        raise HarnessError(f"cannot inject '{text}'. Name families or keys, and 0.1 to 100 % of more work: gemm=3%.")
    return Injection(found["pattern"], extra)


def said_of(inject: Sequence[str]) -> str:
    """What was injected, for whoever reads the run."""
    return f"{' '.join(inject)}: more was done than is counted; these are no figures of this device" if inject else ""
