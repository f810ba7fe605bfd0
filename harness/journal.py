"""The journal of a run: JSON lines, one event each, fsynced; the only thing written while measuring.

Events, in the order in which they come: `order` (by the supervisor, once), then for every worker `plan`
(device, peaks, environment, cases), `warmed`, and for every case `started` and `finished`, between which a soak tells
by `soaking` how far it has come; `ended` closes a worker. `discarded` takes back what a worker measured on another
driver. A line cut short by a crash is ignored, everything before it counts.
"""

import json
import math
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from harness.errors import HarnessError

Event = dict[str, Any]

# A journal of `full` holds a few MiB, a run file less than one; neither nests half as deep. No larger one is read.
SIZE_LIMIT_BYTES = 64 * 2**20
DEPTH_LIMIT = 24


class JournalError(HarnessError):
    """An event could not be written: a full disk, a folder that became read-only, a quota."""

    # How a worker leaves, so that its supervisor starts no other: EX_IOERR of sysexits.h, none of pytest's own codes.
    WORKER_STATUS = 74

    def __init__(self, path: Path, error: OSError) -> None:
        super().__init__(f"cannot write {path}: {error.strerror}. Make room there, or use another disk.")


class Journal:
    """Appends events to a file; each is on disk before `write` returns, or a JournalError says why it is not."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
        except OSError as error:
            raise JournalError(path, error) from error

    def write(self, event: str, **content: Any) -> None:
        """Append one event. NaN and infinity are refused: no reader should meet them.

        One `os.write` a line where the disk has room, so that a supervisor's and a worker's lines never mix.
        """
        self.mention(event, **content)
        try:
            os.fsync(self._descriptor)
        except OSError as error:
            raise JournalError(self.path, error) from error

    def mention(self, event: str, **content: Any) -> None:
        """Append one event that a machine which stops may lose: under a load nobody waits for the disk."""
        line = json.dumps({"event": event, **content}, allow_nan=False, separators=(",", ":")).encode() + b"\n"
        try:
            rest = b"\n" + line if self._is_torn() else line
            while rest:
                rest = rest[os.write(self._descriptor, rest) :]  # a full disk takes a part first, then refuses
        except OSError as error:
            raise JournalError(self.path, error) from error

    def _is_torn(self) -> bool:
        """Whether a crash or a full disk cut the last line, so that what comes now must start its own."""
        size_bytes = os.fstat(self._descriptor).st_size
        return size_bytes > 0 and os.pread(self._descriptor, 1, size_bytes - 1) != b"\n"

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
    """The event in a line; `None` for what this suite never writes: a torn line, NaN, a line nested without end."""
    try:
        event = json.loads(line, parse_constant=_finite, parse_float=_finite)
    except (ValueError, RecursionError):
        return None
    is_event = isinstance(event, dict) and isinstance(event.get("event"), str) and not is_deeper(event, DEPTH_LIMIT)
    return event if is_event else None


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"{text} is not a finite number")
    return value


def is_deeper(value: Any, limit: int) -> bool:
    """Whether the dictionaries and lists of parsed JSON are nested deeper than that."""
    level = [value]
    for _ in range(limit):
        # By type, twice as fast as by isinstance: a run file holds tens of thousands of numbers.
        level = [
            item
            for container in level
            for item in (container.values() if type(container) is dict else container)
            if type(item) is dict or type(item) is list
        ]
        if not level:
            return False
    return True
