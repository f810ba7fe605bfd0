"""Standard output as verbs use it: text is laid out first, then written at once."""

import os
import sys
from collections.abc import Callable

from rich.console import Console

# Wide enough for one line a case where nobody says how wide the reader's window is: a file, a pipe, a CI log.
PIPE_WIDTH = 160


def standard_console() -> Console:
    """A console on standard output that reads no markup; where there is no terminal, as wide as a full table."""
    console = Console(markup=False, emoji=False, highlight=False)
    return console if console.is_terminal else Console(markup=False, emoji=False, highlight=False, width=_pipe_width())


def write_page(draw: Callable[[Console], None]) -> None:
    """Draw to memory and write once, so that a closed pipe is one error that the command can name."""
    console = standard_console()
    with console.capture() as captured:
        draw(console)
    write(captured.get())


def write(text: str) -> None:
    """Write to standard output now."""
    sys.stdout.write(text)
    sys.stdout.flush()


def _pipe_width() -> int:
    columns = os.environ.get("COLUMNS", "")
    return int(columns) if columns.isdecimal() and int(columns) > 0 else PIPE_WIDTH
