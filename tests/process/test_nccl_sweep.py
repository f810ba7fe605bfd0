"""Settings of NCCL in ranks of their own: real processes over gloo that write NCCL's debug file as NCCL does."""

from dataclasses import dataclass

import pytest

from harness import runner
from harness.model import Order, Record, Run
from harness.nccl_sweep import find_fastest
from harness.probe.device import CpuDevice
from harness.probe.worker import Task, WorkerSession
from kernels.checker import TorchChecker
from tests.process.processes import ROOT
from tests.swept_benches import bench_swept

REFUSED = (
    "NCCL refuses NCCL_ALGO=PAT: no algorithm/protocol available for function AllReduce with datatype ncclFloat32. "
    "NCCL_ALGO was set to PAT."
)


@dataclass(frozen=True)
class Swept:
    """A whole run of the settings, and each rank that opened a case: its process, its NCCL_ALGO, the size, its log."""

    run: Run
    opened: list[list[str]]

    def record(self, size: int, setting: str = "") -> Record:
        key = f"all_reduce/bytes={size},dtype=fp32,impl=nccl,{setting}ranks=2,world=own"
        return next(record for record in self.run.records if record.key == key)


@pytest.fixture(scope="module")
def swept(tmp_path_factory: pytest.TempPathFactory) -> Swept:
    """Supervisor, worker and ranks for real, without NCCL."""
    base = tmp_path_factory.mktemp("swept")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OFPEAK_TEST_STARTS", str(base / "starts"))
        order = Order("full", device="cpu")
        events = list(runner.execute(order, out=base / "set", benches=ROOT / "tests" / "swept_benches"))
    return Swept(events[-1]["run"], [line.split() for line in (base / "starts").read_text().splitlines()])


def test_each_setting_has_one_world_of_fresh_processes(swept: Swept):
    opened = [(algorithm, size) for _, algorithm, size, _ in swept.opened[::2]]
    # What is refused at one size is not tried at the next.
    assert opened == [("Ring", "64"), ("Ring", "4096"), ("Tree", "64"), ("Tree", "4096"), ("PAT", "64")]
    pids = {
        algorithm: {pid for pid, of, *_ in swept.opened if of == algorithm} for algorithm in ("Ring", "Tree", "PAT")
    }
    assert [len(found) for found in pids.values()] == [2, 2, 2]
    assert len(set.union(*pids.values())) == 6


def test_ranks_that_are_timed_write_the_debug_file_themselves(swept: Swept):
    assert {subsystems for *_, subsystems in swept.opened} == {"TUNING,P2P,SHM,NET"}


def test_record_holds_what_nccl_ran(swept: Swept):
    for setting, ran in (("", "ring"), ("nccl_algo=Tree,", "tree")):
        record = swept.record(64, setting)
        assert record.outcome == "measured"
        assert record.warnings == ()
        told = record.telemetry
        assert told is not None
        assert (told.algorithm, told.protocol, told.channels, told.transport) == (ran, "simple", 4, "p2p")


def test_setting_that_is_left_alone_is_measured_and_marked(swept: Swept):
    record = swept.record(4096, "nccl_algo=Tree,")
    assert record.outcome == "measured"
    assert record.warnings == (
        "other setting: NCCL_ALGO=Tree was asked, NCCL ran ring simple over p2p. It is no figure of that setting.",
    )


def test_setting_that_is_refused_is_not_applicable_in_nccls_words(swept: Swept):
    refused = [swept.record(size, "nccl_algo=PAT,") for size in (64, 4096)]
    assert [(record.outcome, record.reason) for record in refused] == [("not_applicable", REFUSED)] * 2


def test_table_is_made_of_what_was_followed(swept: Swept):
    (sweep,) = find_fastest([swept.run])
    assert (sweep.settings, [row.size_bytes for row in sweep.rows]) == (2, [64, 4096])
    assert all(row.default_s is not None and row.ran == "ring simple" for row in sweep.rows)
    assert sweep.rows[1].setting == "default"
    assert sweep.left_out == (("NCCL_ALGO=Tree was asked, NCCL ran ring simple over p2p", 1),)


def test_setting_of_the_operator_is_not_swept_over(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("NCCL_ALGO", "Ring")
    session = WorkerSession(Task(Order("full", device="cpu")), CpuDevice(), TorchChecker(), {})
    cases = session.plan("swept", bench_swept.cases("full", session.facts))
    assert {case.not_applicable for case in cases} == {
        "NCCL_ALGO=Ring is set in the environment: unset it to compare with the default"
    }
