"""`ofpeak whoami`: which of the hashes in run files are this machine's cards."""

import json
import subprocess
import sys

import typer

from harness.errors import ExitCode, HarnessError


def whoami() -> None:
    """Map this machine's cards to the hashes in run files. Printed here only: nothing of it is stored."""
    asked = subprocess.run(
        [sys.executable, "-m", "harness.probe", "whoami"], capture_output=True, text=True, check=False
    )
    if asked.returncode != 0:
        raise HarnessError(f"the probe failed: {(asked.stderr.strip().splitlines() or ['no output'])[-1]}")
    answer = json.loads(asked.stdout)
    if "error" in answer:
        raise HarnessError(answer["error"], ExitCode(answer["exit_code"]))
    typer.echo(f"site key  {answer['site_key']}  (OFPEAK_SITE_KEY, or the file made on first use)")
    typer.echo(f"label     {answer['label'] or '– (OFPEAK_LABEL is not set)'}")
    for card in answer["cards"]:
        typer.echo(f"card      {card['card']}  {card['name']}  GPU-{card['uuid']}")
    if not answer["cards"]:
        typer.echo(f"card      – ({answer['reason'] or 'NVML lists no GPU'})")
