"""What an operator may declare of a machine: `clocks=locked:MHZ`."""

import re

from harness.errors import HarnessError

_DECLARATION = re.compile(r"clocks=locked:([1-9]\d*)")


def declared_clock_mhz(declare: str) -> int | None:
    """The clock that is declared locked; `None` without a declaration, an error for any other."""
    if not declare:
        return None
    found = _DECLARATION.fullmatch(declare)
    if found is None:
        raise HarnessError(f"unknown declaration '{declare}'. Use clocks=locked:MHZ, as in clocks=locked:1410.")
    return int(found.group(1))
