"""Asking the probe: what touches the machine runs in a process of its own, because it loads torch and the driver."""

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, NoReturn

from harness.errors import ExitCode, HarnessError

_ROOT = Path(__file__).resolve().parents[1]
_LONGEST_COMPLAINT = 300
_MOST_SHOWN = 120


def ask_probe(
    verb: str, timeout_s: float, environment: Mapping[str, str] | None = None, *, shows_progress: bool = False
) -> str:
    """What `python -m harness.probe VERB` prints; an error says why it prints nothing.

    What it tells on standard error meanwhile is shown as it comes where it `shows_progress`.
    """
    try:
        asked = subprocess.run(
            [sys.executable, "-m", "harness.probe", verb],
            cwd=_ROOT,
            env={**os.environ, **(environment or {})},
            stdout=subprocess.PIPE,
            stderr=None if shows_progress else subprocess.PIPE,
            check=False,
            timeout=timeout_s,
        )
    except subprocess.TimeoutExpired as error:
        raise HarnessError(
            f"the probe did not answer within {timeout_s:g} s. Look at `nvidia-smi`.", ExitCode.INCONCLUSIVE
        ) from error
    if asked.returncode != 0:
        said = (asked.stderr or b"").decode(errors="replace").strip().splitlines()
        why = "see above" if shows_progress else (said or ["no output"])[-1][:_LONGEST_COMPLAINT]
        raise HarnessError(f"the probe failed (exit {asked.returncode}): {why}", ExitCode.INCONCLUSIVE)
    return asked.stdout.decode(errors="replace")


def read_answer(answer: str, verb: str) -> dict[str, Any]:
    """The object that the probe answered; what it tells as its error is raised, anything else is refused."""
    lines = answer.strip().splitlines()
    try:
        # torch may have warned on standard output before.
        data = json.loads(lines[-1]) if lines else None
    except (ValueError, RecursionError):
        refuse_answer(verb, f"it ends in {lines[-1][:_MOST_SHOWN]!r}")
    if not isinstance(data, dict):
        refuse_answer(verb, "it is no object")
    if isinstance(data.get("error"), str):
        raise HarnessError(data["error"], _exit_code(data.get("exit_code")))
    return data


def refuse_answer(verb: str, what: str) -> NoReturn:
    """Say what is wrong with the probe's answer and how to see it."""
    raise HarnessError(
        f"the probe's answer cannot be read: {what}. Run `python -m harness.probe {verb}` to see it.",
        ExitCode.INCONCLUSIVE,
    )


def _exit_code(told: Any) -> ExitCode:
    """An error's exit code; never success, whatever is told."""
    with suppress(ValueError):
        return ExitCode(told) or ExitCode.INCONCLUSIVE
    return ExitCode.INCONCLUSIVE
