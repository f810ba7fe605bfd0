"""Where the processes of a torchrun job find one another: the store that torchrun's agents share.

In it lie each process's introduction, and one after another what the servers are to do: join a world, or leave. A world
has a listener and a token of its own, and its ranks meet under a prefix of the same store, so that no port must be free
on another host but those that the libraries choose themselves.
"""

import datetime
import json
import math
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from harness.probe.members import Remote
from harness.probe.wire import Listener
from harness.torchrun import Place

_PREFIX = "ofpeak"
# How long the store's server is waited for: it is a thread of an agent that has nothing else to do.
_STORE_LIMIT_S = 20.0
_FIRST_PAUSE_S, _PAUSE_GROWTH, _LONGEST_PAUSE_S = 0.05, 1.2, 2.0
# A server that has introduced itself waits for worlds and does nothing else.
JOIN_LIMIT_S = 60.0

T = TypeVar("T")


class MeetingError(Exception):
    """The store is gone, and with it the agent on the first host; or a rank that is needed did not come."""


class Meeting:
    """This process's end of the store."""

    def __init__(self, place: Place) -> None:
        from torch.distributed import PrefixStore, TCPStore

        self.place = place
        self.lost: dict[int, str] = {}
        limit = datetime.timedelta(seconds=_STORE_LIMIT_S)
        store = self._bounded(lambda: TCPStore(place.store_address, place.store_port, is_master=False, timeout=limit))
        self._store = PrefixStore(f"{_PREFIX}/{place.attempt}", store)

    def introduce(self, introduction: Mapping[str, Any]) -> None:
        """Tell rank 0 who this is."""
        self._set(f"rank/{self.place.rank}", introduction)

    def introductions(self, limit_s: float) -> dict[int, Any]:
        """What every other rank tells of itself. MeetingError names those who did not come in time."""
        ends_s = time.monotonic() + limit_s
        told = {}
        for rank in range(1, self.place.ranks):
            try:
                told[rank] = self._get(f"rank/{rank}", max(0.1, ends_s - time.monotonic()))
            except TimeoutError:
                continue
        absent = [rank for rank in range(1, self.place.ranks) if rank not in told]
        if absent:
            raise MeetingError(f"{self.names(absent)} did not come in {limit_s:.0f} s")
        return told

    def call_together(self, task: Mapping[str, Any]) -> tuple[dict[int, Remote], str]:
        """A new world: the other ranks as they call in, and where all meet. MeetingError names those who do not come.

        A rank that was lost once is not waited for again: its server is gone, and torchrun starts no other.
        """
        if self.lost:
            raise MeetingError("; ".join(self.lost.values()))
        number = self._first_free()
        rendezvous = self._rendezvous(number)
        listener = Listener()
        members: dict[int, Remote] = {}
        ends_s = time.monotonic() + JOIN_LIMIT_S
        try:
            self._set(
                f"turn/{number}", {**task, "port": listener.port, "token": listener.token, "rendezvous": rendezvous}
            )
            while len(members) < self.place.ranks - 1 and (left_s := ends_s - time.monotonic()) > 0:
                came = listener.accept(left_s)
                if came is not None and 0 < came[0] < self.place.ranks:
                    members[came[0]] = Remote(came[1])
        finally:
            listener.close()
        absent = [rank for rank in range(1, self.place.ranks) if rank not in members]
        if absent:
            for member in members.values():
                member.end(0.0)
            words = f"{self.names(absent)} did not come in {JOIN_LIMIT_S:.0f} s"
            self.lost |= dict.fromkeys(absent[:1], words)
            raise MeetingError(words)
        return members, rendezvous

    def turn(self, number: int) -> Any:
        """What the servers are to do next: a world's task, or nothing more. Waits as long as the store is there."""
        return self._get(f"turn/{number}")

    def tell_end(self) -> None:
        """No more worlds: the servers may leave."""
        self._set(f"turn/{self._first_free()}", {})

    def names(self, ranks: list[int]) -> str:
        """Ranks with their hosts: `rank 2 and 3 of 4 (host 1)`."""
        hosts = sorted({self.place.host_of(rank) for rank in ranks})
        where = f"host {' and '.join(map(str, hosts))}"
        return f"rank {' and '.join(map(str, ranks))} of {self.place.ranks} ({where})"

    def _first_free(self) -> int:
        """Only one process at a time tells turns: the run's worker, or after it the command."""
        number = 0
        while self._has(f"turn/{number}"):
            number += 1
        return number

    def _rendezvous(self, number: int) -> str:
        address = self.place.store_address
        host = f"[{address}]" if ":" in address else address
        return f"store://{host}:{self.place.store_port}/{_PREFIX}/{self.place.attempt}/world/{number}"

    def _set(self, name: str, content: Mapping[str, Any]) -> None:
        self._bounded(lambda: self._store.set(name, json.dumps(content)))

    def _get(self, name: str, limit_s: float = math.inf) -> Any:
        """The content, asked for ever more seldom: a server waits so while others are timed."""
        ends_s, pause_s = time.monotonic() + limit_s, _FIRST_PAUSE_S
        while not self._has(name):
            if time.monotonic() >= ends_s:
                raise TimeoutError
            time.sleep(pause_s)
            pause_s = min(_LONGEST_PAUSE_S, pause_s * _PAUSE_GROWTH)
        return json.loads(self._bounded(lambda: self._store.get(name)))

    def _has(self, name: str) -> bool:
        # Not the store's own `wait`: it warns on standard error whenever its time is over.
        return self._bounded(lambda: bool(self._store.check([name])))

    def _bounded(self, act: Callable[[], T]) -> T:
        """What comes of the act in time. Where a host vanishes without a word, torch's store waits for it forever."""
        done: list[T] = []
        failed: list[Exception] = []

        def run() -> None:
            try:
                done.append(act())
            except Exception as error:
                failed.append(error)

        thread = threading.Thread(target=run, daemon=True)
        thread.start()
        thread.join(_STORE_LIMIT_S)
        if done:
            return done[0]
        if failed:
            raise MeetingError("torchrun's store is gone, and with it its first host") from failed[0]
        raise MeetingError(f"torchrun's store, on its first host, did not answer in {_STORE_LIMIT_S:.0f} s")
