"""Every configuration compiles for its target to what its comments promise; needs the compiler, not a GPU."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SCRIPT = Path(__file__).with_name("compile_kernels.py")


def compile_for(capability, *options):
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    environment["PYTHONPATH"] = os.pathsep.join([*filter(None, [os.environ.get("PYTHONPATH")]), str(ROOT)])
    command = [sys.executable, str(SCRIPT), str(capability), *options]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


@pytest.fixture(scope="module")
def compiled():
    return compile_for(90)


@pytest.fixture(scope="module")
def compiled_gemms():
    """By target: A100, Ada, B200, GeForce Blackwell. None of these was run on the device."""
    return {capability: compile_for(capability, "--only-gemm") for capability in (80, 89, 100, 120)}


def of(lines, *kernels):
    chosen = [line for line in lines if line["kernel"] in kernels]
    assert chosen
    return chosen


def test_no_kernel_spills_registers(compiled):
    assert [line for line in compiled if line["stack_bytes"] or line["local_bytes"]] == []


def test_no_load_clears_its_own_address(compiled):
    """A chase whose next address is what it loads did: the compiler gave both one register."""
    assert [line for line in compiled if line["lost_addresses"]] == []


def test_hopper_gemms_use_wgmma_and_the_tensor_memory_accelerator(compiled):
    for line in of(compiled, "descriptor_kernel", "promoted_kernel", "promoted_hopper_kernel", "skinny_kernel"):
        assert line["counts"]["wgmma.mma_async"] and line["counts"]["cp.async.bulk.tensor"], line
        assert not line["counts"]["mma.sync"], line


def test_promoted_sums_on_hopper_keep_a_product_under_way_while_they_add_another(compiled):
    """Both groups of warps, three products of a turn of four each. ptxas says so where it waits after each instead."""
    lines = of(compiled, "promoted_hopper_kernel")
    assert {(line["scaling"], line["types"][1]) for line in lines} >= {
        *((scaling, "float8_e4m3fn") for scaling in ("tensor", "row", "block")),
        ("block", "float8_e5m2"),
    }
    assert [line for line in lines if line["waits_with_one_under_way"] != 6 or line["is_serialised"]] == []


def test_ampere_and_ada_gemms_are_pipelined_and_use_tensor_cores(compiled_gemms):
    for capability in (80, 89):
        for line in of(compiled_gemms[capability], "pointer_kernel", "skinny_kernel"):
            assert line["counts"]["cp.async.c"], line
            assert line["counts"]["mma.sync"] or line["kind"] == "fp32", line


def test_blackwell_gemms_sum_in_tensor_memory(compiled_gemms):
    for line in of(compiled_gemms[100], "descriptor_kernel", "promoted_kernel", "skinny_kernel"):
        assert line["counts"]["tcgen05.mma"] and line["counts"]["cp.async.bulk.tensor"], line


def test_geforce_blackwell_loads_by_descriptor_and_multiplies_as_ampere_does(compiled_gemms):
    for line in of(compiled_gemms[120], "descriptor_kernel"):
        assert line["counts"]["mma.sync"] and line["counts"]["cp.async.bulk.tensor"], line


def test_fp8_is_compiled_from_ada_on(compiled_gemms):
    kinds = {capability: {line["kind"] for line in lines} for capability, lines in compiled_gemms.items()}
    assert {capability for capability, seen in kinds.items() if {"fp8", "fp8_mixed"} <= seen} == {89, 100, 120}


def test_gemms_need_no_more_shared_memory_than_their_configuration_promises(compiled, compiled_gemms):
    lines = [line for some in (compiled, *compiled_gemms.values()) for line in some if "promised_shared_bytes" in line]
    assert [line for line in lines if line["shared_bytes"] > line["promised_shared_bytes"]] == []
    hopper = of(compiled, "descriptor_kernel", "promoted_kernel", "promoted_hopper_kernel", "skinny_kernel")
    assert [line for line in hopper if line["promised_shared_bytes"] > line["shared_bytes"] + 128] == []


def test_gemms_of_one_row_and_of_one_element_compile():
    """A skinny GEMM of one row with its sum split did not: Triton had made a constant of m, which has no `.to`."""
    lines = compile_for(90, "--ones")
    assert {(line["kernel"], tuple(line["ones"])) for line in lines if line["ones"] == ["m"]} == {
        ("skinny_kernel", ("m",)),
        ("pointer_kernel", ("m",)),
    }
    assert {line["kernel"] for line in lines if len(line["ones"]) > 1} == {"skinny_kernel", "pointer_kernel"}


def test_memory_kernels_move_vectors(compiled):
    """16 bytes a thread and access."""
    lines = [line for line in compiled if line["kernel"] == "stream_kernel"]
    assert {line["op"] for line in lines} == {"copy", "write", "scale", "add", "triad"}
    assert [line for line in lines if not line["counts"][".v4.b32"]] == []


def test_push_moves_each_line_once_in_one_access_of_two_whole_halves(compiled):
    """A narrower access could be seen in part: data of one turn beside the number of another."""
    lines = [line for line in compiled if line["kernel"] == "push_kernel"]
    assert {line["ranks"] for line in lines} == {2, 8}
    for line in lines:
        assert line["counts"]["st.relaxed.sys.global.v2.b64"] == line["ranks"] - 1, line
        assert line["counts"]["ld.relaxed.sys.global.v2.b64"] == line["ranks"] - 1, line


def test_kernels_that_meet_do_so_twice_and_move_16_bytes_a_thread(compiled):
    lines = [line for line in compiled if line["kernel"] in ("pull_kernel", "share_kernel")]
    assert lines
    for line in lines:
        assert line["counts"]["st.release.sys"] == line["counts"]["ld.acquire.sys"] == 2, line
        assert line["counts"][".v4.b32"] >= line["ranks"] + 1, line


def test_kernels_of_the_driver_family_end_with_two_pointers_to_scratch(compiled):
    """They are launched without Triton's launcher: a parameter more or fewer would be read from somewhere else."""
    lines = [line for line in compiled if "arguments" in line]
    assert {line["kernel"] for line in lines} == {"mark_kernel", "chase_kernel", "sum_kernel", "busy_kernel"}
    assert [line for line in lines if line["parameters"] != line["arguments"] + 2] == []


def test_loads_of_a_chain_are_not_cached_and_busy_work_is_arithmetic(compiled):
    counts = {line["kernel"]: line["counts"] for line in compiled if "arguments" in line}
    assert counts["chase_kernel"]["ld.volatile"] == 1
    assert counts["busy_kernel"]["fma.rn"] == 4
    assert counts["sum_kernel"]["ld.global.v4"] == 8


def test_kernels_between_gpus_move_16_bytes_a_thread_and_loads_of_a_chain_are_not_cached(compiled):
    counts = {line["kernel"]: line["counts"] for line in compiled if line["kernel"].startswith("peers.")}
    for name in ("copy_kernel", "store_kernel"):
        assert counts[f"peers.{name}"][".v4.b32"] >= 2, name
    assert counts["peers.load_kernel"]["cp.async.c"] >= 2
    assert counts["peers.chase_kernel"]["ld.volatile"] == 1


def test_sweep_moves_16_bytes_a_thread_through_l1(compiled):
    """cp.async of 16 bytes passes L1 by: no plateau of L1 would be seen."""
    (line,) = [line for line in compiled if line["kernel"] == "cache.sweep_kernel"]
    assert line["counts"][".v4.b32"] == 8
    assert line["counts"]["cp.async.c"] == 0


def test_chains_are_followed_through_l1_over_working_sets_and_in_l2_by_sm(compiled):
    counts = {line["kernel"]: line["counts"] for line in compiled if line["kernel"].startswith("cache.walk")}
    assert counts["cache.walk_kernel"]["ld.global.ca"] == 1
    assert counts["cache.walk_kernel"]["ld.volatile"] == 0
    assert counts["cache.walk_on_sm_kernel"]["ld.volatile"] == 1


def test_decode_keeps_three_blocks_of_a_bf16_cache_under_way_and_two_programs_fit_an_sm(compiled):
    """Keys and values of 64 by 128 in 2 B are 32 KiB a block; pages, whose number is loaded first, need more stages."""
    lines = [line for line in compiled if line["kernel"] == "decode_kernel" and line["cache"] == "bf16"]
    assert {(line["is_split"], line["paged"]) for line in lines} == {(s, p) for s in (0, 1) for p in (0, 1)}
    for line in lines:
        assert 3 * 32 * 2**10 <= line["shared_bytes"] <= 227 * 2**10 // 2, line
        assert line["counts"]["cp.async.c"] and line["counts"]["mma.sync"], line


@pytest.mark.parametrize("capability", [80, 89, 90])
def test_two_programs_of_decode_fit_an_sm_and_one_of_prefill(compiled, capability):
    """One of a bf16 cache asked for 102 KiB, of which Ada has 99: every such case failed there."""
    lines = compiled if capability == 90 else compile_for(capability, "--only-attention")
    shared_bytes = {80: 164, 89: 100, 90: 228}[capability] * 2**10  # of an SM, of which a program's 1 KiB is CUDA's
    decode = of(lines, "decode_kernel")
    assert {line["cache"] for line in decode} == ({"bf16"} if capability < 89 else {"bf16", "fp8e4nv"})
    assert [line for line in decode if 2 * (line["shared_bytes"] + 2**10) > shared_bytes] == []
    assert [line for line in decode if not line["counts"]["cp.async.c"] or line["local_bytes"]] == []
    prefill = of(lines, "prefill_kernel")
    assert [line for line in prefill if line["shared_bytes"] + 2**10 > shared_bytes or line["stack_bytes"] > 64] == []


def test_casts_to_fp8_round_once_where_nothing_makes_up_for_the_first(compiled):
    """Ada's go through a float16 that is cut and not rounded, for which `made_odd` is; no other's may."""
    assert [line for line in of(compiled, "quantise.cast_kernel") if line["counts"]["cvt.rz.f16.f32"]] == []
    ada = of(compile_for(89, "--only-casts"), "quantise.cast_kernel")
    assert [line for line in ada if not line["counts"]["cvt.rz.f16.f32"]] == []


def test_prefill_uses_wgmma_and_loads_ahead(compiled):
    lines = [line for line in compiled if line["kernel"] == "prefill_kernel"]
    assert {line["causal"] for line in lines} == {True, False}
    for line in lines:
        assert line["counts"]["wgmma.mma_async"] and line["counts"]["cp.async.c"], line
