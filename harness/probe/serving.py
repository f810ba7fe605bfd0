"""A server: the process that torchrun started for one rank but the first. It holds that rank in world after world.

`python -m harness.probe.serving auto|cpu`. It introduces itself, then does what rank 0's worker tells through
torchrun's store: start a rank, hand commands and answers through, end the rank when the worker hangs up. It never opens
the GPU: the rank is a child of its own, and a new one in each world.
"""

import contextlib
import multiprocessing
import os
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Mapping
from multiprocessing.connection import Connection
from pathlib import Path
from types import FrameType
from typing import Any

from harness.errors import ExitCode, HarnessError
from harness.probe import host
from harness.probe.meeting import Meeting, MeetingError
from harness.probe.members import DIED, Child, ready_of, switches
from harness.probe.rank import Seat
from harness.probe.wire import Wire, call
from harness.torchrun import Place, place_of

_INTRODUCTION_LIMIT_S = 110.0
_CALL_LIMIT_S = 10.0
_CLOSE_LIMIT_S = 5.0
_PATIENT_S = 3600.0
# torchrun ends all processes of a host at once; rank 0's is to end its worlds before their ranks are gone.
_GRACE_S = 2
_WORKER, _RANK = 0, 1


def main(arguments: list[str]) -> int:
    """Serve until rank 0 says that all is over. 1 where rank 0 or its host is gone."""
    place = place_of(os.environ)
    if place is None or len(arguments) != 1:
        sys.stderr.write("ofpeak: torchrun starts this: torchrun ... -m harness run\n")
        return ExitCode.USAGE
    _die_with_agent()
    for name in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(name, _leave_soon)
    held: list[_Held] = []
    try:
        meeting = Meeting(place)
        meeting.introduce(_introduction(place, arguments[0]))
        number = 0
        while task := meeting.turn(number):
            held = [one for one in held if one.is_alive()]
            _take_part(place, task, held)
            number += 1
    except MeetingError as error:
        sys.stderr.write(f"ofpeak: rank {place.rank} (host {place.host}): {error}\n")
        return ExitCode.FAILED
    finally:
        for one in held:
            one.let_go()
    return ExitCode.DONE


def _leave_soon(signum: int, _frame: FrameType | None) -> None:
    def leave(_signum: int, _frame: FrameType | None) -> None:
        sys.exit(128 + signum)

    signal.signal(signal.SIGALRM, leave)
    signal.alarm(_GRACE_S)


def _die_with_agent() -> None:
    """The kernel ends this process with torchrun's agent, however that ends, and the rank with this process."""
    from harness.probe.worker import die_with_parent

    die_with_parent(os.getppid())


def _introduction(place: Place, device: str) -> Any:
    """Who this is, told by a process of its own, so that this one holds neither a GPU nor its memory."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe(duplex=False)
    process = context.Process(target=_tell_introduction, args=(theirs, place, device), daemon=True)
    process.start()
    theirs.close()
    try:
        told = ours.recv() if ours.poll(_INTRODUCTION_LIMIT_S) else {"error": "its device does not answer"}
    except EOFError:
        process.join(1.0)
        told = {"error": f"what looks at its device died (exit code {process.exitcode})"}
    process.kill()
    return told


def _tell_introduction(pipe: Connection, place: Place, device: str) -> None:
    from harness.probe.device import discover, environment_of
    from harness.probe.party import introduction

    try:
        opened = discover(device, place.local_rank)
        pipe.send(introduction(opened.facts, environment_of(opened)))
    except HarnessError as error:
        pipe.send({"error": str(error)})
    except Exception as error:
        pipe.send({"error": f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"})


class _Held(threading.Thread):
    """This rank's part in one world, from the call to the worker until either has gone.

    A worker may have two worlds at once: one that is timed, and one that tells what NCCL chose.
    """

    def __init__(self, place: Place, task: Mapping[str, Any], wire: Wire) -> None:
        super().__init__(daemon=True)
        self._place, self._task, self._wire = place, task, wire

    def run(self) -> None:
        """Hold the rank. The kernel ends it with this very thread."""
        with tempfile.TemporaryDirectory(prefix="ofpeak-rank-") as folder, contextlib.closing(self._wire):
            log = Path(folder) / "nccl.log"
            child = Child(_seat(self._place, self._task, log), log)
            try:
                _hand_through(self._wire, child)
            except (OSError, EOFError):
                pass  # the worker hung up, or its host is gone
            finally:
                child.end(time.monotonic() + _CLOSE_LIMIT_S)

    def let_go(self) -> None:
        """Hang up, and wait until the rank has ended."""
        self._wire.hang_up()
        self.join(2 * _CLOSE_LIMIT_S)


def _take_part(place: Place, task: Mapping[str, Any], held: list[_Held]) -> None:
    """Call the worker that makes a world; one that died since makes no other, its successor will."""
    with contextlib.suppress(OSError):
        wire = call(place.store_address, task["port"], task["token"], place.rank, _CALL_LIMIT_S)
        held.append(_Held(place, task, wire))
        held[-1].start()


def _seat(place: Place, task: Mapping[str, Any], log: Path) -> Seat:
    return Seat(
        rank=place.rank,
        ranks=place.ranks,
        device=task["device"],
        gpu=place.local_rank,
        rendezvous=task["rendezvous"],
        parent=os.getpid(),
        cpus=host.allowed_cpus(),
        variables=switches(log, task["variables"], os.environ),
        code=task["code"],
        backend_limit_s=task["backend_limit_s"],
    )


def _hand_through(wire: Wire, child: Child) -> None:
    """Commands to the rank, answers to the worker, until one of them is gone; how the rank died is told."""
    while True:
        ready = ready_of({_WORKER: wire, _RANK: child}, _PATIENT_S)
        if _RANK in ready:
            try:
                status, answer = child.recv()
            except (EOFError, OSError):
                wire.send((DIED, child.exit_code(1.0), child.last_line()))
                return
            wire.send((status, answer, child.last_line() if status == "error" else ""))
        if _WORKER in ready:
            command, arguments = wire.recv()
            child.send((command, tuple(arguments)))
            if command == "close":
                return


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
