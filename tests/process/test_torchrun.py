"""Runs that torchrun starts, gloo between real processes: one run file for all ranks, and what each fault leaves."""

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.process.processes import children
from tests.process.torchruns import BETWEEN_HOSTS, GLOO, Torchrun, pull_cable, two_hosts

KEYS = "all_reduce/*bytes=8,dtype=fp32,* all_to_all/* barrier/*"


@pytest.fixture
def torchrun(tmp_path: Path) -> Iterator[Torchrun]:
    run = Torchrun(tmp_path / "set")
    yield run
    for agent in run.agents:
        if agent.poll() is None:
            os.killpg(agent.pid, signal.SIGKILL)


def test_four_ranks_of_one_host_make_one_run(torchrun: Torchrun):
    torchrun.start(["--only", KEYS], ranks_per_node=4, module="harness")
    (left,) = torchrun.ends()
    assert left.code == 0, left.err
    assert "ofpeak: 4 ranks on 1 host: what matches --only is measured" in left.err
    run = torchrun.run
    assert {record.outcome for record in run.records if not record.key.count("graph")} == {"measured"}
    assert "all_reduce/bytes=8,dtype=fp32,impl=gloo,ranks=4" in {record.key for record in run.measured}
    assert all(len(record.samples.rank_seconds) == 4 for record in run.measured if record.samples)
    assert (run.fact("hosts.count"), run.fact("hosts.ranks")) == (1, 4)


def test_two_hosts_make_one_run_that_names_both(torchrun: Torchrun):
    with two_hosts() as hosts:
        torchrun.start(["--only", KEYS], module="harness", within=hosts, environment=GLOO, **BETWEEN_HOSTS)
        first, second = torchrun.ends()
    assert (first.code, second.code) == (0, 0), first.err + second.err
    run = torchrun.run
    assert "all_reduce/bytes=8,dtype=fp32,hosts=2,impl=gloo,ranks=2" in {record.key for record in run.measured}
    assert {record.case.op for record in run.measured} == {"all_reduce", "all_to_all", "barrier"}
    assert all(check.passed for record in run.measured for check in record.checks)
    assert (run.fact("hosts.count"), run.fact("hosts.differ")) == (2, "in nothing that was read")
    assert run.environment["hosts.1.cards"].status == "no NVIDIA GPU was measured"
    assert run.device.party is not None
    assert run.device.party.no_network == "host 0: no network port here tells its speed"


def test_host_that_cannot_be_reached_any_more_fails_its_case_and_those_after_it(torchrun: Torchrun):
    """What the cable carried is lost without a word: neither end is told, and torch's store would wait forever."""
    with two_hosts() as hosts:
        torchrun.start(
            ["--only", "*turn=first *turn=waits *turn=last"], within=hosts, environment=GLOO, **BETWEEN_HOSTS
        )
        torchrun.wait_until_rank_1_waits()
        pull_cable(hosts[1])
        first, second = torchrun.ends()
    assert (first.code, second.code) == (1, 1)
    assert "rank 1 (host 1): torchrun's store, on its first host, did not answer in 20 s" in second.err
    assert torchrun.records["first"].outcome == "measured"
    failed = torchrun.records["waits"]
    assert failed.outcome == "failed"
    assert failed.reason.startswith("rank 1 of 2 (host 1) cannot be reached any more, in 'check'")
    last = torchrun.records["last"]
    assert last.outcome == "failed"
    assert (
        last.reason == "rank 1 of 2 (host 1) cannot be reached any more"
    )  # it was not asked again: no command is named


def test_rank_that_dies_gets_a_new_world_and_a_host_that_dies_fails_what_needs_it(torchrun: Torchrun):
    torchrun.start([], nodes=2, ranks_per_node=1)
    torchrun.wait_until_rank_1_waits()
    (server,) = torchrun.servers(rank=1)
    (rank,) = [pid for pid in children(server) if pid in torchrun.processes("spawn_main")]
    os.kill(rank, signal.SIGKILL)
    torchrun.wait_until_rank_1_waits("waits_again")
    os.kill(torchrun.agents[1].pid, signal.SIGKILL)  # nobody is left there to end its server
    first, second = torchrun.ends()
    assert (first.code, second.code) == (1, -signal.SIGKILL)
    assert "ofpeak: 2 ranks on 2 hosts: only what runs between ranks is measured. Name other families" in first.err
    records = torchrun.records  # the case that needs no ranks is not among them
    assert {turn: record.outcome for turn, record in records.items()} == {
        "first": "measured",
        "waits": "failed",
        "next": "measured",
        "waits_again": "failed",
        "last": "failed",
    }
    assert records["waits"].reason.startswith("rank 1 of 2 died in 'check' (exit code -9)")
    assert "rank 1 of 2 (host 1) cannot be reached any more" in records["waits_again"].reason
    assert records["last"].reason == "rank 1 of 2 (host 1) cannot be reached any more"
    assert not [
        record.reason for record in records.values() if "did not answer" in record.reason
    ]  # none was waited out


def test_run_that_a_scheduler_ends_is_saved(torchrun: Torchrun):
    torchrun.start(["--only", "*turn=first *turn=waits"])
    torchrun.wait_until_rank_1_waits()
    os.kill(torchrun.agents[0].pid, signal.SIGTERM)
    (left,) = torchrun.ends()
    assert left.code != 0
    assert (
        f"ofpeak: stopped by SIGTERM; finished cases are in {torchrun.folder}/run-001.json. "
        f"Go on with `torchrun ... -m harness run --resume {torchrun.folder}`." in left.err
    )
    assert {turn: record.outcome for turn, record in torchrun.records.items()} == {
        "first": "measured",
        "waits": "not_run",
    }


def test_everything_ends_when_rank_0_is_killed(torchrun: Torchrun):
    torchrun.start(["--only", "*turn=waits"], nodes=2, ranks_per_node=1)
    torchrun.wait_until_rank_1_waits()
    (rank_0,) = [pid for pid in children(torchrun.agents[0].pid) if pid in torchrun.processes("tests.process.on_ranks")]
    os.kill(rank_0, signal.SIGKILL)
    first, second = torchrun.ends()
    assert (first.code, second.code) == (1, 1)
    assert "rank 1 (host 1): torchrun's store is gone" in second.err
    assert not (torchrun.folder / "run-001.json").exists()
    assert (torchrun.folder / "run-001.jsonl").exists()
