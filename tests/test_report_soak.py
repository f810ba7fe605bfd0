"""Soaks as a table: whole texts, on scripted cards and by hand."""

import io
from dataclasses import replace

import pytest
from rich.console import Console

from harness import store
from harness.cli.app import exit_status
from harness.model import Telemetry
from harness.report import sections
from harness.report.soak import soak_sections
from tests import hand_made, page_runs
from tests.soaks import Moment, soak_case, soak_record

SHOWN = """\
soak  one load for minutes, from its first launch on
                 drift           ±  first      power    °C                  MHz
  rate           a minute     95 %  throttle  capped  from  to  most    W  true  NVML
soak_gemm/dtype=bf16,impl=torch,k=8192,m=8192,n=8192,seconds=240
  668.3 TFLOP/s  -0.800 %  1.787 %  202 s     94.8 %    38  66    85  689  1336  1463
soak_copy/bytes=4294967296,impl=torch,seconds=240
  4.252 TB/s     +0.001 %  0.162 %  never      0.0 %    44  58    58  594  1979  1980
  drift: the slope of the rate from 60 to 240 s; the other figures are of the whole load
  soak_gemm/dtype=bf16,impl=torch,k=8192,m=8192,n=8192,seconds=240 throttled: thermal_sw,
    between 200.0 and 202.2 s; 4.213 s in all
"""

MARKDOWN = """\
### soak

One load for minutes, from its first launch on

| case | rate | drift a minute | ± 95 % | first throttle | power capped | °C from | to | most | W | MHz true | NVML |
| :--- | :--- | :--- | ---: | :--- | ---: | ---: | ---: | ---: | ---: | ---: | ---: |
| `soak_gemm/dtype=bf16,impl=torch,k=8192,m=8192,n=8192,seconds=240` | 668.3 TFLOP/s | -0.800 % | 1.787 % | 202 s \
| 94.8 % | 38 | 66 | 85 | 689 | 1336 | 1463 |
| `soak_copy/bytes=4294967296,impl=torch,seconds=240` | 4.252 TB/s | +0.001 % | 0.162 % | never \
| 0.0 % | 44 | 58 | 58 | 594 | 1979 | 1980 |

- drift: the slope of the rate from 60 to 240 s; the other figures are of the whole load
- soak\\_gemm/dtype=bf16,impl=torch,k=8192,m=8192,n=8192,seconds=240 throttled: thermal\\_sw, between 200.0 and \
202.2 s; 4.213 s in all
"""

UNKNOWN = """\
soak  one load for minutes, from its first launch on
                   drift     ±     first   power    °C                  MHz
  rate          a minute  95 %  throttle  capped  from  to  most    W  true  NVML
soak_gemm/dtype=bf16,impl=torch,k=8192,m=8192,n=8192,seconds=20
  1100 TFLOP/s         –     –         –       –     –   –     –  600  1500  1650
  soak_gemm/dtype=bf16,impl=torch,k=8192,m=8192,n=8192,seconds=20 has no drift: behind the
    warming up lie 15.1 s in 15 steps; 30 s and 10 steps are needed
  no first throttle: not seen, which is not never: Not Supported
"""


def text(*runs):
    out = io.StringIO()
    console = Console(file=out, width=92, markup=False, emoji=False, highlight=False)
    sections.print_sections(soak_sections(runs), console)
    return out.getvalue()


def soaked(script, seconds=240):
    run = hand_made.gpu_run()
    return soak_record(soak_case(seconds=seconds), script, run.device, run.sheet)


def test_soaks_are_shown_with_drift_throttle_and_temperatures():
    assert text(*page_runs.soak_source().runs) == SHOWN


def test_what_nvml_does_not_tell_is_a_dash_with_its_reason():
    lacking = dict.fromkeys(("temperature_start_c", "temperature_end_c", "throttle_ratio"), "Not Supported")
    assert text(hand_made.gpu_run(soaked(lambda _: Moment(missing=lacking), 20))) == UNKNOWN


def test_runs_of_a_set_are_lines_of_their_case():
    shown = text(
        hand_made.gpu_run(soaked(lambda _: Moment()), run_id="r1"),
        hand_made.gpu_run(soaked(lambda _: Moment(1.1e-3)), run_id="r2"),
    )
    assert shown.count("soak_gemm/") == 1
    assert [line.split()[0] for line in shown.splitlines() if "TFLOP/s" in line] == ["1100", "999.6"]


def test_soaks_of_two_cards_are_two_tables_that_say_whose_they_are():
    one = hand_made.gpu_run(soaked(lambda _: Moment()))
    other = replace(one, device=replace(one.device, name="NVIDIA Other"))
    titles = [line for line in text(one, other).splitlines() if line.startswith("soak  ")]
    assert titles == [
        f"soak  one load for minutes, from its first launch on, on {name}" for name in ("NVIDIA Test", "NVIDIA Other")
    ]


def test_throttle_of_unknown_length_says_of_how_much_it_is_known():
    def script(at_s):
        is_lost = at_s > 120
        heat = {**Moment().throttle, "thermal_hw": 1.0 if 60 <= at_s < 62 else 0.0}
        return Moment(throttle=heat, missing={"throttle_ratio": "GPU is lost"} if is_lost else {})

    shown = " ".join(text(hand_made.gpu_run(soaked(script))).split())
    assert "62 s" in shown
    assert "thermal_hw, between 60.0 and 62.0 s; 2.0 s of the 120 s that were counted, of 240 s: GPU is lost" in shown


def test_runs_without_soaks_have_no_table():
    assert soak_sections([hand_made.gpu_run(hand_made.copy_record())]) == ()


@pytest.mark.parametrize(
    "odd",
    [
        {"telemetry": None},
        {"telemetry": Telemetry()},
        {"metrics": ()},
        {"telemetry": Telemetry(timeline={"time_s": (None, 0.0)})},
    ],
)
def test_records_that_lack_something_break_nothing(odd):
    record = replace(page_runs.soak_records()[0], **odd)
    assert "soak_gemm/" in text(hand_made.gpu_run(record))


@pytest.mark.parametrize("format", ["text", "md"])
def test_show_prints_soaks_below_the_summary(tmp_path, capsys, monkeypatch, format):
    monkeypatch.setenv("COLUMNS", "92")
    store.save(page_runs.soak_source().runs[0], tmp_path / "run-001.json")
    assert exit_status(["show", str(tmp_path), "--format", format]) == 0
    out = capsys.readouterr().out
    assert (MARKDOWN if format == "md" else SHOWN) in out
