"""Which algorithm NCCL chose: asked of a second world, whose ranks write NCCL's debug file.

NCCL writes a line for every collective, which costs the host time that `loop` and `eager` would measure, and reads
its switch once a process. So the ranks that are timed stay silent, and these run every case once, under the same
variables: NCCL chooses by topology, size and variables, not by chance.

Where each setting has a world of its own, no second one is made of it: its cases are graphs, whose replays write
nothing, so that the timed ranks can tell for themselves.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from harness.model import Case, Telemetry
from harness.nccl_log import choice_of, transport_of
from harness.probe.meeting import Meeting
from harness.probe.ranks import RankError, World

TELLING = {"NCCL_DEBUG": "INFO", "NCCL_DEBUG_SUBSYS": "TUNING,P2P,SHM,NET"}
_LIMIT_S = 30.0
# The mode of a step in which its collective runs alone.
ALONE = "communicate"


class Witness:
    """The second world; it is made when it is first asked, and after an error never again."""

    def __init__(self, meeting: Meeting | None = None) -> None:
        self._meeting = meeting
        self._world: World | None = None
        self._ranks = 0
        self._read = 0
        self._transport = ""
        self._broken = ""

    def complete(
        self, case: Case, telemetry: Telemetry, body: str, how: Mapping[str, Any], own: World | None = None
    ) -> Telemetry:
        """The telemetry with NCCL's choice for that case, or with the reason why it is not known.

        `own` are the ranks that were timed, where they wrote the debug file themselves.
        """
        if case.params.get("impl") != "nccl" or "bytes" not in case.params:
            return telemetry
        if own is not None:
            return _told(case, telemetry, own.backend_log(0), _transport(own, case))
        if case.params.get("mode", ALONE) != ALONE:
            return _unknown(telemetry, f"it is asked of mode={ALONE}, whose collective is the same")
        try:
            text = "" if self._broken else self._log_of(case, body, how)
        except RankError as error:
            self.close()
            self._broken = f"the ranks that tell the algorithm failed: {error}"
        if self._broken:
            return _unknown(telemetry, self._broken)
        return _told(case, telemetry, text, self._transport)

    def close(self) -> None:
        """End the second world."""
        if self._world is not None:
            self._world.close()
            self._world = None

    def _log_of(self, case: Case, body: str, how: Mapping[str, Any]) -> str:
        """What rank 0 wrote while the case ran once."""
        ranks = int(case.params["ranks"])
        if self._world is None or self._ranks != ranks:
            self.close()
            self._world, self._ranks, self._read = World(ranks, "cuda", TELLING, meeting=self._meeting), ranks, 0
        self._world.ask("open", body, dict(how), limit_s=_LIMIT_S)
        self._world.ask("run_once", str(case.params.get("launch", "queued")), limit_s=_LIMIT_S)
        self._world.ask("drop", limit_s=_LIMIT_S)
        log = self._world.backend_log(0)
        new, self._read = log[self._read :], len(log)
        self._transport = _transport(self._world, case)
        return new


def _transport(world: World, case: Case) -> str:
    """What all ranks connected through, since the first case: channels are connected once."""
    return transport_of("\n".join(world.backend_log(rank) for rank in range(int(case.params["ranks"]))))


def _told(case: Case, telemetry: Telemetry, text: str, transport: str) -> Telemetry:
    telemetry = replace(telemetry, transport=transport)
    choice = choice_of(text, case.op.removeprefix("gemm_"), int(case.params["bytes"]), int(case.params["ranks"]))
    if choice is None:
        return _unknown(telemetry, "NCCL's debug file does not tell the algorithm of this operation")
    return replace(telemetry, algorithm=choice.algorithm, protocol=choice.protocol, channels=choice.channels)


def _unknown(telemetry: Telemetry, why: str) -> Telemetry:
    return replace(telemetry, missing={**telemetry.missing, "algorithm": why})
