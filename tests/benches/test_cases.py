"""What each profile plans on which device; no tensor is made."""

from collections import Counter
from dataclasses import replace
from itertools import pairwise

import pytest
import torch

from benches import (
    bench_alignment,
    bench_attention,
    bench_cache,
    bench_collectives,
    bench_compile,
    bench_data,
    bench_decoding,
    bench_driver,
    bench_fp8,
    bench_fusion,
    bench_gemm,
    bench_memory,
    bench_moe,
    bench_mx,
    bench_nccl_sweep,
    bench_overlap,
    bench_peers,
    bench_pipe,
    bench_resnet,
    bench_soak,
    bench_transformer,
    bench_units,
    bench_utilisation,
)
from harness import overlap
from harness.importers import nccl_tests
from harness.model import PROFILES, DeviceFacts, Party
from harness.nccl_settings import settings_of, words_of

FAMILIES = (
    *(bench_collectives, bench_decoding, bench_nccl_sweep, bench_gemm, bench_memory, bench_pipe, bench_overlap),
    *(bench_peers, bench_driver),
    *(bench_soak, bench_cache, bench_attention, bench_alignment, bench_units, bench_data),
    *(bench_fp8, bench_mx, bench_utilisation, bench_compile, bench_moe, bench_fusion),
    *(bench_resnet, bench_transformer),
)

H200 = DeviceFacts(
    kind="cuda",
    name="NVIDIA H200",
    torch_device="cuda:0",
    gpu_count=1,
    compute_capability=(9, 0),
    sm_count=132,
    memory_bytes=150_109_880_320,
    free_bytes=149_557_477_376,
    l2_bytes=62_914_560,
    triton="compiled",
)
TWO_H200 = replace(H200, gpu_count=2)
A100 = replace(H200, name="NVIDIA A100-SXM4-40GB", compute_capability=(8, 0), sm_count=108, l2_bytes=40 * 2**20)
L40S = replace(H200, name="NVIDIA L40S", compute_capability=(8, 9), sm_count=142)
B200 = replace(H200, name="NVIDIA B200", compute_capability=(10, 0), sm_count=148)
CPU = DeviceFacts(kind="cpu", name="a CPU", torch_device="cpu", triton="interpreted")


def planned(profile, device):
    return [case for family in FAMILIES for case in family.cases(profile, device)]


def applicable(profile, device):
    return [case for case in planned(profile, device) if not case.not_applicable]


@pytest.mark.parametrize("device", [H200, TWO_H200, A100, CPU], ids=["h200", "two h200", "a100", "cpu"])
@pytest.mark.parametrize("profile", PROFILES)
def test_keys_are_unique(profile, device):
    counted = Counter(case.key for case in planned(profile, device))
    assert [key for key, count in counted.items() if count > 1] == []


@pytest.mark.parametrize("device", [H200, TWO_H200, CPU], ids=["h200", "two h200", "cpu"])
def test_profiles_are_nested(device):
    keys = [{case.key for case in planned(profile, device)} for profile in PROFILES]
    assert keys[0] <= keys[1] <= keys[2] <= keys[3]


def test_quick_is_what_the_gate_looks_at():
    assert [case.key for case in applicable("quick", H200)] == [
        "gemm/dtype=bf16,impl=triton,k=8192,m=8192,n=8192",
        "gemm/dtype=bf16,impl=torch,k=8192,m=8192,n=8192",
        "gemm/accumulation=fast,dtype=fp8_e4m3,impl=triton,k=8192,m=8192,n=8192",
        "gemm/accumulation=fast,dtype=fp8_e4m3,impl=torch,k=8192,m=8192,n=8192",
        "copy/bytes=4294967296,impl=torch",
        "copy/bytes=4294967296,impl=triton",
        "read/bytes=4294967296,impl=triton",
        "triad/bytes=4294967296,impl=triton",
        "memcpy/bytes=536870912,direction=h2d",
        "memcpy/bytes=536870912,direction=d2h",
        "host_call/bytes=4,function=memcpy",
        "launch/mode=eager,until=queued",
        "launch/mode=eager,until=stream",
        "launch/mode=eager,until=event",
        "launch/mode=graph,until=stream",
        "graph_instantiate/nodes=100",
        "graph_replay/nodes=100",
        "synchronize/of=stream",
        "synchronize/of=event",
        "malloc/bytes=67108864,pool=none",
        "malloc/bytes=67108864,pool=stream",
        "free/bytes=67108864,pool=none",
        "free/bytes=67108864,pool=stream",
        "host_register/bytes=4194304",
        "host_unregister/bytes=4194304",
        "module_load/until=loaded",
        "module_load/until=first_launch",
        "small_copy/bytes=4,direction=h2d",
        "small_copy/bytes=4,direction=d2h",
        "small_copy/bytes=4096,direction=h2d",
        "small_copy/bytes=4096,direction=d2h",
        "small_copy/bytes=65536,direction=h2d",
        "small_copy/bytes=65536,direction=d2h",
        "zero_copy_load/bytes=2097152",
        "zero_copy_read/bytes=67108864",
        "overlap/bytes=4194304,compute=none,direction=h2d",
        "overlap/bytes=4194304,compute=fma,direction=h2d",
        "context/process=running",
    ]


def test_standard_has_forty_two_cases_on_one_gpu_beside_those_of_the_driver():
    declared = [case for case in applicable("standard", H200) if case not in driver_cases("standard", H200)]
    assert len(declared) == 42


def driver_cases(profile, device):
    return list(bench_driver.cases(profile, device))


def test_every_case_of_the_driver_is_a_latency_but_the_rate_of_zero_copy():
    kinds = {case.op: case.kind for case in driver_cases("full", H200)}
    assert [op for op, kind in kinds.items() if kind != "latency"] == ["zero_copy_read"]


def test_without_a_gpu_the_driver_cannot_be_timed_and_what_python_adds_can():
    cases = driver_cases("full", CPU)
    assert [case.op for case in cases if not case.not_applicable] == ["host_call"]
    assert {case.not_applicable for case in cases[1:]} == {"there is no NVIDIA driver to time"}
    assert [case.key for case in cases] == [case.key for case in driver_cases("full", H200)]


def test_each_case_of_the_driver_has_enough_calls_for_a_99th_percentile_but_contexts():
    calls = {case.op: bench_driver.shots_of(case) for case in driver_cases("full", H200)}
    assert {op for op, shots in calls.items() if shots < 200} == {"context"}


def test_every_case_of_the_driver_names_an_operation(monkeypatch):
    """Which operation it is, is all that this machine can tell; tests/kernels/test_driver.py runs them."""
    made = []
    for name in ("launch", "graph_instantiate", "graph_replay", "synchronize", "malloc", "free", "host_register",
                 "module_load", "copy", "zero_copy_chase", "zero_copy_read", "overlap", "context"):  # fmt: skip
        monkeypatch.setattr(bench_driver.driver, name, lambda *_, name=name, **__: made.append(name))
    cases = [case for case in driver_cases("full", H200) if case.params.get("process") != "fresh"][1:]
    for case in cases:
        bench_driver.operation_of(case, H200, place=None)
    assert len(made) == len(cases)
    assert len(set(made)) == 13


def test_host_memory_of_the_driver_has_a_side():
    far = replace(H200, numa="any")
    assert {c.op for c in driver_cases("quick", far) if "numa=any" in c.key} == {
        "host_register", "host_unregister", "small_copy", "zero_copy_load", "zero_copy_read", "overlap",
    }  # fmt: skip


def test_collectives_need_two_gpus_and_say_so():
    reasons = {case.not_applicable for case in bench_collectives.cases("standard", H200)}
    assert reasons == {"needs two GPUs, this machine has 1"}
    assert not any(case.not_applicable for case in bench_collectives.cases("standard", TWO_H200))


@pytest.mark.parametrize(("profile", "factor"), [("standard", 64), ("full", 8)])
def test_all_reduce_goes_from_8_bytes_to_8_gib(profile, factor):
    planned = {case.key for case in bench_collectives.cases(profile, TWO_H200)}
    sizes = list(bench_collectives.sizes(8 * 2**30, factor))
    assert {f"all_reduce/bytes={size},dtype=fp32,impl=nccl,ranks=2" for size in sizes} <= planned
    assert sizes[0] == 8
    assert sizes[1] == 8 * factor
    assert sizes[-1] == 8 * 2**30


@pytest.mark.parametrize(("ranks", "bus_share"), [(2, 1.0), (4, 1.5), (8, 1.75)])
def test_bus_bytes_are_two_times_n_minus_one_over_n(ranks, bus_share):
    case = bench_collectives.case_of("all_reduce", 800, "fp32", replace(H200, gpu_count=ranks))
    assert case.work[0].amount == bus_share * 800
    assert case.work[1].amount == 800


@pytest.mark.parametrize("op", bench_collectives.BUS_FACTORS)
@pytest.mark.parametrize("ranks", [2, 3, 8])
def test_bus_factors_are_those_by_which_nccl_tests_recordings_are_read(op, ranks):
    theirs = nccl_tests.FACTORS[{"all_to_all": "alltoall", "send_recv": "sendrecv"}.get(op, op)]
    assert bench_collectives.BUS_FACTORS[op](ranks) == theirs(ranks)


def test_standard_tries_every_operation_and_launch_mode_within_a_minute():
    cases = [case for case in bench_collectives.few_cases(TWO_H200) if not case.not_applicable]
    assert {case.op for case in cases} == {*bench_collectives.BUS_FACTORS, "barrier"}
    assert {case.params["launch"] for case in cases} == {"queued", "loop", "graph", "eager"}
    assert len(cases) * 4 <= 60  # seconds a case: settling, window, checks


def test_parameters_at_their_defaults_leave_the_keys_of_all_reduce_as_they_were():
    case = bench_collectives.case_of("all_reduce", 8, "fp32", TWO_H200)
    assert case.key == "all_reduce/bytes=8,dtype=fp32,impl=nccl,ranks=2"


def test_sizes_are_rounded_to_whole_parts_of_three_ranks():
    three = replace(H200, gpu_count=3)
    of_parts = [bench_collectives.case_of("all_gather", size, "fp32", three).params["bytes"] for size in (8, 64)]
    assert of_parts == [12, 60]
    assert bench_collectives.case_of("all_reduce", 64, "fp32", three).params["bytes"] == 64


@pytest.mark.parametrize(
    ("op", "dtype", "launch", "device", "told"),
    [
        ("all_reduce", "fp32", "graph", CPU, "CUDA graphs need a GPU"),
        ("all_gather", "fp8_e5m2", "queued", CPU, "gloo has no 8-bit floats"),
        ("reduce", "fp8_e4m3", "queued", replace(A100, gpu_count=2), "from compute capability 9.0 on"),
        ("all_gather", "fp8_e4m3", "queued", replace(A100, gpu_count=2), ""),
        ("all_reduce", "fp8_e5m2", "queued", replace(H200, gpu_count=9), "a sum over 9 ranks is not exact in fp8_e5m2"),
        ("all_reduce", "fp8_e5m2", "queued", TWO_H200, ""),
    ],
)
def test_what_backend_or_type_cannot_do_is_said(op, dtype, launch, device, told):
    reason = bench_collectives.case_of(op, 64, dtype, device, launch=launch).not_applicable
    assert told in reason
    assert bool(told) == bool(reason)


@pytest.mark.parametrize("impl", ["symm_mem", "triton"])
def test_symmetric_memory_is_for_gpus_and_claims_no_share_of_the_link(impl):
    case = bench_collectives.symmetric_case(impl, "one_shot", 8, "bf16", TWO_H200)
    key = f"algorithm=one_shot,buffers=out_of_place,bytes=8,dtype=bf16,impl={impl},launch=graph,ranks=2"
    assert case.key == f"all_reduce/{key}"
    assert case.work[0].no_peak == "the bus bytes are a ring's, one-shot moves its own"
    on_cpu = bench_collectives.symmetric_case(impl, "two_shot", 8, "bf16", CPU)
    assert on_cpu.not_applicable == "symmetric memory is that of NVIDIA GPUs"


def test_kernels_of_our_own_over_symmetric_memory_need_triton_and_two_gpus():
    without = [
        bench_collectives.symmetric_case(impl, "one_shot", 8, "bf16", replace(TWO_H200, triton="absent"))
        for impl in ("symm_mem", "triton")
    ]
    assert [case.not_applicable for case in without] == ["", "Triton is not installed"]
    alone = bench_collectives.symmetric_case("triton", "one_shot", 8, "bf16", H200)
    assert alone.not_applicable == "needs two GPUs, this machine has 1"


def test_ours_and_torchs_are_measured_at_the_same_sizes_as_nccl_in_a_graph():
    def replayed(impl):
        cases = (c for c in bench_collectives.cases("full", TWO_H200) if c.params.get("impl") == impl)
        found = {(c.params["dtype"], c.params["bytes"]) for c in cases if c.params["launch"] == "graph"}
        return {(dtype, size) for dtype, size in found if dtype in ("bf16", "fp32")}

    assert replayed("triton") == replayed("symm_mem") == replayed("nccl") != set()


def test_each_symmetric_case_names_the_body_that_runs_it():
    asked = []
    for case in bench_collectives.few_symmetric_cases(TWO_H200):
        bench_collectives.bench_collectives(case, TWO_H200, lambda body, **how: asked.append((body, how)))
    assert {body for body, _ in asked} == {"kernels.collectives_triton.all_reduce"}
    assert asked[0][1] == {"size_bytes": 8, "dtype": "fp32", "algorithm": "one_shot"}


def test_no_rank_on_a_cpu_is_asked_for_more_than_a_mebibyte():
    """Forty sums of 16 MiB, each compared, took two ranks of a busy CPU longer than they are waited for."""
    cases = [case for case in bench_collectives.cases("full", CPU) if not case.not_applicable]
    assert max(case.params.get("bytes", 0) for case in cases) == 2**20


def test_every_operation_is_checked_in_every_type_and_timed_where_that_can_differ():
    cases = [case for case in bench_collectives.cases("full", TWO_H200) if case.params["impl"] == "nccl"]
    types = {"fp32", "bf16", *bench_collectives.OTHER_DTYPES}
    for op in bench_collectives.BUS_FACTORS:
        of_op = [case for case in cases if case.op == op]
        assert {case.params["dtype"] for case in of_op} == types
        places = set(bench_collectives.PLACES.get(op, ("in_place",)))
        assert {case.params["buffers"] for case in of_op if not case.checked_only} == places
        assert {8, 2**33} <= {case.params["bytes"] for case in of_op if not case.checked_only}


def test_settings_of_nccl_are_swept_in_full_alone_and_follow_one_another():
    assert [list(bench_nccl_sweep.cases(profile, TWO_H200)) for profile in ("smoke", "quick", "standard")] == [
        [],
        [],
        [],
    ]
    cases = list(bench_nccl_sweep.cases("full", TWO_H200))
    swept = [words_of(settings_of(case)) for case in cases if case.params["bytes"] == 8]
    pairs = [f"NCCL_ALGO={a} NCCL_PROTO={p}" for a in ("Ring", "Tree") for p in ("Simple", "LL", "LL128")]
    assert swept == ["default", *pairs, "NCCL_P2P_LEVEL=LOC"]
    worlds = [words_of(settings_of(case)) for case in cases]
    assert sum(a != b for a, b in pairwise(worlds)) == len(swept) - 1
    assert {case.params["bytes"] for case in cases} == {8, 64 * 2**10, 4 * 2**20, 2**30}


def test_keys_of_the_sweep_name_what_is_set_and_leave_the_rest_out():
    keys = [case.key for case in bench_nccl_sweep.cases("full", TWO_H200) if case.params["bytes"] == 8]
    assert keys[:2] == [
        "all_reduce/bytes=8,dtype=fp32,impl=nccl,launch=graph,ranks=2,world=own",
        "all_reduce/bytes=8,dtype=fp32,impl=nccl,launch=graph,nccl_algo=Ring,nccl_proto=Simple,ranks=2,world=own",
    ]


def test_network_settings_are_swept_only_where_ranks_span_several_hosts():
    one, two = ([words_of_setting(setting) for setting in bench_nccl_sweep.settings(hosts)] for hosts in (1, 2))
    assert two[: len(one)] == one
    assert two[len(one) :] == ["NCCL_NET_GDR_LEVEL=LOC", "NCCL_NET_GDR_LEVEL=SYS", "NCCL_IB_DISABLE=1"]


def words_of_setting(setting):
    return words_of(settings_of(bench_nccl_sweep.sweep_case(8, setting, TWO_H200)))


def test_sweep_says_what_it_lacks_without_nccl_or_a_second_gpu():
    reasons = [{case.not_applicable for case in bench_nccl_sweep.cases("full", device)} for device in (CPU, H200)]
    assert reasons == [{"gloo has no such settings: they are NCCL's"}, {"needs two GPUs, this machine has 1"}]


@pytest.mark.parametrize(("ranks", "bus_share"), [(2, 1.0), (4, 1.5), (8, 1.75)])
def test_bus_bytes_of_the_sweep_are_those_of_every_all_reduce(ranks, bus_share):
    case = bench_nccl_sweep.sweep_case(800, {}, replace(H200, gpu_count=ranks))
    assert (case.work[0].amount, case.work[0].peak) == (bus_share * 800, "nvlink")


@pytest.mark.parametrize("profile", PROFILES)
@pytest.mark.parametrize("device", [TWO_H200, CPU], ids=["two h200", "cpu"])
def test_every_step_has_its_four_modes_next_to_one_another(profile, device):
    cases = list(bench_overlap.cases(profile, device))
    steps = [cases[first : first + 4] for first in range(0, len(cases), 4)]
    for number, step in enumerate(steps):
        modes = [case.params["mode"] for case in step]
        assert modes == ["compute", "overlap", "serial", "communicate"][:: 1 if number % 2 == 0 else -1]
        assert len({case.key.replace(f"mode={case.params['mode']},", "") for case in step}) == 1


def test_steps_are_for_gpus_not_in_quick_and_twice_each_in_standard():
    counts = {
        profile: Counter(case.op for case in bench_overlap.cases(profile, TWO_H200) if case.params["mode"] == "overlap")
        for profile in PROFILES
    }
    assert counts == {
        "smoke": {},
        "quick": {},
        "standard": {"gemm_all_reduce": 2, "gemm_all_to_all": 2},
        "full": {"gemm_all_reduce": 6, "gemm_all_to_all": 8},
    }
    graphs = [case for case in bench_overlap.cases("full", TWO_H200) if case.params["launch"] == "graph"]
    assert {case.op for case in graphs} == {"gemm_all_reduce", "gemm_all_to_all"}
    assert all("launch=graph," in case.key for case in graphs)


def test_collective_of_a_step_moves_as_much_as_its_gemm_makes():
    case = bench_overlap.case_of(bench_overlap.DENSE[0], "overlap", TWO_H200)
    assert case.key == (
        "gemm_all_reduce/bytes=134217728,dtype=bf16,impl=nccl,k=1024,m=8192,mode=overlap,n=8192,ranks=2"
    )
    odd = bench_overlap.case_of(bench_overlap.Shape("all_to_all", 5, 3, 7), "serial", replace(H200, gpu_count=4))
    assert odd.params["bytes"] == 24  # of 30: three whole parts of 2 B for each of 4 ranks


@pytest.mark.parametrize("ranks", [2, 8])
def test_works_of_a_step_are_what_its_figures_are_made_of(ranks):
    """FLOP are those of all GPUs, because watts are; figures are of one GPU and the bytes of its link."""
    device = replace(H200, gpu_count=ranks)
    shape = bench_overlap.MIXTURES[0]
    cases = {mode: bench_overlap.case_of(shape, mode, device) for mode in overlap.MODES}
    flop, bus_bytes = overlap.work_of(cases["overlap"])
    assert [(w.unit, w.amount) for w in cases["overlap"].work] == [("FLOP", ranks * flop), ("B", bus_bytes)]
    assert cases["serial"].work == cases["overlap"].work
    assert cases["compute"].work == cases["overlap"].work[:1]
    assert cases["communicate"].work == cases["overlap"].work[1:]


def test_a_step_needs_two_gpus_with_bf16_and_says_so():
    told = {
        (device.name, device.gpu_count): {case.not_applicable for case in bench_overlap.cases("standard", device)}
        for device in (H200, replace(H200, name="NVIDIA Tesla V100", compute_capability=(7, 0), gpu_count=2))
    }
    assert told == {
        ("NVIDIA H200", 1): {"needs two GPUs, this machine has 1"},
        ("NVIDIA Tesla V100", 2): {"bf16 needs compute capability 8.0, NVIDIA Tesla V100 lacks it"},
    }


def test_largest_step_fits_into_an_h200():
    assert max(case.memory_bytes for case in bench_overlap.cases("full", TWO_H200)) < H200.memory_bytes / 4


TWO_HOSTS = replace(H200, gpu_count=8, party=Party(hosts=2, ranks=16, network_bytes_per_s=400e9))


def test_ranks_of_several_hosts_are_in_the_key_and_held_against_a_hosts_network():
    case = bench_collectives.case_of("all_reduce", 8, "fp32", TWO_HOSTS)
    assert case.key == "all_reduce/bytes=8,dtype=fp32,hosts=2,impl=nccl,ranks=16"
    assert (case.work[0].amount, case.work[0].peak) == (15.0, "network")
    assert bench_collectives.barrier_case(TWO_HOSTS).key == "barrier/hosts=2,impl=nccl,ranks=16"
    between_pairs = bench_collectives.case_of("all_to_all", 1024, "fp32", TWO_HOSTS, buffers="out_of_place")
    assert (between_pairs.work[0].peak, between_pairs.work[0].no_peak) == (
        None,
        "NCCL does not tell how it sends between pairs",
    )


def test_steps_under_torchrun_run_on_its_ranks_and_say_its_hosts():
    """They had the GPUs of one host in the key and in the bus bytes, whatever torchrun had started."""
    step = next(case for case in bench_overlap.cases("standard", TWO_HOSTS) if case.params["mode"] == "communicate")
    assert step.key == (
        "gemm_all_reduce/bytes=134217728,dtype=bf16,hosts=2,impl=nccl,k=2048,m=8192,mode=communicate,n=8192,ranks=16"
    )
    assert step.work[0].amount == 2 * 15 / 16 * 134217728
    on_a_cpu = next(bench_overlap.cases("standard", replace(CPU, party=Party(hosts=1, ranks=4))))
    assert on_a_cpu.params["ranks"] == 4


def test_ranks_that_torchrun_started_on_one_host_have_the_keys_of_that_host():
    alone = replace(TWO_H200, party=Party(hosts=1, ranks=2))
    for profile in ("standard", "full"):
        assert [case.key for case in bench_collectives.cases(profile, alone)] == [
            case.key for case in bench_collectives.cases(profile, TWO_H200)
        ]
    on_a_cpu = bench_collectives.case_of("all_reduce", 8, "fp32", replace(CPU, party=Party(hosts=1, ranks=4)))
    assert on_a_cpu.params["ranks"] == 4


def test_line_rate_that_is_unknown_is_no_peak_with_its_reason():
    silent = replace(TWO_HOSTS, party=Party(2, 16, None, "host 1: no network port here tells its speed"))
    work = bench_collectives.case_of("all_reduce", 8, "fp32", silent).work[0]
    assert (work.peak, work.no_peak) == (
        None,
        "the hosts' line rate is unknown: host 1: no network port here tells its speed",
    )


def test_symmetric_memory_ends_with_the_host():
    cases = [
        bench_collectives.symmetric_case(impl, "one_shot", 8, "bf16", TWO_HOSTS) for impl in ("symm_mem", "triton")
    ]
    assert [case.not_applicable for case in cases] == ["symmetric memory ends with the host"] * 2


def test_a_card_without_fp8_says_so_and_does_the_rest():
    cases = list(bench_gemm.cases("standard", A100))
    lacking = {case.not_applicable for case in cases if case.params["dtype"] == "fp8_e4m3"}
    assert lacking == {"fp8_e4m3 needs compute capability 8.9, NVIDIA A100-SXM4-40GB lacks it"}
    assert not any(case.not_applicable for case in cases if case.params["dtype"] == "bf16")


@pytest.mark.parametrize("profile", PROFILES)
def test_l2_serves_at_most_two_percent_of_every_case_that_memory_bounds(profile):
    works = [c for c in planned(profile, H200) if c.work]
    bounded = [c for c in works if c.work[0].peak == "memory" or c.params.get("m", 1000) <= 128]
    assert all(H200.l2_bytes / case.footprint_bytes <= 0.02 for case in bounded)


@pytest.mark.parametrize("profile", PROFILES)
def test_every_gemm_rotates_through_twenty_times_l2(profile):
    assert all(c.footprint_bytes >= 20 * H200.l2_bytes for c in planned(profile, H200) if c.op == "gemm")


def test_gemm_counts_two_flop_a_product_and_each_byte_once():
    case = bench_gemm.gemm_case("bf16", "", "torch", (2, 3, 5), H200)
    assert case.work[0].amount == 2 * 2 * 3 * 5
    assert case.work[1].amount == 2 * (2 * 5 + 3 * 5 + 2 * 3)


def test_new_parameters_of_gemm_leave_old_keys_as_they_were():
    plain = bench_gemm.gemm_case("fp8_e4m3", "fast", "torch", (16, 8192, 8192), H200)
    assert plain.key == "gemm/accumulation=fast,dtype=fp8_e4m3,impl=torch,k=8192,m=16,n=8192"
    told = bench_gemm.gemm_case("bf16", "", "triton", (8, 8, 8), H200, layout="nt", output="fp32")
    assert told.key == "gemm/dtype=bf16,impl=triton,k=8,layout=nt,m=8,n=8,output=fp32"


@pytest.mark.parametrize(
    ("case", "device", "told"),
    [
        ({"dtype": "fp8_e4m3", "accumulation": "fast", "layout": "nn"}, H200, "layout tn"),
        ({"dtype": "fp8_e4m3", "accumulation": "slow", "scaling": "block"}, B200, "compute capability 9.0 only"),
        ({"dtype": "fp8_e4m3", "accumulation": "slow", "scaling": "block"}, H200, ""),
        ({"dtype": "fp8_e4m3", "accumulation": "fast", "scaling": "row"}, B200, ""),
        ({"dtype": "fp8_e4m3", "accumulation": "fast", "scaling": "row"}, L40S, "needs compute capability 9.0"),
        ({"dtype": "fp8_e5m2", "accumulation": "fast", "b_dtype": "fp8_e4m3"}, A100, "needs compute capability 8.9"),
        ({"dtype": "bf16", "accumulation": "", "layout": "nt"}, A100, ""),
    ],
)
def test_what_tensor_cores_or_torch_cannot_multiply_is_said(case, device, told, monkeypatch):
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    reason = bench_gemm.gemm_case(impl="torch", shape=(8, 8, 8), device=device, **case).not_applicable
    assert told in reason
    assert bool(told) == bool(reason)


@pytest.mark.parametrize(("cuda", "told"), [("12.8", "12.8"), (None, "None"), ("12.9", ""), ("13.0", "")])
def test_a_torch_of_an_older_cuda_scales_no_blocks(cuda, told, monkeypatch):
    """The GEMM of block scales failed there instead of being told, which the steps in fp8 had got right."""
    monkeypatch.setattr(torch.version, "cuda", cuda)
    block = {"dtype": "fp8_e4m3", "accumulation": "slow", "scaling": "block"}
    reason = bench_gemm.gemm_case(impl="torch", shape=(8, 8, 8), device=H200, **block).not_applicable
    assert reason == (f"block scaling needs CUDA 12.9, this torch was built with {told}" if told else "")


def test_decoding_is_bound_by_memory_and_declares_both_works():
    """Llama 3.1 70B, 1 to 128 tokens: at the data sheet's 989 TFLOP/s and 4.8 TB/s, bytes take longer in each."""
    planned = list(bench_decoding.cases("full", H200))
    assert {(c.params["n"], c.params["k"]) for c in planned} == {(8192, 8192), (28672, 8192), (8192, 28672)}
    for case in planned:
        flop, moved = (work.amount for work in case.work)
        assert moved / 4.8e12 > flop / (1979e12 if case.params["dtype"] == "fp8_e4m3" else 989e12)


def test_memory_counts_read_and_written_bytes():
    amounts = {op: bench_memory.stream_case(op, "torch", 100, H200).work[0].amount for op in bench_memory.TRAFFIC}
    assert amounts == {"copy": 200, "read": 100, "write": 100, "scale": 200, "add": 300, "triad": 300}


def test_host_memory_on_another_numa_side_has_a_key_of_its_own():
    near, far = (bench_memory.memcpy_case("h2d", "pinned", replace(H200, numa=side)) for side in ("local", "any"))
    assert near.key == "memcpy/bytes=536870912,direction=h2d"
    assert far.key == "memcpy/bytes=536870912,direction=h2d,numa=any"


def test_a_cpu_is_never_asked_for_gigabytes():
    assert all(case.params.get("bytes", 0) <= 16 * 2**20 for case in applicable("full", CPU))


def test_triton_in_its_interpreter_is_checked_and_not_timed():
    cases = [case for case in applicable("standard", CPU) if case.params.get("impl") == "triton"]
    assert cases
    assert {case.checked_only for case in cases} == {"Triton runs in its interpreter: right or wrong, but not timed"}
