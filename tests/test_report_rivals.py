"""The table of comparisons, and where the command prints it."""

from dataclasses import replace

import pytest

from harness import store
from harness.cli.app import exit_status
from harness.model import Case, Fact, Metric, Telemetry
from harness.report.rivals import compared, rival_lines
from tests import page_runs

RUN = page_runs.full_source().runs[0]


def record(m, rate, cycle, energy=None, protocol="abba", dtype="bf16", **others):
    """A GEMM of m rows whose ratios are these."""
    gemm = page_runs.gemm("torch")
    params = {"dtype": dtype, "impl": "triton", "against": "torch", "m": m, "n": 8192, "k": 8192, "protocol": protocol}
    params |= others
    case = Case("gemm", params, gemm.case.work)
    why = "" if rate is not None else "one clock"
    metrics = [
        Metric("rate_ratio", rate, "ratio", "higher", rate and rate - 0.002, rate and rate + 0.002, reason=why),
        Metric("cycle_ratio", cycle, "ratio", "higher"),
        Metric("energy_ratio", energy, "ratio", "lower", reason="" if energy else "no power"),
    ]
    if rate is not None:
        metrics += [
            Metric("energy_per_work", 1.023e-12, "J/FLOP", "lower"),
            Metric("against_energy_per_work", 1.049e-12, "J/FLOP", "lower"),
            Metric("against_sm_clock", 1327.0, "MHz"),
            Metric("block_spread", 0.0012, "ratio", "lower"),
        ]
    telemetry = replace(gemm.telemetry or Telemetry(), sm_clock_mhz=1332.0)
    return replace(gemm, key=case.key, family="kernels_ab", case=case, metrics=tuple(metrics), telemetry=telemetry)


def run_of(*records):
    return replace(RUN, records=records)


def test_the_table_has_ratios_joules_and_clocks_of_both_and_means_below():
    lines = rival_lines([run_of(record(8192, 1.024, 1.021, 0.975), record(16384, 1.0, 1.01, 0.99))])
    joules, clocks, spread = f"{'1.023 / 1.049':>17}", f"{'1332 / 1327':>13}", f"{'± 0.12 %':>10}"
    mean, worst = "in the geometric mean of 2 shapes, at worst", "(gemm bf16 16384x8192x8192)"
    assert lines == [
        "",
        "triton / torch in blocks A B B A, each at its own equilibrium",
        f"{'':<42}{'rate':>20}{'cycle ratio':>20}{'pJ':>17}{'MHz':>13}{'blocks':>10}",
        f"{'gemm bf16 8192x8192x8192':<42}{'1.0240 ± 0.0020':>20}{'1.0210':>20}{joules}{clocks}{spread}",
        f"{'gemm bf16 16384x8192x8192':<42}{'1.0000 ± 0.0020':>20}{'1.0100':>20}{joules}{clocks}{spread}",
        f"  gemm bf16: rate 1.0119 {mean} 1.0000 {worst}",
        f"  gemm bf16: cycle ratio 1.0155 {mean} 1.0100 {worst}",
        f"  gemm bf16: energy 0.9825 {mean} 0.9900 {worst}",
    ]


def test_scaled_products_have_names_and_means_of_their_own():
    """A row-wise 8192³ was one of "13 shapes", and the worst of them, under the name of the plain one."""
    fp8 = {"dtype": "fp8_e4m3", "accumulation": "fast"}
    shapes = [record(8192, 1.02, 1.0, **fp8), record(4096, 1.01, 1.0, **fp8)]
    lines = rival_lines([run_of(*shapes, record(8192, 1.0, 0.94, **fp8, scaling="row"))])
    assert any(line.startswith("gemm fp8_e4m3 fast row scales 8192x8192x8192 ") for line in lines)
    assert [line.partition(", at worst")[0] for line in lines if "rate" in line and "mean" in line] == [
        "  gemm fp8_e4m3 fast: rate 1.0150 in the geometric mean of 2 shapes"
    ]


def test_short_blocks_are_a_table_of_their_own_with_cycles_alone():
    lines = rival_lines([run_of(record(8192, 1.02, 1.02), record(8192, None, 1.015, protocol="short_blocks"))])
    at = lines.index("triton / torch in short blocks at one clock: cycles alone")
    assert lines[at + 2].split() == ["gemm", "bf16", "8192x8192x8192", "–", "1.0150", "–", "1332", "/", "–"]


def test_of_several_runs_the_medians_are_shown_without_one_runs_interval():
    runs = [run_of(record(8192, ratio, 1.02)) for ratio in (1.01, 1.02, 1.06)]
    (row,) = compared(runs)
    assert row.ratios["rate_ratio"] == (1.02, None, None)


def test_a_median_never_spans_two_machines():
    """Ratios of two drivers became one median that neither had."""
    old, new = ({**RUN.environment, "driver": Fact(driver)} for driver in ("570.1", "580.1"))
    runs = [replace(run_of(record(8192, ratio, 1.0)), environment=new) for ratio in (1.02, 1.04, 1.06)]
    runs.append(replace(run_of(record(8192, 2.0, 1.0)), environment=old))
    lines = rival_lines(runs)
    title = "triton / torch in blocks A B B A, each at its own equilibrium, on driver"
    ratios = [line.split()[3] for line in lines if line.startswith("gemm bf16")]
    assert [line for line in lines if line.startswith("triton")] == [f"{title} 580.1", f"{title} 570.1"]
    assert ratios == ["1.0400", "2.0000"]


def test_rows_of_a_table_are_told_by_what_differs_best_first_and_without_means():
    table = "block_m.128+block_n.256+stages.3+split_epilogue.true"
    others = {
        "block_m.128+block_n.256+stages.2+split_epilogue.true": 0.98,
        "block_m.64+block_n.256+stages.3+split_epilogue.true": 1.01,
        "block_m.128+block_n.256+stages.3": 0.99,
    }
    rows = [
        replace(one, case=case, key=case.key)
        for name, ratio in others.items()
        for one in [record(8192, None, ratio, protocol="short_blocks")]
        for case in [replace(one.case, params={**one.case.params, "config": name, "against": table})]
    ]
    ours = record(8192, None, 1.02, protocol="short_blocks")
    lines = rival_lines([run_of(*rows, ours)])
    at = lines.index("a row / the table's in short blocks at one clock: cycles alone")
    assert [line.split("8192x8192x8192 ")[1].split("  ")[0] for line in lines[at + 2 : at + 5]] == [
        "block_m 64",
        "no split_epilogue",
        "stages 2",
    ]
    assert [line for line in lines if "geometric" in line] == []
    assert "triton / torch in short blocks at one clock: cycles alone" in lines


def test_nothing_is_printed_where_nothing_was_compared():
    assert rival_lines([RUN]) == []


@pytest.mark.parametrize("format", ["text", "md"])
def test_show_prints_the_table_below_the_summary_and_survives_the_file(tmp_path, capsys, format):
    path = tmp_path / "run.json"
    store.save(run_of(record(8192, 1.024, 1.021, 0.975)), path)
    assert exit_status(["show", str(path), "--format", format]) == 0
    said = capsys.readouterr().out
    assert "triton / torch in blocks A B B A, each at its own equilibrium" in said
    assert "1.0240 ± 0.0020" in said
    assert said.count("```") == (2 if format == "md" else 0)
