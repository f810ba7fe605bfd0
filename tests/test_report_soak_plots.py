"""The plot of a soak: what it says, draws and marks, at minutes and at half a day, and of files that hold anything."""

from dataclasses import fields, replace

import pytest

from harness.model import Telemetry
from harness.report.page import render_page
from harness.report.soak_plots import Soak, soak_of, soak_plots
from harness.report.timelines import windows_of
from harness.report.views import Source, views_of
from tests import hand_made, page_runs
from tests.soaks import IDLE, Moment, soak_case, soak_record
from tests.test_page import Outline, _themed

GEMM, COPY = page_runs.soak_records()


def plots_of(*sources):
    return soak_plots(views_of(sources or [page_runs.soak_source()]))


def plot_of(script, seconds=240):
    run = hand_made.gpu_run()
    record = soak_record(soak_case(seconds=seconds), script, run.device, run.sheet)
    (plot,) = plots_of(Source((hand_made.gpu_run(record),), ()))
    return plot


def named(plot):
    return {trace["name"]: trace for trace in plot.traces}


def test_titles_say_what_is_seen():
    assert [plot.title for plot in plots_of()] == [
        "soak_gemm bf16 8192³ torch seconds=240: 668.3 TFLOP/s, drifting by -0.800 % (± 1.787 %) a minute, "
        "from 38 to 66 °C, throttled within 202 s",
        "soak_copy 4 GiB torch seconds=240: 4.252 TB/s, drifting by +0.001 % (± 0.162 %) a minute, "
        "from 44 to 58 °C, never throttled",
    ]


def test_notes_say_resolution_drift_and_throttle():
    always = (
        "From the load's first launch on; a point stands for 2.00 s. Dotted lines are the extremes within each point, "
        "of what is read ten times a second; the vertical axes do not begin at zero. Drift from 60 to 240 s."
    )
    assert [plot.note for plot in plots_of()] == [
        f"{always} Shaded is where the card was held down for another cause than power, first thermal_sw, "
        "between 200.0 and 202.2 s.",
        f"{always} Throttling: never in 240 s.",
    ]


def test_rate_clocks_power_and_temperatures_are_drawn_over_minutes():
    plot = plots_of()[0]
    assert list(named(plot)) == [
        *("rate", "slowest launches", "true clock", "lowest true clock", "clock by NVML", "power", "highest power"),
        *("GPU temperature", "memory temperature", "limit 700 W"),
    ]
    assert (named(plot)["rate"]["x"][0], named(plot)["rate"]["x"][-1]) == (0.0365, 4.002)
    titles = [plot.layout[f"yaxis{n}"]["title"]["text"] for n in ("", 2, 3, 4)]
    assert titles == ["rate (TFLOP/s)", "clock (MHz)", "power (W)", "temperature (°C)"]
    assert plot.layout["xaxis"]["title"]["text"] == "time under load (min)"
    assert (plot.id, plots_of()[1].id) == ("soak-1", "soak-2")


def test_throttle_is_a_band_over_all_panels_with_its_word():
    plot = plots_of()[0]
    band, edge = plot.layout["shapes"]
    assert (band["type"], band["yref"], edge["type"]) == ("rect", "paper", "line")
    assert (round(band["x0"], 2), round(band["x1"], 2)) == (3.33, 3.43)
    (word,) = plot.layout["annotations"]
    assert (word["text"], word["xanchor"]) == ("throttled", "right")
    assert not plots_of()[1].layout["shapes"] and not plots_of()[1].layout["annotations"]


def test_blink_in_half_a_day_is_still_marked():
    plot = plot_of(
        lambda at_s: Moment(1e-2, throttle=IDLE | {"thermal_hw": 0.01} if 6000 <= at_s < 6001 else IDLE), 43200
    )
    band, _ = plot.layout["shapes"]
    assert (round(band["x0"]), round(band["x1"])) == (99, 102)
    assert len(plot.table.rows) == 240
    assert "a point stands for 180 s" in plot.note
    assert plot.layout["annotations"][0]["xanchor"] == "left"


def test_seconds_are_an_axis_of_seconds_and_ripples_fill_no_panel():
    plot = plot_of(lambda at_s: Moment(power_w=600 + at_s % 2), 30)
    assert plot.layout["xaxis"]["title"]["text"] == "time under load (s)"
    low, high = plot.layout["yaxis3"]["range"]
    assert high - low >= 50
    assert plot.title.endswith("1100 TFLOP/s, from 50 to 50 °C, never throttled")
    assert "No drift is given: behind the warming up lie 22.5 s in 15 steps" in plot.note


def test_what_nobody_knows_is_no_panel():
    unknown = ("power_w", "power_instant_w", "sm_clock_mhz", "nvml_sm_clock_mhz", "temperature_start_c")
    lacking = dict.fromkeys((*unknown, "throttle_ratio"), "not read on a CPU")
    plot = plot_of(lambda _: Moment(clock_mhz=None, memory_temperature_c=None, missing=lacking))
    assert list(named(plot)) == ["rate", "slowest launches"]
    assert plot.title.endswith("whether it throttled is not known")
    assert plot.note.endswith("Throttling: not seen, which is not never: not read on a CPU.")
    assert plot.table.rows[0][4:] == (None,) * 9


def test_table_holds_a_row_a_step():
    table = plots_of()[0].table
    assert [f"{head.name} ({head.unit})" for head in table.heads[1:]] == [
        *("until (s)", "rate (TFLOP/s)", "slowest launches (TFLOP/s)"),
        *("true clock (MHz)", "lowest true clock (MHz)", "clock by NVML (MHz)"),
        *("power (W)", "highest power (W)", "GPU temperature (°C)", "memory temperature (°C)"),
        *("throttled (%)", "power capped (%)"),
    ]
    assert len(table.rows) == 120
    assert [row[-2] for row in table.rows if row[-2]] == pytest.approx([70, 70, 70], abs=15)


def test_each_set_has_its_plots_and_ids():
    plots = plots_of(page_runs.soak_source("a"), page_runs.soak_source("b", "r2"))
    assert [plot.id for plot in plots] == ["soak-1", "soak-2", "soak-3", "soak-4"]
    assert [plot.title[:2] for plot in plots] == ["a:", "a:", "b:", "b:"]


def test_first_run_of_a_set_is_drawn_and_the_note_says_so():
    (run,) = page_runs.soak_source().runs
    plots = plots_of(Source((run, replace(run, run_id="r2")), ()))
    assert [plot.note.endswith("Of 2 runs the first with this soak is drawn.") for plot in plots] == [True, True]


def test_soak_stands_in_its_own_section_and_not_among_seconds():
    (run,) = page_runs.soak_source().runs
    assert windows_of(run) == ()
    outline = Outline(render_page([page_runs.soak_source()]))
    assert {"soak"} <= {a.get("id") for a in outline.of("section")}
    assert len(outline.of("caption")) == len(outline.of("table"))


def test_plots_are_what_plotly_accepts():
    graph_objects = pytest.importorskip("plotly.graph_objects")
    for plot in plots_of():
        graph_objects.Figure(data=_themed(list(plot.traces)), layout=_themed(plot.layout))


@pytest.mark.parametrize(
    "times", [(), (None,), (2.0, 1.0), (0.0, 1.0), (1.0, 1.0), (1.0, None), (1e308,), (-1.0, 2.0), (5e-324, 1e300)]
)
def test_times_that_are_none_are_not_drawn(times):
    telemetry = replace(GEMM.telemetry, timeline={**GEMM.telemetry.timeline, "time_s": times})
    assert soak_of(replace(GEMM, telemetry=telemetry)) is None


def test_columns_that_are_short_or_absent_end_in_gaps():
    telemetry = Telemetry(timeline={"time_s": (1.0, 2.0, 3.0), "launch_s": (1e-3,)})
    soak = soak_of(replace(GEMM, telemetry=telemetry))
    assert isinstance(soak, Soak)
    assert [rate is None for rate in soak.rates("launch_s")] == [False, True, True]
    assert soak.column("power_w") == (None, None, None)


def test_other_cases_and_soaks_without_rates_have_no_plot():
    assert soak_of(hand_made.copy_record()) is None
    assert soak_of(replace(GEMM, case=replace(GEMM.case, work=(), kind="latency"))) is None
    assert soak_of(replace(GEMM, telemetry=None)) is None


@pytest.mark.parametrize("value", [0.0, -1.0, 1e308, -1e308, 5e-324])
def test_no_number_in_a_file_breaks_the_page(value):
    (run,) = page_runs.soak_source().runs
    records = []
    for record in run.measured:
        numbers = {f.name: value for f in fields(Telemetry) if isinstance(getattr(record.telemetry, f.name), float)}
        columns = record.telemetry.timeline
        filled = {name: (value,) * len(column) for name, column in columns.items() if name != "time_s"}
        for kept in ("time_s", "launch_s"):
            lines = {**columns, **filled, "launch_s": columns[kept] if kept == "launch_s" else filled["launch_s"]}
            telemetry = replace(record.telemetry, **numbers, timeline=lines)
            metrics = tuple(replace(m, value=value, low=value, high=value) for m in record.metrics)
            params = {**record.case.params, "kept": kept}
            case = replace(record.case, params=params)
            records.append(replace(record, key=case.key, case=case, telemetry=telemetry, metrics=metrics))
    odd = replace(run, records=tuple(records))
    assert "Every case" in Outline(render_page([Source((odd,), ())])).text
