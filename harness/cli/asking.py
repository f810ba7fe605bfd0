"""Asking the probe: what touches the machine runs in a process of its own, because it loads torch."""

import subprocess
import sys

from harness.errors import ExitCode, HarnessError

_LONGEST_COMPLAINT = 300


def ask_probe(verb: str, timeout_s: float) -> str:
    """What `python -m harness.probe VERB` prints; an error says why it prints nothing."""
    command = [sys.executable, "-m", "harness.probe", verb]
    try:
        asked = subprocess.run(command, capture_output=True, check=False, timeout=timeout_s)
    except subprocess.TimeoutExpired as error:
        raise HarnessError(
            f"the probe did not answer within {timeout_s:g} s. Look at `nvidia-smi`.", ExitCode.INCONCLUSIVE
        ) from error
    if asked.returncode != 0:
        said = asked.stderr.decode(errors="replace").strip().splitlines() or ["no output"]
        raise HarnessError(
            f"the probe failed (exit {asked.returncode}): {said[-1][:_LONGEST_COMPLAINT]}", ExitCode.INCONCLUSIVE
        )
    return asked.stdout.decode(errors="replace")
