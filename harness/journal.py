"""The journal of a run: JSON lines, one event each, fsynced; the only thing written while measuring.

Events, in the order in which they come: `order` (by the supervisor, once), then for every worker `plan`
(device, peaks, environment, cases), `warmed`, and for every case `started` and `finished`; `ended` closes a worker.
A line cut short by a crash is ignored, everything before it counts.
"""

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

Event = dict[str, Any]


class Journal:
    """Appends events to a file; each is on disk before `write` returns."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
        size_bytes = os.fstat(self._descriptor).st_size
        if size_bytes and os.pread(self._descriptor, 1, size_bytes - 1) != b"\n":
            os.write(self._descriptor, b"\n")  # a crash cut the last line: what comes now starts its own

    def write(self, event: str, **content: Any) -> None:
        """Append one event. NaN and infinity are refused: no reader should meet them.

        One `os.write` a line, so that a supervisor's and a worker's lines never mix.
        """
        line = json.dumps({"event": event, **content}, allow_nan=False, separators=(",", ":"))
        os.write(self._descriptor, line.encode() + b"\n")
        os.fsync(self._descriptor)

    def close(self) -> None:
        """Close the file; the events stay."""
        os.close(self._descriptor)


class Tail:
    """Reads a journal while another process writes it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._offset = 0

    def new_events(self) -> Iterator[Event]:
        """The complete events since the last call; a line still being written waits for the next."""
        try:
            with self.path.open("rb") as file:
                file.seek(self._offset)
                data = file.read()
        except FileNotFoundError:
            return
        complete = data.rfind(b"\n") + 1
        self._offset += complete
        for line in data[:complete].splitlines():
            event = _parse(line)
            if event is not None:
                yield event


def read_events(path: Path) -> list[Event]:
    """Every complete event of a journal, also of one that a crash cut short."""
    return list(Tail(path).new_events())


def _parse(line: bytes) -> Event | None:
    try:
        event = json.loads(line)
    except ValueError:
        return None
    return event if isinstance(event, dict) and isinstance(event.get("event"), str) else None
