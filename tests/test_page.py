"""The page without a browser: its sections by data, what it escapes, that it needs no network, and its size."""

import json
import re
from collections.abc import Iterator
from dataclasses import fields, replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from harness import store
from harness.cli.app import exit_status
from harness.errors import ExitCode, HarnessError
from harness.model import Case, Telemetry, Work
from harness.report.page import render_page, sections_of
from harness.report.panels import Plot
from harness.report.text import percent_range
from harness.report.verdict import title_of, verdict_of
from harness.report.views import Source, case_name, views_of
from tests import hand_made, page_runs


class Outline(HTMLParser):
    """Elements with their attributes, and the text outside of scripts and styles."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.scripts: list[str] = []
        self._inside = ""
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        self._inside = tag if tag in ("script", "style") else ""

    def handle_endtag(self, tag: str) -> None:
        self._inside = ""

    def handle_data(self, data: str) -> None:
        if self._inside == "script":
            self.scripts.append(data)
        elif not self._inside:
            self.text += data

    def of(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.elements if name == tag]


def plots_of(*sources: Source) -> dict[str, Plot]:
    return {plot.id: plot for section in sections_of(views_of(sources)) for plot in section.plots}


@pytest.fixture(scope="module")
def page() -> str:
    return render_page([page_runs.full_source()])


def test_a_full_run_has_every_section_of_one_set(page: str):
    sections = [a["id"] for a in Outline(page).of("section")]
    assert sections == [
        "verdict", "shares", "memory", "gemm", "collectives", "roofline", "clocks", "burst", "time", "energy",
        "cases", "not-measured", "ruler", "environment", "reading",
    ]  # fmt: skip


def test_sections_without_data_are_left_out():
    outline = Outline(render_page([Source((hand_made.cpu_run(hand_made.cpu_copy_record()),), ())]))
    assert [a["id"] for a in outline.of("section")] == ["verdict", "cases", "not-measured", "environment", "reading"]
    assert "nothing was measured that could be held against a peak" in outline.text


def test_a_run_without_a_single_figure_still_makes_a_page():
    failed = hand_made.without_figure(hand_made.COPY, "memory", "failed", "out of memory")
    assert "out of memory" in Outline(render_page([Source((hand_made.gpu_run(failed),), ())])).text


def test_several_sets_stand_side_by_side():
    sources = [page_runs.full_source("old"), page_runs.full_source("new", "r2", 1.2)]
    titles = {plot.id: plot.title for s in sections_of(views_of(sources)) for plot in s.plots}
    # The two all-reduces weigh in too, one of them without any gain.
    assert titles["generations-means"].startswith("new delivers 1.1")
    assert {"roofline-1", "roofline-2", "timeline-1", "timeline-2"} <= titles.keys()


def test_collectives_are_drawn_as_nccl_runs_them_unless_told_otherwise():
    """A swept setting that nobody uses stood as the bandwidth that the machine reaches."""
    usual, swept = page_runs.all_reduce(2**30, 3e11), page_runs.all_reduce(2**30, 4e11)
    case = replace(swept.case, params={**swept.case.params, "world": "own"})
    run = hand_made.gpu_run(usual, replace(swept, key=case.key, case=case, family="nccl_sweep"))
    assert "reaches 300.0 GB/s" in plots_of(Source((run,), ()))["bus-bandwidth"].title


def test_titles_say_what_is_seen():
    titles = {id: plot.title for id, plot in plots_of(page_runs.full_source()).items()}
    assert titles["shares-compute"] == (
        "Compute: 66 to 67 % of the dense peak arrives; the clock allows 73 %, kernels use 90 to 92 % of that"
    )
    assert titles["shares-bytes"] == "Device memory: copy reaches 75.0 % of 4.000 TB/s"
    assert titles["gemm"] == (
        "GEMM: bf16 8192³ triton is fastest at 670.0 TFLOP/s; Triton is ahead of torch in 1 of 1 pair"
    )
    assert titles["bus-bandwidth"] == "Collectives: all_reduce fp32 1 GiB nccl 2 GPUs reaches 300.0 GB/s bus bandwidth"


def test_scaled_and_turned_products_have_rows_and_pairs_of_their_own():
    """Row-wise scales were a second dot in the row of the plain product, and took its place where Triton is ahead."""
    plain = [page_runs.gemm("torch", rate_flop_per_s=6.6e14), page_runs.gemm("triton", rate_flop_per_s=6.7e14)]
    records = list(plain)
    for record in plain:
        usual = record.case.params | {"scaling": "tensor"}
        case = replace(record.case, params=usual | {"scaling": "row"}, defaults={"scaling": "tensor"})
        slower = page_runs.gemm(str(usual["impl"]), rate_flop_per_s=6.2e14 if usual["impl"] == "torch" else 6.1e14)
        records.append(replace(slower, key=case.key, case=case))
    plot = plots_of(Source((hand_made.gpu_run(*records),), ()))["gemm"]
    rows = [annotation["text"] for annotation in plot.layout["annotations"]]
    assert rows == ["bf16 8192³", "bf16 scaling=row 8192³"]
    assert plot.title.endswith("Triton is ahead of torch in 1 of 2 pairs")


def test_a_comparison_is_named_by_both_sides():
    case = Case(
        "gemm",
        {"dtype": "bf16", "impl": "triton", "against": "torch", "protocol": "abba"},
        (Work(1, "FLOP", "bf16", "2·m·n·k"),),
    )
    assert case_name(case) == "bf16 triton / torch protocol=abba"


def test_the_verdict_is_made_of_the_data():
    assert verdict_of(views_of([page_runs.full_source()])[0]) == (
        "On Test (700 W limit, driver 580.1), device memory delivers 75.0 % of its 4.000 TB/s when best used "
        "(copy 1 GiB torch). Of the dense compute peaks 66 to 67 % arrives. The SMs ran at 1336 MHz where the data "
        "sheet assumes 1830, which allows 73 %; in those cycles the kernels use 90 to 92 % of what the pipes could do. "
        "On the whole more is lost to the clock than to the kernels. The fastest collective, all_reduce fp32 1 GiB "
        "nccl 2 GPUs, reaches 300.0 GB/s bus bandwidth, and 8 B takes 6.154 µs. The clock was held down by the power "
        "limit in 6 cases."
    )


def test_the_parts_of_a_bar_add_up_to_the_peak():
    arrives, kernel, clock = plots_of(page_runs.full_source())["shares-compute"].traces
    assert [sum(parts) for parts in zip(arrives["x"], kernel["x"], clock["x"], strict=True)] == pytest.approx(
        [100, 100]
    )


def with_pipe():
    """A set whose run also has the pipe's own ceiling in bf16, a quarter above the GEMM of torch."""
    source, gemm = page_runs.full_source(), page_runs.gemm("torch")
    case = replace(gemm.case, op="pipe", params={"dtype": "bf16"})
    metrics = tuple(replace(m, value=m.value * 1.25) if m.name == "rate" else m for m in gemm.metrics)
    pipe = replace(gemm, key="pipe/dtype=bf16", family="pipe", case=case, metrics=metrics)
    return replace(source, runs=(replace(source.runs[0], records=(*source.runs[0].records, pipe)),))


def test_a_pipe_case_gives_the_roofline_a_ceiling_of_its_own():
    rows = plots_of(with_pipe())["roofline-1"].table.rows
    assert [row[0] for row in rows if row[1] == "ceiling, pipe"] == ["bf16, pipe under this power limit"]


def test_a_pipe_case_is_a_mark_in_every_row_of_its_format_and_no_row_itself():
    rate = page_runs.gemm("torch").metric("rate").value * 1.25 / 1e12
    plots = plots_of(with_pipe())
    for id, at in (("gemm", rate), ("shares-compute", 100 * rate / 1000)):
        marks = [trace for trace in plots[id].traces if trace["name"] == "pipe under this power limit"]
        assert len(marks) == 1
        assert all(x == pytest.approx(at) for x in marks[0]["x"]), id
        assert "the tensor pipe itself" in plots[id].note
        assert not any("pipe/" in str(cell) for row in plots[id].table.rows for cell in row)
    said, before = (verdict_of(views_of([source])[0]) for source in (with_pipe(), page_runs.full_source()))
    # Only the count of cases that the power limit held down knows of it.
    assert said == before.replace("in 6 cases", "in 7 cases")


def with_decode() -> Source:
    """One case beside a GEMM whose headline is bytes: 1 TB/s at 2 FLOP a byte."""
    work = (Work(4e9, "B", "memory", "cache"), Work(8e9, "FLOP", "bf16", "scores"))
    case = Case("decode_attention", {"batch": 1}, work)
    decode = replace(page_runs.copy(2**30, 1e12), key=case.key, family="attention", case=case)
    source = page_runs.full_source()
    return replace(source, runs=(replace(source.runs[0], records=(page_runs.gemm("torch"), decode)),))


def test_the_roofline_counts_flop_where_bytes_are_the_headline():
    """Bytes a second stood on the axis of FLOP a second, without a name in the legend."""
    plot = plots_of(with_decode())["roofline-1"]
    points = {row[0]: row[2:4] for row in plot.table.rows if row[1] == "case"}
    assert points["decode_attention/batch=1"] == (2.0, 2.0)
    assert [trace["name"] for trace in plot.traces if trace["mode"] == "markers"] == ["bf16"]
    assert plot.title == "Roofline of Test: 1 of 2 cases under the memory's slope; the bf16 ridge is at 250 FLOP/B"


def test_what_several_ranks_compute_together_is_no_ceiling_of_one_gpu():
    """A step of two GPUs lifted one GPU's best above its data sheet."""
    gemm = page_runs.gemm("torch")
    case = replace(gemm.case, op="gemm_all_reduce", params={**gemm.case.params, "ranks": 2})
    metrics = tuple(replace(m, value=m.value * 2) if m.name == "rate" else m for m in gemm.metrics)
    step = replace(gemm, key=case.key, family="overlap", case=case, metrics=metrics)
    source = page_runs.full_source()
    source = replace(source, runs=(replace(source.runs[0], records=(gemm, step)),))
    rows = plots_of(source)["roofline-1"].table.rows
    assert [row[3] for row in rows if row[0] == "bf16, our best"] == [670.0]


def test_copies_between_gpus_are_held_against_their_link_in_words():
    """The page said that nothing was held against a peak below a tile that did so."""
    record = page_runs.copy(2**30, 4e11)
    case = Case("peer_copy", {"from": 0, "to": 1}, (Work(4e9, "B", "peer_link", "one way"),))
    metrics = (*(m for m in record.metrics if m.name != "spec_ratio"), hand_made.ratio("spec_ratio", 0.8))
    copied = replace(record, key=case.key, family="peers", case=case, metrics=metrics, telemetry=Telemetry())
    source = page_runs.full_source()
    (view,) = views_of([replace(source, runs=(replace(source.runs[0], records=(copied,)),))])
    assert verdict_of(view) == (
        "On Test (700 W limit, driver 580.1), copies between two GPUs reach 80 % of the link between them."
    )


def test_ranks_of_gloo_are_no_gpus():
    params = {"bytes": 8, "dtype": "fp32", "ranks": 2}
    work = hand_made.ALL_REDUCE.work
    names = [case_name(Case("all_reduce", {**params, "impl": impl}, work)) for impl in ("gloo", "nccl")]
    assert names == ["all_reduce fp32 8 B gloo 2 ranks", "all_reduce fp32 8 B nccl 2 GPUs"]


def test_a_page_of_a_cpu_alone_speaks_of_no_data_sheet():
    assert title_of(views_of([Source((hand_made.cpu_run(),), ())])) == "What was measured on a CPU"


def test_without_a_pipe_case_no_plot_speaks_of_one():
    plots = plots_of(page_runs.full_source())
    assert not any(
        "pipe under" in str(trace["name"]) for id in ("gemm", "shares-compute") for trace in plots[id].traces
    )


def test_medians_never_span_two_drivers():
    run = page_runs.full_source().runs[0]
    other = replace(
        run, run_id="r2", environment={**run.environment, "driver": replace(run.environment["driver"], value="590")}
    )
    views = views_of([Source((run, other), ())])
    assert [view.label for view in views] == ["Test, quick, driver 580.1", "Test, quick, driver 590"]


@pytest.mark.parametrize("name", ["card", "cuda_runtime", "torch", "triton", "nccl", "power_limit_w", "ecc"])
def test_medians_never_span_two_environments(name):
    run = page_runs.full_source().runs[0]
    fact = replace(run.environment[name], value=False if name == "ecc" else 1.0)
    other = replace(run, run_id="r2", environment={**run.environment, name: fact})
    views = views_of([Source((run, other), ())])
    assert [len(view.runs) for view in views] == [1, 1]
    assert len({view.label for view in views}) == 2


def test_the_title_of_the_two_clocks_tells_what_these_runs_measured():
    plot = plots_of(page_runs.full_source())["clocks-1"]
    assert plot.title == "NVML's clock reads 10.0 % above the true one in 6 of 6 cases"
    assert plot.traces[-2]["text"] == ["   +10.0 %"] * 6
    assert plot.traces[-1]["name"] == "the data sheet assumes 1830 MHz"
    assert [head.name for head in plot.table.heads][1:7] == [
        "true clock", "NVML clock", "gap", "of assumed clock", "tensor pipe busy", "DRAM busy",
    ]  # fmt: skip
    assert plot.table.rows[0][1:3] == (1336.0, 1470.0)
    assert plot.table.rows[0][4:7] == (73.0, 93.0, 25.0)


@pytest.mark.parametrize(
    ("nvml_clocks_mhz", "title"),
    [
        ([1001, 1000, 999, 1000], "NVML's clock and the true one agree within 0.1 % in 4 cases"),
        (
            [1100, 1112, 1002, 1000],
            "NVML's clock reads 10.0 to 11.2 % above the true one in 2 of 4 cases; the other 2 agree within 0.2 %",
        ),
        (
            [1100, 950, 1000, 1200],
            "NVML's clock reads 10.0 to 20.0 % above the true one in 2 of 4 cases, and reads 5.0 % below the true one "
            "in 1; the other agrees within 0.1 %",
        ),
        ([None, 1100, None, None], "NVML's clock reads 10.0 % above the true one in 1 of 1 case"),
    ],
)
def test_the_two_clocks_may_differ_either_way_or_agree(nvml_clocks_mhz: list[float | None], title: str):
    records = [
        replace(
            page_runs.copy(2**n),
            telemetry=Telemetry(sm_clock_mhz=1000.0, nvml_sm_clock_mhz=None if clock is None else float(clock)),
        )
        for n, clock in enumerate(nvml_clocks_mhz, 20)
    ]
    assert plots_of(Source((hand_made.ruled_run(*records),), ()))["clocks-1"].title == title


def test_bursts_stand_beside_what_is_sustained():
    plot = plots_of(Source((hand_made.ruled_run(page_runs.gemm("torch", rate_flop_per_s=6.6e14)),), ()))["burst-1"]
    assert plot.title == (
        "The first second from idle: bf16 8192³ torch reaches 825.0 TFLOP/s, "
        "25 % above the 660.0 TFLOP/s that it sustains"
    )
    rate, clock, level = plot.traces[:3]
    assert rate["y"] == pytest.approx([825, 726, None, 660, 660], nan_ok=True)
    assert clock["y"] == [1935.0, 1500.0, 1400.0, 1340.0, 1336.0]
    assert level["y"] == [660.0, 660.0]
    assert "never gated" in plot.note
    assert len(plot.table.rows) == 5


def test_a_time_line_begins_with_the_settling():
    plot = plots_of(page_runs.full_source())["timeline-1"]
    names = [trace["name"] for trace in plot.traces]
    assert names == ["power", "limit 700 W", "true clock", "clock by NVML", "temperature", "rate"]
    assert plot.layout["shapes"][0]["x0"] == 0 and plot.layout["shapes"][0]["x1"] == 0.2
    assert len(plot.layout["shapes"]) == 6
    power, rate = plot.traces[0], plot.traces[-1]
    assert power["x"][:6] == [0.0, 0.1, 0.2, 0.3, 0.4, None]
    assert rate["y"][:6] == [200.0, 125.0, 100.0, None, 100.0, None]
    assert plot.table.rows[0][1:3] == (0.0, -0.2)


def test_an_old_file_is_drawn_as_far_as_it_goes():
    plots = plots_of(page_runs.old_source())
    assert "burst-1" not in plots
    plot = plots["timeline-1"]
    assert [trace["name"] for trace in plot.traces] == [
        "power", "limit 700 W", "true clock", "clock by NVML", "temperature",
    ]  # fmt: skip
    assert plot.layout["shapes"] == []
    assert "settling and pre-heating between the windows are left out" in plot.note
    assert plot.traces[2]["y"][:3] == [1336.0, 1336.0, None]
    assert plots["clocks-1"].table.rows[0][5:7] == (None, None)


def test_what_no_file_knows_is_no_column():
    def heads(source: Source) -> list[str]:
        section = next(s for s in sections_of(views_of([source])) if s.id == "cases")
        return [head.name for head in section.tables[0].heads]

    old, new = heads(page_runs.old_source()), heads(page_runs.full_source())
    assert new[: len(old)] == old
    assert new[len(old) :] == [
        "energy ± 95 %", "net energy", "power by counter", "instant", "20 ms samples", "energy cross-check", "idle",
        "tensor pipe busy", "DRAM busy",
    ]  # fmt: skip


def test_a_ruler_that_is_off_stands_first_on_the_page():
    (run,) = page_runs.full_source().runs
    off = replace(run, workers=tuple(replace(worker, ruler=hand_made.RULER_OFF) for worker in run.workers))
    source = Source((off,), ())
    assert verdict_of(views_of([source])[0]).startswith(
        "The ruler is OFF: spin of 20 µs +5 µs (right: -200 ns to +3 µs): the host may have been busy; "
        "do not use these figures. On Test"
    )
    section = next(s for s in sections_of(views_of([source])) if s.id == "ruler")
    assert section.tables[0].rows[3] == (
        "Test", "spin of 20 µs", "+5 µs", "-200 ns to +3 µs", "OFF", "the host may have been busy",
    )  # fmt: skip


def test_facts_that_differ_stand_first_and_are_marked():
    run = page_runs.full_source().runs[0]
    other = replace(
        run, run_id="r2", environment={**run.environment, "nccl": replace(run.environment["nccl"], value="2.30")}
    )
    section = next(
        s for s in sections_of(views_of([Source((run,), (), "a"), Source((other,), (), "b")])) if s.id == "environment"
    )
    assert section.tables[0].rows[0] == ("nccl", "2.28.9", "2.30")
    assert section.tables[0].marked == {0: "differs between sets"}


def test_every_plot_is_what_plotly_accepts():
    graph_objects = pytest.importorskip("plotly.graph_objects")
    for plot in plots_of(page_runs.full_source("a"), page_runs.full_source("b", "r2")).values():
        graph_objects.Figure(data=_themed(list(plot.traces)), layout=_themed(plot.layout))


def test_every_plot_has_a_title_axes_with_titles_and_a_table(page: str):
    for plot in plots_of(page_runs.full_source()).values():
        assert plot.title and plot.note and plot.table.rows
        assert plot.layout["xaxis"]["title"]["text"]
        assert all(len(row) == len(plot.table.heads) for row in plot.table.rows)
    outline = Outline(page)
    assert len(outline.of("figure")) == len(plots_of(page_runs.full_source()))
    assert len(outline.of("caption")) == len(outline.of("table"))


def test_ids_are_unique(page: str):
    ids = [a["id"] for _, a in Outline(page).elements if a.get("id")]
    assert len(ids) == len(set(ids))


def test_nothing_is_loaded_from_elsewhere(page: str):
    outline = Outline(page)
    loading = ("src", "href", "data", "action", "poster", "srcset", "background")
    links = [a[name] for _, a in outline.elements for name in loading if a.get(name)]
    assert all(link is not None and link.startswith("#") for link in links)
    assert not outline.of("link") and not outline.of("iframe")
    own = re.sub(
        r"<script>.*?</script>", "", page, count=1, flags=re.DOTALL
    )  # plotly.js names sites that it never asks
    assert "http://" not in own and "https://" not in own


def test_the_policy_lets_only_the_pages_own_scripts_run(page: str):
    policy = next(a["content"] for a in Outline(page).of("meta") if a.get("http-equiv") == "Content-Security-Policy")
    assert policy is not None and "default-src 'none'" in policy
    scripts = policy.partition("script-src ")[2].partition(";")[0].split()
    assert len(scripts) == 2 and all(hash.startswith("'sha256-") for hash in scripts)


def test_hostile_strings_become_no_element():
    usual = {name for name, _ in Outline(render_page([page_runs.full_source()])).elements}
    outline = Outline(render_page([Source((page_runs.hostile_run(),), (page_runs.ATTACK,), page_runs.ATTACK)]))
    assert {name for name, _ in outline.elements} <= usual
    assert not [a for _, a in outline.elements if any(name.startswith("on") for name in a)]
    assert not [a for _, a in outline.elements if a.get("id") == "intruder"]
    assert "\x1b" not in outline.text and "\u202e" not in outline.text


def test_hostile_strings_are_literal_in_plots():
    view_source = Source((page_runs.hostile_run(),), (), page_runs.ATTACK)
    for plot in plots_of(view_source).values():
        for text in _texts([plot.traces, plot.layout]):
            assert not re.search(r"<(?!br>)", text)
            assert len(text) < 600


@pytest.mark.parametrize("value", [0.0, -1.0, 1e308, -1e308, 5e-324])
def test_no_number_in_a_file_breaks_the_page(value: float):
    """A rate of 0 stopped the page: its axis is logarithmic."""
    run = page_runs.full_source().runs[0]
    records = tuple(
        replace(
            record,
            metrics=tuple(replace(m, value=value, low=value, high=value) for m in record.metrics),
            case=replace(record.case, work=tuple(replace(w, amount=value) for w in record.case.work)),
            telemetry=_filled(record.telemetry or Telemetry(), value),
        )
        for record in run.measured
    )
    parts = tuple(replace(part, value=value, low=value, high=value) for part in hand_made.RULER.parts)
    workers = (replace(run.workers[0], ruler=replace(hand_made.RULER, parts=parts)),)
    peaks = {name: replace(peak, value=value) for name, peak in run.sheet.peaks.items()}
    odd = replace(
        run,
        workers=workers,
        records=records,
        sheet=replace(run.sheet, peaks=peaks),
        device=replace(run.device, l2_bytes=-1),
    )
    assert "Every case" in Outline(render_page([Source((odd,), ())])).text


def _filled(telemetry: Telemetry, value: float) -> Telemetry:
    """Telemetry in which every number is that one."""
    numbers = {f.name: value for f in fields(telemetry) if isinstance(getattr(telemetry, f.name), float)}
    lines = {
        name: {column: (value,) * len(values) for column, values in getattr(telemetry, name).items()}
        for name in ("timeline", "burst")
    }
    return replace(telemetry, **numbers, **lines)


def test_no_time_in_a_file_breaks_a_time_line():
    (run,) = page_runs.full_source().runs
    records = tuple(
        replace(
            record,
            telemetry=replace(
                record.telemetry or Telemetry(),
                **{
                    name: {**columns, "time_s": (-1e308, None, 1e308, 5e-324, 0.0)}
                    for name in ("timeline", "burst")
                    if (columns := getattr(record.telemetry, name))
                },
            ),
        )
        for record in run.measured
    )
    assert not {"timeline-1"} & plots_of(Source((replace(run, records=records),), ())).keys()
    assert "Every case" in Outline(render_page([Source((replace(run, records=records),), ())])).text


def test_five_sets_of_a_hundred_cases_stay_below_8_mb():
    page = render_page([page_runs.large_source(number) for number in range(5)])
    assert len(page.encode()) < 8e6


def test_the_command_writes_one_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    store.save(page_runs.full_source().runs[0], tmp_path / "set" / "run-001.json")
    target = tmp_path / "page.html"
    assert exit_status(["report", str(tmp_path / "set"), "-o", str(target), "--label", "mine"]) == ExitCode.DONE
    assert target.read_text(encoding="utf-8").startswith("<!doctype html>")
    assert capsys.readouterr().out == f"{target}: {len(target.read_bytes()) / 1e6:.1f} MB\n"
    assert sorted(p.name for p in tmp_path.iterdir()) == ["page.html", "set"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["-o", "{tmp}/absent/page.html"], "cannot write {tmp}/absent/page.html: No such file or directory."),
        (["-o", "{tmp}"], "cannot write {tmp}: it is a folder."),
        (["-o", "{tmp}/page.html", "--label", "a", "--label", "b"], "labels: 2, sets: 1."),
        ([], "Missing option '-o' / '--output'"),
    ],
)
def test_what_the_user_can_fix_is_one_line(
    arguments: list[str], words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    store.save(page_runs.full_source().runs[0], tmp_path / "set" / "run-001.json")
    filled = [argument.format(tmp=tmp_path) for argument in arguments]
    assert exit_status(["report", str(tmp_path / "set"), *filled]) == ExitCode.USAGE
    error = capsys.readouterr().err
    assert error.startswith(f"ofpeak: {words.format(tmp=tmp_path)}")
    assert error.count("\n") == 1


@pytest.mark.parametrize(("low", "high", "said"), [(0.64, 0.70, "64 to 70 %"), (0.701, 0.704, "70 %")])
def test_ranges_that_round_to_one_number_are_one_number(low: float, high: float, said: str):
    assert percent_range(low, high) == said


def _themed(value: Any) -> Any:
    """Colours by role as plotly would get them from the page's script."""
    return json.loads(re.sub(r'"var:--[a-z0-9-]+"', '"#123456"', json.dumps(value)))


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for item in value.values():
            yield from _texts(item)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _texts(item)


def test_sets_are_named_by_their_operator_and_only_as_far_as_needed():
    def source(run_id: str, label: str) -> Source:
        run = hand_made.gpu_run(hand_made.copy_record())
        return Source((replace(run, run_id=run_id, order=replace(run.order, label=label)),), ())

    views = views_of([source("r0", "rack 7"), source("r1", "rack 8"), source("r2", ""), source("r3", "")])
    assert [view.label for view in views][:2] == ["rack 7", "rack 8"]
    assert len({view.label for view in views}) == 4
    assert all(view.label.startswith("Test, quick") for view in views[2:])


def test_others_are_held_against_the_set_that_was_named():
    sources = [page_runs.full_source(label, run_id) for label, run_id in (("a", "r1"), ("b", "r2"))]
    assert "Ratios to b:" in Outline(render_page(sources, "b")).text
    assert "Ratios to a:" in Outline(render_page(sources)).text
    with pytest.raises(HarnessError, match="no set is labelled 'c'"):
        render_page(sources, "c")
