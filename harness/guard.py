"""Clears up after a supervisor that was killed: ends its worker's process group, removes its scratch folder.

Run as a script in a session of its own, with the standard library alone. It reads what the supervisor holds and gives
back, a line each (`hold folder /tmp/x`, `hold group 123`, `drop group 123`), and acts on what is held when its input
ends. A worker dies with its supervisor by the kernel's parent-death signal, but that does not reach a compiler or
whatever else the worker had started; and nobody was left to remove temporary files.
"""

import contextlib
import os
import shutil
import signal
import sys
import time
from collections.abc import Iterable

# What dies slowly (a process inside its driver) may still write into the folder.
_TRIES = 50
_PAUSE_S = 0.1


def main() -> None:
    """Remember what is held until the input ends, then clear it up."""
    clear_up(still_held(sys.stdin))


def still_held(lines: Iterable[str]) -> list[tuple[str, str]]:
    """Kind and name of everything that was held and not dropped."""
    held: list[tuple[str, str]] = []
    for line in lines:
        verb, kind, name = line.rstrip("\n").split(" ", 2)
        if verb == "hold":
            held.append((kind, name))
        elif (kind, name) in held:
            held.remove((kind, name))
    return held


def clear_up(held: Iterable[tuple[str, str]]) -> None:
    """End the groups first: their processes write into the folders."""
    held = list(held)
    for kind, name in held:
        if kind == "group":
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(int(name), signal.SIGKILL)
    for kind, name in held:
        if kind == "folder":
            _remove(name)


def _remove(folder: str) -> None:
    for _ in range(_TRIES):
        shutil.rmtree(folder, ignore_errors=True)
        if not os.path.lexists(folder):
            return
        time.sleep(_PAUSE_S)


if __name__ == "__main__":
    main()
