"""One rank of a world as its worker sees it: a child of its own, or one that another process of the run holds for it.

Both take commands and answer `("ok", answer)` or `("error", words)`.
"""

import contextlib
import multiprocessing
import selectors
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

from harness.nccl_log import last_failure
from harness.probe.rank import Seat, serve
from harness.probe.wire import Wire

DIED = "died"


class Receiving(Protocol):
    """What something can be received from."""

    def fileno(self) -> int:
        """Readable when an answer or the other's end is there to be received."""


class Member(Receiving, Protocol):
    """What a world needs of each of its ranks. One `is_lost` whose end nobody can tell."""

    is_lost: bool

    def send(self, message: tuple[str, tuple[Any, ...]]) -> None:
        """Command and arguments. OSError where the rank is gone."""

    def recv(self) -> tuple[str, Any]:
        """Its answer. EOFError or OSError where the rank is gone."""

    def exit_code(self, limit_s: float = 0.0) -> int | None:
        """How the rank's process ended, if it ends within the limit; negative after a signal."""

    def last_line(self) -> str:
        """What its NCCL complained of last, as far as that is known here."""

    def end(self, ends_s: float) -> None:
        """End the rank, by force where it has not ended by then (monotonic), and everything of it here."""


class Child:
    """A rank that is a child of this process."""

    is_lost = False

    def __init__(self, seat: Seat, log: Path) -> None:
        context = multiprocessing.get_context("spawn")
        self._log = log
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(target=serve, args=(seat, theirs), daemon=True, name=f"ofpeak-rank-{seat.rank}")
        self._process.start()
        theirs.close()

    def fileno(self) -> int:
        """The pipe's."""
        return self._pipe.fileno()

    def send(self, message: tuple[str, tuple[Any, ...]]) -> None:
        """Through the pipe."""
        self._pipe.send(message)

    def recv(self) -> tuple[str, Any]:
        """Through the pipe."""
        status, answer = self._pipe.recv()
        return status, answer

    def exit_code(self, limit_s: float = 0.0) -> int | None:
        """The process's own."""
        self._process.join(limit_s)
        return self._process.exitcode

    def last_line(self) -> str:
        """From the debug file, which is on this host."""
        try:
            return last_failure(self._log.read_text(errors="replace"))
        except OSError:
            return ""

    def end(self, ends_s: float) -> None:
        """Tell it to close, and kill it when its time is over."""
        with contextlib.suppress(OSError):
            self._pipe.send(("close", ()))
        self._process.join(max(0.0, ends_s - time.monotonic()))
        if self._process.is_alive():
            self._process.kill()
            self._process.join()
        self._pipe.close()


class Remote:
    """A rank that a server of the run holds (harness/probe/serving.py), on this host or on another."""

    def __init__(self, wire: Wire) -> None:
        self._wire = wire
        self._exit_code: int | None = None
        self._line = ""
        self.is_lost = False

    def fileno(self) -> int:
        """The connection's."""
        return self._wire.fileno()

    def send(self, message: tuple[str, tuple[Any, ...]]) -> None:
        """Over the wire."""
        try:
            self._wire.send(message)
        except OSError:
            self.is_lost = self.exit_code() is None
            raise

    def recv(self) -> tuple[str, Any]:
        """Over the wire. A rank that died is told by its server; where that is gone too, the rank is lost."""
        try:
            status, answer, self._line = self._wire.recv()
        except (EOFError, OSError):
            self.is_lost = True
            raise
        except ValueError as error:
            self.is_lost = True
            raise OSError("an answer that is none of ours") from error
        if status == DIED:
            self._exit_code = answer
            raise EOFError
        return status, answer

    def exit_code(self, limit_s: float = 0.0) -> int | None:
        """As its server tells it, also while an answer is awaited; where that has gone without a word, it is lost."""
        if self._exit_code is None and not self.is_lost:
            if self._wire.next_is(DIED):
                with contextlib.suppress(EOFError, OSError):
                    self.recv()
            else:
                self.is_lost = self._wire.has_ended()
        return self._exit_code

    def last_line(self) -> str:
        """Its server sends it with what went wrong."""
        return self._line

    def end(self, ends_s: float) -> None:
        """Hang up: its server ends the rank."""
        self._wire.close()


def ready_of(members: Mapping[int, Receiving], limit_s: float) -> list[int]:
    """The ranks that have something to receive, in order, as soon as there is one; none after so long."""
    with selectors.DefaultSelector() as selector:
        for rank, member in members.items():
            selector.register(member.fileno(), selectors.EVENT_READ, rank)
        return sorted(key.data for key, _ in selector.select(limit_s))


def switches(log: Path, variables: Mapping[str, str] | None, environment: Mapping[str, str]) -> dict[str, str]:
    """NCCL's warnings go to a file, unless the operator wants them elsewhere; symmetric memory without multicast.

    Multicast needs a fabric that virtual machines often lack, and one-shot and two-shot do not use it.
    """
    multicast = {"TORCH_SYMM_MEM_DISABLE_MULTICAST": environment.get("TORCH_SYMM_MEM_DISABLE_MULTICAST", "1")}
    if variables is None and "NCCL_DEBUG" in environment:
        return multicast
    return {**multicast, "NCCL_DEBUG": "WARN", "NCCL_DEBUG_FILE": str(log), **(variables or {})}
