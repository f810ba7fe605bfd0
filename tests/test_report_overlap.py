"""Compute beside communication as a table and as plots, from steps made by hand."""

import io
import json
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from harness import store
from harness.cli.app import exit_status
from harness.report import sections
from harness.report.nccl_columns import nccl_lines
from harness.report.overlap_plots import overlap_plots
from harness.report.overlap_table import overlap_sections
from harness.report.page import render_page, sections_of
from harness.report.views import Source, views_of
from tests import hand_made, page_runs
from tests import hand_made_steps as made


def text(runs, width: int = 100) -> str:
    out = io.StringIO()
    sections.print_sections(
        overlap_sections(runs), Console(file=out, width=width, markup=False, emoji=False, highlight=False)
    )
    return out.getvalue()


def two_steps(**more):
    return made.run(*made.step(1e-3, 2e-3, 2.2e-3, k=500), *made.step(k=2000), **more)


def test_a_line_a_step_and_where_they_turn_as_text():
    assert (
        text([two_steps()])
        == """\
compute beside communication  times of the slowest rank
  FLOP a   compute     comm.                                                    GEMM         W
  bus B      alone     alone    serial   overlap        hidden     computing  slower  together
gemm_all_reduce/bytes=2000000,dtype=bf16,impl=nccl,k=500,m=1000,n=1000,ranks=2
  500     1.000 ms  2.000 ms  3.000 ms  2.200 ms  80.0 ± 3.0 %  45.5 ± 0.6 %  10.0 %      1300
gemm_all_reduce/bytes=2000000,dtype=bf16,impl=nccl,k=2000,m=1000,n=1000,ranks=2
  2000    4.000 ms  2.000 ms  6.000 ms  4.500 ms  75.0 ± 3.0 %  88.9 ± 1.3 %  10.0 %      1300
  hidden: compute + communication - overlap, over the shorter of the two; computing: compute /
    overlap; GEMM slower: its own time within the overlapped step over its time alone; ± 95 % by
    chance alone; W: of all GPUs
  all_reduce bf16 nccl 2 ranks, 1000 rows: communication-bound below 1000 FLOP a bus byte (between
    500 and 2000 as measured)
"""
    )


def test_several_runs_are_medians_and_cards_have_tables_of_their_own():
    slower = made.run(*made.step(compute=5e-3), run_id="r2")
    other = replace(slower, device=replace(slower.device, name="NVIDIA Other"))
    same = text([made.run(*made.step()), slower])
    assert "times of the slowest rank, medians of 2 runs\n" in same
    assert "  500     4.500 ms  2.000 ms" in same
    apart = text([made.run(*made.step()), other])
    assert "compute beside communication  times of the slowest rank, on NVIDIA Test\n" in apart
    assert "\ncompute beside communication  times of the slowest rank, on NVIDIA Other\n" in apart


def test_what_is_unknown_has_its_reason_once_and_nothing_of_it_moves_the_cursor():
    *others, communicate = made.step()
    failed = replace(communicate, outcome="failed", reason=page_runs.ATTACKS[7], samples=None, metrics=())
    lines = text([made.run(*others, failed)], width=160)
    assert "500 4.000 ms – 6.000 ms 4.500 ms – 88.9 ± 1.3 % 10.0 % 1300" in " ".join(lines.split())
    assert "no communicate: mode=communicate is failed: \\x1b[31mred\\x1b[0m \\u202eright to left\n" in lines
    assert "GEMM and collective alone were not both measured\n" in lines
    assert "\x1b" not in lines


def test_runs_without_steps_have_no_table_and_no_plot():
    assert overlap_sections([hand_made.full_run()]) == ()
    assert overlap_plots(views_of([page_runs.full_source()])) == ()


def test_show_prints_the_table_below_the_summary(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    store.save(two_steps(), tmp_path / "1.json")
    assert exit_status(["show", str(tmp_path)]) == 0
    summary, _, table = capsys.readouterr().out.partition("\n\ncompute beside communication  ")
    assert "mode=overlap" in summary
    assert summary.endswith(f"run file: {tmp_path / '1.json'}")
    assert "80.0 ± 3.0 %" in table
    assert exit_status(["show", "--format", "md", str(tmp_path)]) == 0
    head, key = "| case | FLOP a bus B | compute alone | comm. alone |", "k=500,m=1000,n=1000,ranks=2"
    out = capsys.readouterr().out
    assert f"\n\n### compute beside communication\n\nTimes of the slowest rank\n\n{head}" in out
    assert f"| `gemm_all_reduce/bytes=2000000,dtype=bf16,impl=nccl,{key}` | 500 | 1.000 ms | 2.000 ms |" in out


def test_parts_of_a_launch_survive_the_run_file(tmp_path: Path):
    first, *others = made.step()
    assert first.samples is not None
    parts = {"gemm": (0.001, 0.002), "collective": (0.003,)}
    kept = replace(first, samples=replace(first.samples, part_seconds=parts))
    store.save(made.run(kept, *others), tmp_path / "1.json")
    found = next(r for r in store.load(tmp_path / "1.json").records if r.key == kept.key)
    assert found.samples is not None
    assert found.samples.part_seconds == parts


def test_steps_are_no_collectives_of_nccl_tests():
    assert nccl_lines([two_steps()]) == []


def plots(*sources: Source):
    return overlap_plots(views_of(sources))


def source(run, label: str = "") -> Source:
    return Source((run,), ("run-001.json",), label)


def test_times_are_drawn_over_that_of_computing_alone_and_shares_in_percent_below():
    all_reduce, all_to_all = plots(source(made.swept_run()))
    assert (all_reduce.id, all_to_all.id) == ("overlap-all-reduce", "overlap-all-to-all")
    assert all_reduce.title == (
        "A GEMM beside an all-reduce turns communication-bound below 1000 FLOP a bus byte; "
        "70 to 95 % of the shorter is hidden"
    )
    assert all_to_all.title == (
        "A GEMM beside an all-to-all is compute-bound from 1000 to 8000 FLOP a bus byte; 75 % of the shorter is hidden"
    )
    drawn = {trace["name"]: trace for trace in all_reduce.traces}
    assert list(drawn) == [
        "overlapped", "one after the other", "communication alone",
        "hidden of the shorter", "computing, of the step", "GEMM slower",
    ]  # fmt: skip
    assert {tuple(trace["x"]) for trace in drawn.values()} == {(250, 500, 1500, 2000, 4000)}
    assert drawn["communication alone"]["y"] == pytest.approx([4, 2, 2 / 3, 0.5, 0.25])
    assert drawn["one after the other"]["y"] == pytest.approx([5, 3, 5 / 3, 1.5, 1.25])
    assert drawn["overlapped"]["y"] == pytest.approx([4.1, 2.2, 1.2, 1.075, 1.0125])
    assert drawn["hidden of the shorter"]["y"] == pytest.approx([90, 80, 70, 85, 95])
    assert drawn["GEMM slower"]["y"] == pytest.approx([10] * 5)
    assert [name for name, trace in drawn.items() if trace.get("yaxis") == "y2"] == list(drawn)[3:]
    assert all(drawn["hidden of the shorter"]["error_y"][side][1] == pytest.approx(3.0, rel=0.01)
               for side in ("array", "arrayminus"))  # fmt: skip


def test_computing_alone_is_a_level_line_and_the_turn_an_upright_one():
    turning, staying = plots(source(made.swept_run()))
    level, upright = turning.layout["shapes"]
    assert (level["y0"], level["y1"]) == (1, 1)
    assert (upright["x0"], upright["x1"]) == pytest.approx((1000, 1000))
    assert len(staying.layout["shapes"]) == 1


def test_table_behind_the_plot_has_every_figure_of_a_step():
    (plot,) = plots(source(made.run(*made.step())))
    (row,) = plot.table.rows
    told = dict(zip([f"{head.name} ({head.unit})" for head in plot.table.heads], row, strict=False))
    assert len(row) == len(plot.table.heads)
    assert row[1] == "gemm_all_reduce/bytes=2000000,dtype=bf16,impl=nccl,k=500,m=1000,n=1000,ranks=2"
    assert told["ratio (FLOP/bus B)"] == 500
    assert told["overlap (ms)"] == pytest.approx(4.5)
    assert told["GEMM alone (TFLOP/s)"] == pytest.approx(0.25)
    assert told["bus bandwidth alone (GB/s)"] == pytest.approx(1.0)
    assert told["collective slower (%)"] == pytest.approx(25)
    assert told["clock beside, of alone (%)"] == pytest.approx(90)
    assert told["overlap (W)"] == 1300


def test_steps_of_other_rows_are_in_the_table_and_not_in_the_lines():
    more = made.step(2e-3, 1e-3, 2.2e-3, k=500, m=8000)
    (plot,) = plots(source(made.run(*made.step(), *made.step(k=2000), *more)))
    assert [trace["x"] for trace in plot.traces] == [[500, 2000]] * 6
    assert len(plot.table.rows) == 3
    assert plot.note.endswith("Drawn are the 2 steps of all_reduce bf16 nccl 2 ranks, 1000 rows; the table has 1 more.")


def test_each_set_has_plots_of_its_own():
    drawn = plots(source(made.run(*made.step()), "old"), source(made.run(*made.step(), run_id="r2"), "new"))
    assert [plot.id for plot in drawn] == ["overlap-all-reduce-1", "overlap-all-reduce-2"]
    assert [plot.title.partition(":")[0] for plot in drawn] == ["old", "new"]


def test_step_that_lacks_a_mode_is_not_drawn():
    assert plots(source(made.run(*made.step()[:-1]))) == ()


def test_section_stands_behind_collectives_and_its_plots_are_json():
    found = sections_of(views_of([source(made.swept_run())]))
    assert "overlap" in [section.id for section in found]
    for plot in (plot for section in found if section.id == "overlap" for plot in section.plots):
        json.dumps([plot.traces, plot.layout], allow_nan=False)
    assert 'id="overlap"' in render_page([source(made.swept_run())])
