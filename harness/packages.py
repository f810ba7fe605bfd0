"""What the suite needs from others, and what of it this interpreter lacks; stdlib only, so that it can always tell."""

import importlib.util
import sys
from collections.abc import Mapping
from pathlib import Path

from harness.errors import HarnessError

BENCHES = Path(__file__).resolve().parents[1] / "benches"

# Module and distribution. What starting the command needs, and what measuring needs: usual on GPU images.
STARTING = {"rich": "rich", "typer": "typer"}
READING = {**STARTING, "numpy": "numpy", "scipy": "scipy", "pydantic": "pydantic"}
MEASURING = {
    "torch": "torch",
    "numpy": "numpy",
    "scipy": "scipy",
    "pytest": "pytest",
    "pytest_benchmark": "pytest-benchmark",
    **STARTING,
}
# What verbs need that look at this machine's GPUs, and those that load them.
LOOKING = {"pynvml": "nvidia-ml-py"}
LOADING = {"torch": "torch", **LOOKING}

_OWN = "leave PYTHON unset and let `make bench` make its own environment"
_MADE = "run the command of the environment that `make bench` made: .venv/bin/ofpeak"


def no_checkout(benches: Path = BENCHES) -> str:
    """Why there is nothing to run here, if so: the wheel holds harness only."""
    if benches.is_dir():
        return ""
    return f"no benchmarks at {benches}. Measuring runs from a checkout, not from an installed wheel."


def refuse_without(needed: Mapping[str, str]) -> None:
    """Raise for a verb that would load what is missing here, in a process of its own, and end in its traceback."""
    problem = lacking(needed, _MADE)
    if problem:
        raise HarnessError(problem)


def lacking(needed: Mapping[str, str], otherwise: str = _OWN) -> str:
    """Everything that is missing in one sentence, with what to do; nothing if all is there."""
    missing = [name for module, name in needed.items() if importlib.util.find_spec(module) is None]
    if not missing:
        return ""
    them = "it" if len(missing) == 1 else "them"
    return (
        f"{sys.executable} lacks {', '.join(missing)}. Install {them} there (pip install {' '.join(missing)}), "
        f"or {otherwise}."
    )
