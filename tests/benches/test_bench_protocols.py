"""The family that measures as other tools do: its keys are theirs, and what it launches is right."""

from collections import Counter
from dataclasses import replace

import pytest
import torch

from benches import bench_protocols
from harness.importers import nvbandwidth, published
from harness.model import PROFILES
from harness.probe.measure import SMOKE, CheckFailedError, Subject, check, measure_case
from harness.probe.protocols import FLUSHED_BYTES, PeerProtocols
from kernels.checker import TorchChecker
from tests.benches.test_cases import A100, CPU, H200
from tests.probe.test_protocols import TellingDevice

FAKE = replace(H200, torch_device="cpu", triton="interpreted")
CASES = list(bench_protocols.cases("standard", H200))


def test_it_must_be_asked_for_and_no_profile_changes_what_it_has():
    assert bench_protocols.ASKED
    assert all(list(bench_protocols.cases(profile, H200)) == CASES for profile in PROFILES)
    assert max(Counter(case.key for case in CASES).values()) == 1


def test_every_key_names_its_protocol():
    assert {case.params["protocol"] for case in CASES} == {"nvbandwidth", "do_bench", "mamf"}
    assert all("protocol=" in case.key for case in CASES)


def test_what_mamf_finder_runs_in_fp8_has_the_key_of_its_published_figures():
    case = bench_protocols.gemm_case("mamf", "fp8_e4m3", "torch", (1280, 4096, 12032), H200, "slow", "fp8_e4m3")
    theirs = {record.key for record in published.published_run("NVIDIA H200").records}
    assert case.key == "gemm/dtype=fp8_e4m3,impl=torch,k=12032,m=1280,n=4096,protocol=mamf"
    assert case.key in theirs


def test_a_copy_is_counted_as_nvbandwidth_counts_it():
    case = bench_protocols.copy_case("torch", H200)
    assert case.key == "copy/bytes=536870912,counted=one_way,impl=torch,protocol=nvbandwidth"
    assert [(work.amount, work.label) for work in case.work] == [(2**29, "one way"), (2**30, "read + written")]
    assert case.params["protocol"] == nvbandwidth.PROTOCOL
    assert case.params["bytes"] == nvbandwidth.DEFAULT_BUFFER_MIB * 2**20


def test_the_flush_is_that_of_the_protocol():
    assert bench_protocols.FLUSHED_BYTES == FLUSHED_BYTES


def test_other_devices_are_told_why_not():
    assert {case.not_applicable for case in bench_protocols.cases("full", CPU)} == {"these tools measure GPUs"}
    lacking = {c.not_applicable for c in bench_protocols.cases("full", A100) if c.params["dtype"] == "fp8_e4m3"}
    assert lacking == {"fp8_e4m3 needs compute capability 8.9, NVIDIA A100-SXM4-40GB lacks it"}


def small(case):
    """The same case at a size that a CPU does at once."""
    if case.op == "copy":
        return replace(case, params={**case.params, "bytes": 4096})
    return replace(case, params={**case.params, "m": 32, "n": 64, "k": 64})


@pytest.mark.parametrize("case", [case for case in CASES if case.params.get("m") != 2048], ids=lambda case: case.key)
def test_what_is_launched_is_right_before_and_after(case):
    """On a device that tells its times, so that a protocol's launches really run; mamf's reset is overwritten."""
    told, device = [], TellingDevice()

    def measure(launch, **how):
        # One launch of a tenth of a second keeps do_bench's repetitions few.
        subject = Subject(lambda i: (launch(i), 0.1)[1], **how)
        told.append(measure_case(case, subject, device, TorchChecker(), SMOKE, peers=PeerProtocols(is_mamf_warm=True)))

    bench_protocols.bench_protocols(small(case), FAKE, measure)
    assert [check.passed for check in told[0].checks] == [True, True]
    assert all(sample == pytest.approx(0.1) for sample in told[0].samples.seconds)


@pytest.mark.parametrize("protocol", ["mamf", "do_bench"])
def test_a_row_that_is_never_written_is_found(protocol, monkeypatch):
    """What mamf-finder fills the result with before each launch hid it, where no row is compared."""

    def plan_all_but_one(a, b, out, **_):
        def launch():
            out[2:] = a[2:].float() @ b.float().t()
            out[0] = a[0].float() @ b.float().t()

        return launch

    monkeypatch.setattr(bench_protocols.gemm_torch, "plan", plan_all_but_one)
    case = bench_protocols.gemm_case(protocol, "bf16", "torch", (256, 64, 64), FAKE)

    def measure(launch, **how):
        with pytest.raises(CheckFailedError):
            check(Subject(launch, **how), TellingDevice(), TorchChecker(), 1, "before")

    bench_protocols.bench_protocols(case, FAKE, measure)


def test_fp8_results_beyond_the_type_are_compared_with_its_largest():
    a, b = (torch.full((16, 64), 8.0).to(torch.float8_e4m3fn) for _ in range(2))
    expected = bench_protocols.gemm_rows(a, b, torch.arange(16))
    assert float(expected.max()) > bench_protocols.FP8_MOST == 448.0
