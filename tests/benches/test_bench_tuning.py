"""The family that tries rows of the kernels' tables: what it plans, and that both rows of each case are right."""

from collections import Counter
from dataclasses import replace
from fnmatch import fnmatchcase

import pytest

from benches import bench_memory, bench_tuning
from benches.bench_gemm import DTYPES
from harness.probe.measure import CheckFailedError
from kernels import gemm_promoted, gemm_skinny, memory
from kernels.gemm_configs import Config
from tests.benches.low_precision import checked
from tests.benches.test_cases import A100, B200, CPU, H200

FAKE = replace(H200, torch_device="cpu")
CASES = list(bench_tuning.cases("standard", H200))
# What a case of kernels_ab takes beside its blocks: buffers, and both checks of both sides.
CHECKS_S, SHORT_BLOCKS_S = 6.0, 24 * 0.25


def test_it_must_be_asked_for():
    assert bench_tuning.ASKED


def test_keys_name_both_rows_whole_so_that_they_outlive_a_change_of_the_table():
    assert CASES[0].key == (
        "gemm/against=block_m.128+block_n.256+block_k.64+stages.3+warps.8+group_m.16+split_epilogue.true,"
        "config=block_m.128+block_n.256+block_k.64+stages.2+warps.8+group_m.16+split_epilogue.true,"
        "dtype=bf16,impl=triton,k=8192,m=8192,n=8192,protocol=short_blocks"
    )
    assert max(Counter(case.key for case in CASES).values()) == 1


@pytest.mark.parametrize("device", [H200, A100, B200], ids=lambda device: device.name)
def test_every_row_differs_from_the_tables_and_is_found_by_its_name(device):
    for dtype, accumulation, shape in bench_tuning.products():
        if device is A100 and dtype == "fp8_e4m3":
            continue
        row = bench_tuning.gemm_row(dtype, accumulation, shape, device)
        others = bench_tuning.neighbours(row, bench_tuning.CHANGES[type(row)])
        assert len({bench_tuning.name_of(other) for other in (row, *others)}) == len(others) + 1 >= 9
        assert all(bench_tuning.named(bench_tuning.name_of(other), row) == other for other in others)


def test_tables_rows_are_those_that_the_kernels_choose():
    def chosen(m, dtype, accumulation=""):
        return bench_tuning.gemm_row(dtype, accumulation, (m, 8192, 8192), H200)

    assert chosen(8192, "bf16") == Config(128, 256, 64, stages=3, warps=8, group_m=16, split_epilogue=True)
    assert chosen(8192, "fp8_e4m3", "slow") == gemm_promoted.rows_for((9, 0))[0]
    assert chosen(64, "bf16") == gemm_skinny.SkinnyConfig(128, 64, stages=4, warps=4)
    assert bench_tuning.memory_row("read", B200) == memory.CONFIGS[memory.HOPPER, "read"]


def test_what_an_operation_does_not_do_is_not_tried():
    rows = {case.params["config"] for case in CASES if case.op == "read"}
    assert rows
    assert not [row for row in rows if "store" in row or "programs_per_sm" not in row]
    assert not [case for case in CASES if case.op == "write" and "load" in case.params["config"]]
    pointers = [case.params["config"] for case in bench_tuning.cases("quick", A100) if case.params.get("m") == 8192]
    assert not [row for row in pointers if "split_epilogue" in row or "flatten" in row]


@pytest.mark.parametrize(
    "pattern",
    [
        *(f"gemm/*dtype={dtype}*m={m},*" for dtype in ("bf16", "fp8_e4m3") for m in (1, 16, 64, 128, 8192)),
        *(f"{op}/*" for op in bench_memory.TRAFFIC),
    ],
)
def test_no_part_is_longer_than_nine_minutes(pattern):
    part = [case for case in CASES if fnmatchcase(case.key, pattern) and not case.not_applicable]
    assert part
    assert len(part) * (CHECKS_S + SHORT_BLOCKS_S) <= 9 * 60


def test_full_has_the_blocks_at_equilibrium_too():
    counted = Counter(case.params["protocol"] for case in bench_tuning.cases("full", H200))
    assert counted == {"short_blocks": len(CASES), "abba": len(CASES)}


def test_rows_that_shared_memory_cannot_hold_and_other_devices_are_told():
    too_large = next(case for case in CASES if "stages.5" in case.params["config"] and case.op == "gemm")
    assert too_large.not_applicable == "needs 278664 bytes of shared memory, the device has 232448"
    reasons = {case.not_applicable for case in bench_tuning.cases("full", CPU)}
    assert reasons == {"there is no compiled Triton kernel whose rows could be tried"}
    lacking = {c.not_applicable for c in bench_tuning.cases("full", A100) if c.params.get("dtype") == "fp8_e4m3"}
    assert lacking == {"fp8_e4m3 needs compute capability 8.9, NVIDIA A100-SXM4-40GB lacks it"}


def test_weights_of_few_rows_rotate_so_that_l2_serves_next_to_nothing():
    skinny = [case for case in CASES if case.params.get("m", 8192) <= 128]
    assert min(case.footprint_bytes for case in skinny) >= 64 * H200.l2_bytes
    assert max(case.memory_bytes for case in CASES) < H200.free_bytes / 4


def small(case):
    """The same case at a size that the interpreter does at once."""
    if case.op != "gemm":
        return replace(case, params={**case.params, "bytes": 4 * 4096})
    m, n, k = min(32, case.params["m"]), 64, 64
    itemsize = DTYPES[case.params["dtype"]].itemsize
    moved = (m + n) * k * itemsize + m * n * 2
    work = (case.work[0], replace(case.work[1], amount=moved))
    return replace(case, params={**case.params, "m": m, "n": n, "k": k}, work=work, footprint_bytes=2 * moved)


def one_of_each():
    """For each operation, type and kind of row the first case that fits."""
    firsts = {}
    for case in CASES:
        if not case.not_applicable:
            firsts.setdefault((case.op, *(case.params.get(name) for name in ("dtype", "accumulation", "m"))), case)
    return list(firsts.values())


@pytest.mark.parametrize("case", one_of_each(), ids=lambda case: case.key)
def test_both_rows_are_right_before_and_after(case, monkeypatch):
    if case.op == "gemm":  # the small product's own row may be another
        shape = tuple(case.params[name] for name in "mnk")
        row = bench_tuning.gemm_row(case.params["dtype"], case.params.get("accumulation", ""), shape, H200)
        monkeypatch.setattr(bench_tuning, "gemm_row", lambda *_: row)
    checks, _ = checked(bench_tuning.bench_tuning, small(case), FAKE)
    assert [check.passed for check in checks] == [True, True]


@pytest.mark.parametrize("spoilt", [0, 1], ids=["the row that is tried", "the table's"])
def test_a_row_that_is_wrong_is_not_timed(spoilt, monkeypatch):
    case = small(next(case for case in CASES if case.op == "copy"))
    plan, planned = memory.plan_copy, []

    def spoil(*arrays, config):
        launch = plan(*arrays, config=config)
        planned.append(config)
        is_wrong = len(planned) == spoilt + 1

        def wrong():
            launch()
            arrays[1][-1] += is_wrong

        return wrong

    monkeypatch.setattr(memory, "plan_copy", spoil)
    with pytest.raises(CheckFailedError):
        checked(bench_tuning.bench_tuning, case, FAKE)


def test_no_row_gives_a_load_or_a_store_two_hints():
    """ptxas takes either a cache operator or an eviction policy: such rows did not compile."""
    for op in bench_memory.TRAFFIC:
        for row in bench_tuning.neighbours(bench_tuning.memory_row(op, H200), bench_tuning.STREAMS):
            assert not (row.load_cache and row.load_policy), (op, row)
            assert not (row.store_cache and row.store_policy), (op, row)
