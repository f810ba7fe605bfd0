"""NCCL's choice asked of a second world, which is a list here."""

from typing import ClassVar

import pytest

from harness.model import Case, Telemetry, Work
from harness.probe import witness
from harness.probe.ranks import RankError
from harness.probe.witness import Witness

LINE = "node:1:1 [0] NCCL INFO AllReduce: {} Bytes -> Algo {} proto SIMPLE channel{{Lo..Hi}}={{0..23}}\n"


def all_reduce(size_bytes: int, impl: str = "nccl", **more: str) -> Case:
    params = {"bytes": size_bytes, "impl": impl, "ranks": 2, **more}
    return Case("all_reduce", params, (Work(1.0, "B", None, "bus"),))


class World:
    """Ranks that write a line at every launch."""

    made: ClassVar[list["World"]] = []
    fails = False

    def __init__(self, ranks, device, variables, meeting=None):
        self.asked, self.log, self.is_closed = [], "", False
        self.variables, self.of_rank_1 = variables, ""
        World.made.append(self)

    def ask(self, command, *arguments, limit_s):
        """Write what NCCL would."""
        self.asked.append((command, *arguments))
        if World.fails:
            raise RankError("rank 1 of 2 died in 'open' (exit code 1)")
        if command == "open":
            self.size_bytes = arguments[1]["size_bytes"]
        if command == "run_once":
            self.log += LINE.format(self.size_bytes, "NVLS" if arguments[0] == "graph" else "RING")

    def backend_log(self, rank):
        """All that the rank wrote."""
        return self.of_rank_1 if rank else self.log

    def close(self):
        """Gone."""
        self.is_closed = True


@pytest.fixture(autouse=True)
def worlds(monkeypatch):
    monkeypatch.setattr(witness, "World", World)
    monkeypatch.setattr(World, "made", [])
    monkeypatch.setattr(World, "fails", False)
    return World


def told(asked: Witness, case: Case) -> Telemetry:
    return asked.complete(case, Telemetry(), "body", {"size_bytes": case.params["bytes"]})


def test_each_case_gets_the_choice_of_its_own_launch(worlds):
    asked = Witness()
    assert (told(asked, all_reduce(8)).algorithm, told(asked, all_reduce(8, launch="graph")).algorithm) == (
        "ring",
        "nvls",
    )
    found = told(asked, all_reduce(64))
    assert (found.algorithm, found.protocol, found.channels) == ("ring", "simple", 24)
    assert len(worlds.made) == 1
    assert worlds.made[0].variables == {"NCCL_DEBUG": "INFO", "NCCL_DEBUG_SUBSYS": "TUNING,P2P,SHM,NET"}
    asked.close()
    assert worlds.made[0].is_closed


def test_channels_that_were_connected_once_are_those_of_every_case(worlds):
    asked = Witness()
    told(asked, all_reduce(8))
    worlds.made[0].log += "node:1:1 [0] NCCL INFO Channel 00 : 0[0] -> 1[1] via SHM/direct/direct\n"
    assert [told(asked, all_reduce(size)).transport for size in (64, 512)] == ["shm", "shm"]
    worlds.made[0].of_rank_1 = "node:2:2 [1] NCCL INFO Channel 00/0 : 1[1] -> 2[2] via P2P/CUMEM\n"
    assert told(asked, all_reduce(4096)).transport == "p2p+shm"


def test_ranks_that_tell_for_themselves_are_read_and_no_others_made(worlds):
    own = World(2, "cuda", {})
    worlds.made.clear()
    own.log = LINE.format(64, "TREE") + "n:1:1 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[1] via P2P/CUMEM\n"
    found = Witness().complete(all_reduce(64), Telemetry(), "body", {}, own)
    assert (found.algorithm, found.protocol, found.transport) == ("tree", "simple", "p2p")
    assert own.asked == []
    assert worlds.made == []


def test_step_is_asked_once_of_its_collective_alone(worlds):
    asked = Witness()
    alone, beside = (
        Case("gemm_all_reduce", {"bytes": 64, "impl": "nccl", "ranks": 2, "mode": mode}, (), kind="latency")
        for mode in ("communicate", "overlap")
    )
    assert told(asked, alone).algorithm == "ring"
    assert told(asked, beside).missing["algorithm"] == "it is asked of mode=communicate, whose collective is the same"
    assert [command for command, *_ in worlds.made[0].asked] == ["open", "run_once", "drop"]


def test_gloo_is_not_asked(worlds):
    assert told(Witness(), all_reduce(8, impl="gloo")) == Telemetry()
    assert worlds.made == []


def test_operation_without_a_line_has_a_reason(worlds):
    case = Case("send_recv", {"bytes": 8, "impl": "nccl", "ranks": 2}, (Work(1.0, "B", None, "bus"),))
    assert told(Witness(), case).missing == {
        "algorithm": "NCCL's debug file does not tell the algorithm of this operation"
    }


def test_witness_that_failed_is_not_made_again_and_costs_no_figure(worlds):
    worlds.fails = True
    asked = Witness()
    reasons = [told(asked, all_reduce(8)).missing["algorithm"] for _ in range(2)]
    assert reasons == ["the ranks that tell the algorithm failed: rank 1 of 2 died in 'open' (exit code 1)"] * 2
    assert [world.is_closed for world in worlds.made] == [True]
