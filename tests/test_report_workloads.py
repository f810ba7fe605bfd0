"""Plateaus, latency by SM, cliffs, images and checkpointing as tables, from records made by hand."""

import io
from dataclasses import replace

import pytest
from rich.console import Console

from harness import store
from harness.cli.app import exit_status
from harness.model import Case, Fact, Metric, Record, Samples, Work
from harness.report import sections
from harness.report.workloads import workload_sections
from tests import hand_made

MIB = 2**20


def record(op, params, work=(), seconds=(1e-3,) * 4, metrics=()):
    case = Case(op, params, work, "throughput" if work else "latency")
    samples = Samples(seconds, 1, sum(seconds), "cuda_event", "stream")
    return Record(case.key, "cache", case, "measured", samples=samples, metrics=metrics)


def read(size, rate):
    return record(
        "cache_read", {"bytes": size}, (Work(1e9, "B", None, "read", "caches"),), metrics=(hand_made.rate(rate),)
    )


def latency(size, seconds):
    return record("load_latency", {"bytes": size}, metrics=(Metric("time_p50", seconds, "s", "lower"),))


def by_sm(*nanoseconds):
    return record("sm_latency", {"bytes": 128, "line": 1}, seconds=tuple(ns * 1e-9 for ns in nanoseconds))


def gemm(m, n, k, rate, cycles):
    metrics = (hand_made.rate(rate, "FLOP/s"), Metric("cycles", cycles, "cycles"))
    return record(
        "gemm_alignment", {"m": m, "n": n, "k": k}, (Work(2 * m * n * k, "FLOP", "bf16", "2·m·n·k"),), metrics=metrics
    )


def images(batch, a_second, joules=None):
    metrics = (
        Metric("images", a_second, "image/s", "higher"),
        Metric("power", 500.0, "W"),
        Metric("energy_per_image", joules, "J/image", "lower", reason="" if joules else "not read"),
        hand_made.ratio("spec_ratio", 0.125),
    )
    params = {"batch": batch, "dtype": "fp16", "cudnn_benchmark": "on"}
    return record("resnet50_inference", params, (Work(8e9 * batch, "FLOP", "fp16", "2·m"),), metrics=metrics)


def step(checkpointing, seconds, held, peak=None, hardware=4e12):
    works = [Work(3e12, "FLOP", "bf16", "model FLOP")]
    if checkpointing != "none":
        works.append(Work(hardware, "FLOP", None, "hardware FLOP", "no part of the model"))
    params = {"batch": 1, "passes": "both", "checkpointing": checkpointing}
    metrics = (
        hand_made.time(seconds),
        Metric("memory.held", held, "B", "lower"),
        Metric("memory.peak", peak, "B", "lower", reason="" if peak else "not read"),
    )
    return record("transformer_block", params, tuple(works), metrics=metrics)


RECORDS = (
    *(read(n * MIB, 6e12) for n in (1, 2, 4)),
    *(read(n * MIB, 3e12) for n in (16, 32, 64)),
    *(latency(n * MIB, n * 1e-7) for n in (1, 2, 4)),
    by_sm(200, 250, 300, 210, 220),
    gemm(64, 64, 64, 1e14, 1000.0),
    gemm(64, 64, 63, 4e13, 2 * 1000.0 * 63 / 64),
    images(8, 4000.0, 0.125),
    images(1, 1000.0),
    step("none", 0.010, 64 * MIB, 100 * MIB),
    step("block", 0.014, 8 * MIB, 50 * MIB),
    step("mlp", 0.012, 32 * MIB),
)
SHOWN = """\
rate over the working set  plateaus found among 6 sizes
from        to      median  sizes
1 MiB    4 MiB  6.000 TB/s      3
16 MiB  64 MiB  3.000 TB/s      3
  the level changes between 4 MiB and 16 MiB

latency over the working set  plateaus found among 3 sizes
  no three neighbouring sizes agree

latency by SM  seconds a load
  SMs   fastest    median   slowest
sm_latency/bytes=128,line=1
  5    200.0 ns  220.0 ns  300.0 ns
  sample i of the run file is the i-th SM's, where there are at most 200

one off aligned shapes
                     rate  cycles a FLOP
  off  multiple of  ratio          ratio
gemm_alignment/k=63,m=64,n=64
  k-1           64  0.400          2.000
  ratios are over the aligned neighbour, each shape by its own FLOP

images over batch
           images        images  share of
  batch  a second    W  a joule  the peak
resnet50_inference/cudnn_benchmark=on,dtype=fp16
  1          1000  500        –    12.5 %
  8          4000  500    8.000    12.5 %

activation checkpointing  time paid against memory saved
                   time   FLOP     held    held   peak
  computed again  ratio  ratio  without    with  ratio
transformer_block/batch=1,checkpointing=block,passes=both
  block           1.400  1.333   64 MiB   8 MiB  0.500
transformer_block/batch=1,checkpointing=mlp,passes=both
  mlp             1.200  1.333   64 MiB  32 MiB      –
  ratios are over the same step without checkpointing; held: what autograd keeps from the forward to
    the backward pass; peak: of what a step allocates, gradients included
"""


def text(runs):
    out = io.StringIO()
    console = Console(file=out, width=100, markup=False, emoji=False, highlight=False)
    sections.print_sections(workload_sections(runs), console)
    return out.getvalue()


def test_what_several_cases_say_together_is_shown():
    assert text([hand_made.ruled_run(*RECORDS)]) == SHOWN


def test_of_several_runs_every_figure_is_the_median():
    slower = [read(n * MIB, 5e12) for n in (1, 2, 4)]
    shown = text([hand_made.ruled_run(*RECORDS), hand_made.ruled_run(*slower, run_id="r2")])
    assert "1 MiB    4 MiB  5.500 TB/s" in shown


def test_images_and_checkpointing_of_several_runs_are_medians_too():
    runs = [hand_made.ruled_run(*RECORDS, run_id=f"r{n}") for n in (1, 2)]
    faster = (images(1, 2000.0), step("none", 0.010, 64 * MIB), step("block", 0.012, 16 * MIB))
    shown = text([*runs, hand_made.ruled_run(*faster, run_id="r3"), hand_made.ruled_run(*faster, run_id="r4")])
    assert "  1          1500  500        –    12.5 %" in shown
    assert "  block           1.300  1.333   64 MiB  12 MiB  0.500" in shown


def test_runs_of_two_machines_are_tables_apart_that_say_whose_they_are():
    run = hand_made.ruled_run(by_sm(200, 250, 300))
    other = replace(run, run_id="r2", environment={**run.environment, "card": Fact("beef", role="sensitive")})
    subtitles = [section.subtitle for section in workload_sections([run, other])]
    assert subtitles == ["seconds a load, on c0ffee", "seconds a load, on beef"]


def test_runs_without_such_cases_have_no_sections():
    assert workload_sections([hand_made.ruled_run(hand_made.copy_record())]) == ()


@pytest.mark.parametrize(
    "odd",
    [
        replace(RECORDS[0], case=replace(RECORDS[0].case, params={"bytes": "many"})),
        replace(RECORDS[-1], case=replace(RECORDS[-1].case, params={"m": "64"})),
        read(MIB, float("inf")),
        read(-1, 1e12),
        gemm(64, 64, 65, 0.0, 1.0),
        replace(images(1, 1000.0), case=replace(images(1, 1000.0).case, params={"batch": "many"})),
        step("block", 0.014, 8 * MIB),
    ],
)
def test_records_that_nobody_measured_so_break_nothing(odd):
    assert workload_sections([hand_made.ruled_run(odd)]) == ()


@pytest.mark.parametrize("format", ["text", "md"])
def test_show_prints_them_below_the_summary(tmp_path, capsys, format):
    path = tmp_path / "run-001.json"
    store.save(hand_made.ruled_run(*RECORDS), path)
    assert exit_status(["show", str(path), "--format", format]) == 0
    assert "one off aligned shapes" in capsys.readouterr().out
