"""Cases between ranks that tests do something to: one before, one in which rank 1 waits for what comes, one after."""

import os

from benches.bench_collectives import hosts_of, ranks_of
from harness.model import Case, Work

FOLDER = "OFPEAK_TEST_FOLDER"


def cases(profile, device):
    for turn in ("before", "waits", "after"):
        params = {"turn": turn, "ranks": ranks_of(device), "hosts": hosts_of(device)}
        yield Case("sum", params, (Work(8, "B", None, "bus", no_peak="a test"),), defaults={"hosts": 1})
    yield Case("alone", {"n": 1}, (Work(8, "B", None, "bus", no_peak="a test"),))


def bench_faults_of_ranks(case, device, measure):
    if case.params["turn"] == "waits":
        measure("tests.process.rank_bodies.waiting", folder=os.environ[FOLDER])
    else:
        measure("kernels.collectives.all_reduce", size_bytes=8, dtype="fp32")
