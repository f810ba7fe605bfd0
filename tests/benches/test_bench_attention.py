"""The attention family as a worker runs it, on a CPU, and what its cases declare for a GPU."""

from dataclasses import replace

import pytest
import torch

from benches import bench_attention
from harness.probe.measure import SMOKE, Subject, check, measure_case
from kernels import attention
from kernels.checker import TorchChecker
from tests.benches.test_bench_cache import Host
from tests.benches.test_cases import A100, CPU, H200

GIB = 2**30
SMOKE_CASES = list(bench_attention.cases("smoke", CPU))


@pytest.mark.parametrize("case", SMOKE_CASES, ids=lambda case: case.key)
def test_case_is_right_on_a_cpu(case):
    told = []

    def measure(launch, **how):
        checked = replace(case, checked_only="looked at alone")
        told.append(measure_case(checked, Subject(launch, **how), Host(), TorchChecker(), SMOKE))

    bench_attention.bench_attention(case, CPU, measure)
    (before,) = told[0].checks
    assert before.passed
    assert before.bound == bench_attention.LEAST_SQNR_DB


def test_every_buffer_set_is_looked_at_and_some_sequences_of_all():
    case = bench_attention.decode_case("decode_attention", bench_attention.CACHES[2], 2, 256, CPU)
    buffers = bench_attention.DecodeBuffers(case, CPU)
    pairs = [list(buffers.reference(i)) for i in range(buffers.sets)]
    assert [len(of_set) for of_set in pairs] == [3, 3]
    assert sorted(buffers.tables[1].flatten().tolist()) == list(range(8))


def test_a_wrong_sequence_is_found():
    case = bench_attention.decode_case("decode_attention", bench_attention.CACHES[0], 2, 256, CPU)
    told = []

    def measure(launch, **how):
        def spoilt(i):
            launch(i)
            how["outputs"][i][1] *= 1.1

        with pytest.raises(Exception, match="SQNR against the reference is"):
            check(Subject(spoilt, **how), Host(), TorchChecker(), 1, "before")
        told.append(how)

    bench_attention.bench_attention(case, CPU, measure)
    assert told


def test_decode_counts_keys_values_queries_and_results_once():
    plain, paged = (
        bench_attention.decode_case("decode_attention", bench_attention.CACHES[n], 64, 32 * 1024, H200) for n in (0, 2)
    )
    cache = 64 * 32 * 1024 * 8 * 128 * 2 * 2
    assert plain.work[0].amount == cache + 2 * 64 * 64 * 128 * 2
    assert paged.work[0].amount - plain.work[0].amount == 64 * 512 * 4
    assert plain.work[1].amount == 4 * 64 * 64 * 32 * 1024 * 128
    assert plain.key == "decode_attention/batch=64,context=32768,dtype=bf16,impl=triton,layout=contiguous"


def test_prefill_counts_the_pairs_that_it_must_look_at():
    whole, causal = (bench_attention.prefill_case("torch", 1, 4, causal, H200).work[0].amount for causal in (0, 1))
    assert (whole, causal) == (4 * 64 * 128 * 16, 4 * 64 * 128 * 10)


def test_contexts_go_to_128k_and_batches_to_128_as_far_as_a_cache_fits():
    cases = [case for case in bench_attention.cases("full", H200) if case.op == "decode_attention"]
    assert {case.params["context"] for case in cases} == {2**10, 2**13, 2**15, 2**17}
    assert {case.params["batch"] for case in cases} == {1, 8, 64, 128}
    largest = [c for c in cases if (c.params["context"], c.params["batch"]) == (2**17, 128)]
    assert {c.params["dtype"] for c in largest} == {"fp8_e4m3"}
    assert max(case.memory_bytes for case in cases) < 60 * GIB


def test_one_sequence_alone_has_enough_calls_for_a_99th_percentile_and_a_cache_that_l2_has_forgotten():
    cases = [case for case in bench_attention.cases("full", H200) if case.op == "decode_latency"]
    assert {case.params["batch"] for case in cases} == {1}
    assert {case.params["launch"] for case in cases} == {"graph"}
    assert bench_attention.SHOTS >= 200
    assert all(case.footprint_bytes >= 4 * H200.l2_bytes for case in cases)


def test_torch_stands_beside_triton_in_every_context_and_batch_of_a_plain_bf16_cache():
    cases = [case for case in bench_attention.cases("full", H200) if case.params["dtype"] == "bf16"]
    keys = {impl: [c.key.replace(impl, "") for c in cases if c.params["impl"] == impl] for impl in ("triton", "torch")}
    assert set(keys["torch"]) <= set(keys["triton"])
    assert all("paged" in key for key in set(keys["triton"]) - set(keys["torch"]))


def test_a_card_without_fp8_says_so_and_does_the_rest():
    cases = list(bench_attention.cases("full", A100))
    lacking = {case.not_applicable for case in cases if case.params["dtype"] == "fp8_e4m3"}
    assert lacking == {"fp8_e4m3 needs compute capability 8.9, NVIDIA A100-SXM4-40GB lacks it"}
    assert not any(case.not_applicable for case in cases if case.params["dtype"] == "bf16")


def test_operands_of_a_set_are_its_own():
    case = bench_attention.decode_case("decode_attention", bench_attention.CACHES[0], 2, 256, CPU)
    buffers = bench_attention.DecodeBuffers(case, CPU)
    for i in range(2):
        for tensor in buffers.operands(i):
            tensor.fill_(i)
    assert [float(t.float().mean()) for t in buffers.operands(0)] == [0.0] * 3
    assert attention.INTERPRETED
    assert buffers.keys.dtype == torch.bfloat16
