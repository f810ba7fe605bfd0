"""`ofpeak whoami`: which of the hashes in run files are this machine's cards."""

import typer

from harness.asking import ask_probe, read_answer

_PROBE_TIMEOUT_S = 120


def whoami() -> None:
    """Map this machine's cards to the hashes in run files. Printed here only: nothing of it is stored."""
    answer = read_answer(ask_probe("whoami", _PROBE_TIMEOUT_S), "whoami")
    typer.echo(f"site key  {answer['site_key']}  (OFPEAK_SITE_KEY, or the file made on first use)")
    typer.echo(f"label     {answer['label'] or '– (OFPEAK_LABEL is not set)'}")
    for card in answer["cards"]:
        typer.echo(f"card      {card['card']}  {card['name']}  GPU-{card['uuid']}")
    if not answer["cards"]:
        typer.echo(f"card      – ({answer['reason'] or 'NVML lists no GPU'})")
