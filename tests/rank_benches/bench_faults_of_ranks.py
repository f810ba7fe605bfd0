"""Cases between ranks: in some, rank 1 waits for what its test does to it; and one case that needs no ranks."""

import os

from benches.bench_collectives import hosts_of, ranks_of
from harness.model import Case, Work

FOLDER = "OFPEAK_TEST_FOLDER"


def cases(profile, device):
    for turn in ("first", "waits", "next", "waits_again", "last"):
        params = {"turn": turn, "ranks": ranks_of(device), "hosts": hosts_of(device)}
        yield Case("sum", params, (Work(8, "B", None, "bus", no_peak="a test"),), defaults={"hosts": 1})
    yield Case("alone", {"n": 1}, (Work(8, "B", None, "bus", no_peak="a test"),))


def bench_faults_of_ranks(case, device, measure):
    turn = case.params.get("turn", "")
    if turn.startswith("waits"):
        measure("tests.process.rank_bodies.waiting", file=f"{os.environ[FOLDER]}/{turn}")
    else:
        measure("kernels.collectives.all_reduce", size_bytes=8, dtype="fp32")
