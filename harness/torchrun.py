"""What torchrun tells each process that it starts, and what a process does with it. Floor 2.

Global rank 0 supervises the run; every other process becomes a server that runs its GPU's rank for it
(harness/probe/serving.py). The store that torchrun's agents share is where they find one another.
"""

import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import NoReturn

from harness.asking import ask_probe
from harness.errors import HarnessError

# torchrun alone sets it; others set RANK too.
_MARK = "TORCHELASTIC_RUN_ID"
_END_LIMIT_S = 60.0


@dataclass(frozen=True)
class Place:
    """One process of a torchrun job: its rank among all, where it is, and the store that all of them reach.

    A host is one agent of torchrun, numbered by it. `attempt` counts torchrun's restarts.
    """

    rank: int
    ranks: int
    host: int
    hosts: int
    local_rank: int
    store_address: str
    store_port: int
    attempt: int = 0

    @property
    def ranks_per_host(self) -> int:
        """The same on every host."""
        return self.ranks // self.hosts

    def host_of(self, rank: int) -> int:
        """The host that a rank is on: torchrun numbers host by host."""
        return rank // self.ranks_per_host


def place_of(environment: Mapping[str, str]) -> Place | None:
    """This process's place, or `None` where torchrun did not start it."""
    if _MARK not in environment:
        return None
    try:
        place = Place(
            rank=int(environment["RANK"]),
            ranks=int(environment["WORLD_SIZE"]),
            host=int(environment["GROUP_RANK"]),
            hosts=int(environment["GROUP_WORLD_SIZE"]),
            local_rank=int(environment["LOCAL_RANK"]),
            store_address=environment["MASTER_ADDR"],
            store_port=int(environment["MASTER_PORT"]),
            attempt=int(environment.get("TORCHELASTIC_RESTART_COUNT", "0")),
        )
        local_ranks = int(environment["LOCAL_WORLD_SIZE"])
    except (KeyError, ValueError) as error:
        raise HarnessError(f"torchrun's variables are not whole: {error}. Start it with torchrun itself.") from error
    if environment.get("TORCHELASTIC_USE_AGENT_STORE") != "True":
        raise HarnessError(
            "torchrun's agents share no store: its hosts could not find one another. Unset TORCH_DISABLE_SHARE_RDZV_"
            "TCP_STORE, and use --rdzv-backend=c10d."
        )
    if local_ranks * place.hosts != place.ranks:
        raise HarnessError(
            f"{place.ranks} ranks on {place.hosts} hosts, {local_ranks} of them on host {place.host}: every host must "
            "run the same number. Give each torchrun the same --nproc-per-node."
        )
    return place


def serve(device: str) -> NoReturn:
    """Become the server of this process's rank. It ends when rank 0 does."""
    command = [sys.executable, "-m", "harness.probe.serving", device]
    os.execv(command[0], command)


@contextmanager
def telling_the_end(place: Place | None) -> Iterator[None]:
    """However rank 0 ends: tell the servers, which leave with success. Where torchrun's store is gone, so are they."""
    try:
        yield
    finally:
        if place is not None and place.ranks > 1:
            with suppress(HarnessError):
                ask_probe("tell_end", _END_LIMIT_S)
