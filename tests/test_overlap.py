"""What was hidden and at which price, from records made by hand."""

import math
from dataclasses import replace

import pytest

from benches.bench_collectives import BUS_FACTORS
from harness import overlap
from harness.model import Metric, Telemetry
from harness.overlap import steps_of, turns_of
from kernels.overlap import MODES
from tests import hand_made_steps as made


def only(*records):
    (step,) = steps_of([made.run(*records)])
    return step


def test_figures_of_a_step_follow_from_its_four_times():
    step = only(*made.step())
    assert step.key == "gemm_all_reduce/bytes=2000000,dtype=bf16,impl=nccl,k=500,m=1000,n=1000,ranks=2"
    assert (step.flop, step.bus_bytes, step.flop_per_byte) == (1e9, 2e6, 500)
    told = {name: step.value(name) for name in step.metrics}
    assert told == pytest.approx(
        {
            "time.compute": 4e-3,
            "time.communicate": 2e-3,
            "time.serial": 6e-3,
            "time.overlap": 4.5e-3,
            "power.compute": 1400,
            "power.communicate": 600,
            "power.serial": 1100,
            "power.overlap": 1300,
            "rate.compute": 2.5e11,
            "rate.communicate": 1e9,
            "hidden_ratio": 0.75,
            "computing_ratio": 4 / 4.5,
            "balance_ratio": 0.5,
            "serial_ratio": 1.0,
            "gemm_slowdown_ratio": 0.1,
            "collective_slowdown_ratio": 0.25,
            "gemm_clock_ratio": 0.9,
        }
    )


def test_nothing_of_what_cannot_be_hidden_counts():
    """The shorter is what could be hidden: the GEMM, where the collective takes longer."""
    step = only(*made.step(compute=1e-3, communicate=4e-3, overlap=4.5e-3))
    assert step.value("hidden_ratio") == pytest.approx(0.5)
    assert step.value("balance_ratio") == pytest.approx(4.0)


@pytest.mark.parametrize(("overlap_s", "hidden"), [(4e-3, 1.0), (6e-3, 0.0), (7e-3, -0.5)])
def test_all_nothing_and_less_than_nothing_is_hidden(overlap_s, hidden):
    assert only(*made.step(overlap=overlap_s)).value("hidden_ratio") == pytest.approx(hidden)


def test_interval_is_what_the_times_leave():
    """h = (c + m - o) / m, m the shorter: c and o move it by 0.04 and 0.045 ms of 2 ms, m by 1 % of (c - o) / m."""
    hidden = only(*made.step()).metrics["hidden_ratio"]
    half = math.hypot(0.04 / 2, 0.045 / 2, 0.0025)
    assert (hidden.low, hidden.high) == pytest.approx((0.75 - half, 0.75 + half), rel=1e-3)
    computing = only(*made.step()).metrics["computing_ratio"]
    assert computing.high - computing.low == pytest.approx(2 * computing.value * math.hypot(0.01, 0.01), rel=1e-3)


def test_without_an_interval_of_every_time_there_is_none():
    compute, *others = made.step()
    bare = replace(compute, metrics=tuple(replace(m, low=None, high=None) for m in compute.metrics))
    hidden = only(bare, *others).metrics["hidden_ratio"]
    assert (hidden.value, hidden.low, hidden.high) == (pytest.approx(0.75), None, None)


def test_mode_that_was_not_asked_for_leaves_its_figures_unknown_with_the_reason():
    step = only(*(record for record in made.step() if record.case.params["mode"] != "communicate"))
    assert step.value("computing_ratio") is not None
    for name in ("hidden_ratio", "balance_ratio", "time.communicate", "collective_slowdown_ratio"):
        assert step.metrics[name].value is None
        assert step.metrics[name].reason == "mode=communicate was not asked for"


def test_mode_that_failed_is_told_with_what_went_wrong():
    *others, communicate = made.step()
    failed = replace(communicate, outcome="failed", reason="rank 1 of 2 died", samples=None, metrics=())
    assert only(*others, failed).metrics["hidden_ratio"].reason == "mode=communicate is failed: rank 1 of 2 died"


def test_clock_and_power_that_were_not_read_are_unknown_with_their_reason():
    compute, *others = made.step()
    why = {"sm_clock_mhz": "not read on a CPU", "power_w": "not read on a CPU"}
    power = Metric("power", None, "W", reason="not read on a CPU")
    blind = replace(
        compute, telemetry=Telemetry(missing=why), metrics=(*(m for m in compute.metrics if m.name != "power"), power)
    )
    step = only(blind, *others)
    for name in ("gemm_clock_ratio", "power.compute"):
        assert (step.metrics[name].value, step.metrics[name].reason) == (None, "not read on a CPU")


def test_parts_that_a_graph_does_not_tell_leave_the_slowdown_unknown():
    compute, beside, *others = made.step()
    whole = replace(beside, metrics=tuple(m for m in beside.metrics if not m.name.startswith("time.")))
    told = only(compute, whole, *others).metrics["gemm_slowdown_ratio"]
    assert (told.value, told.reason) == (None, "mode=overlap has no 'time.gemm'")


def test_over_runs_it_is_the_median_of_what_each_run_says():
    runs = [made.run(*made.step(overlap=s), run_id=f"r{s}") for s in (4.5e-3, 4.3e-3, 4.9e-3)]
    (step,) = steps_of(runs)
    hidden = step.metrics["hidden_ratio"]
    assert (step.runs, hidden.value) == (3, pytest.approx(0.75))
    assert hidden.low < 0.55
    assert hidden.high > 0.85
    (more,) = steps_of([*runs, made.run(*made.step(overlap=4.5e-3), run_id="r4")])
    between = more.metrics["hidden_ratio"]
    values = [0.75, 0.85, 0.55, 0.75]
    sd = math.sqrt(sum((v - 0.725) ** 2 for v in values) / 3)
    assert between.high == pytest.approx(0.725 + 3.1824 * sd / 2, rel=1e-4)


def test_run_that_lacks_a_mode_does_not_hide_what_the_others_know():
    whole, part = made.run(*made.step(), run_id="r1"), made.run(made.step()[0], run_id="r2")
    for runs in ([whole, part], [part, whole]):
        (step,) = steps_of(runs)
        assert step.value("hidden_ratio") == pytest.approx(0.75)


def test_series_turns_where_its_collective_takes_as_long_as_its_gemm():
    all_reduce, all_to_all = turns_of(steps_of([made.swept_run()]))
    assert all_reduce.series == "all_reduce bf16 nccl 2 ranks, 1000 rows"
    assert (all_reduce.low, all_reduce.high) == (500, 1500)
    assert all_reduce.flop_per_byte == pytest.approx(1000)
    # Half as many bytes cross for an all-to-all, so that k is half of the FLOP a byte.
    assert all_to_all.series == "all_to_all bf16 nccl 2 ranks, 2000 rows"
    assert all_to_all.flop_per_byte is None
    assert all_to_all.reason == "compute-bound from 1000 to 8000 FLOP a bus byte"


def test_steps_in_a_graph_are_a_series_of_their_own():
    records = made.step()
    in_graph = [
        replace(record, key=record.key.replace("m=", "launch=graph,m=", 1), case=case)
        for record in records
        for case in (replace(record.case, params={**record.case.params, "launch": "graph"}),)
    ]
    queued, graph = steps_of([made.run(*records, *in_graph)])
    assert (queued.series, graph.series) == (
        "all_reduce bf16 nccl 2 ranks, 1000 rows",
        "all_reduce bf16 nccl graph 2 ranks, 1000 rows",
    )


def balanced(*balances):
    """Steps at 500, 1000, 1500, ... FLOP a bus byte whose collective takes so many times as long as the GEMM."""
    records = []
    for number, balance in enumerate(balances, 1):
        records += made.step(1e-3, balance * 1e-3, 2e-3, k=500 * number)
    (turn,) = turns_of(steps_of([made.run(*records)]))
    return turn


@pytest.mark.parametrize(
    ("balances", "reason"),
    [
        ((2.0,), "communication-bound at 500 FLOP a bus byte"),
        ((2.0, 1.5), "communication-bound from 500 to 1000 FLOP a bus byte"),
        ((0.5, 0.25), "compute-bound from 500 to 1000 FLOP a bus byte"),
        ((2.0, 0.5, 2.0), "the longer of the two changes 2 times from 500 to 1500 FLOP a bus byte"),
        ((0.5, 2.0), "the collective gains on the GEMM with more to compute, from 500 to 1000 FLOP a bus byte"),
    ],
)
def test_where_nothing_turns_it_is_said_what_the_steps_are(balances, reason):
    turn = balanced(*balances)
    assert (turn.flop_per_byte, turn.reason) == (None, reason)


def test_turn_lies_on_the_line_between_its_neighbours():
    assert balanced(4.0, 0.25).flop_per_byte == pytest.approx(math.sqrt(500 * 1000))
    assert balanced(1.0, 0.5).reason == "compute-bound from 500 to 1000 FLOP a bus byte"


@pytest.mark.parametrize(
    "more", [{"ranks": 1}, {"m": 0}, {"k": "many"}, {"bytes": 2**70}, {"mode": "dance"}, {"n": True}]
)
def test_what_cannot_be_a_step_is_none(more):
    records = [
        replace(record, case=replace(record.case, params={**record.case.params, **more})) for record in made.step()
    ]
    assert steps_of([made.run(*records)]) == ()


def test_times_that_cannot_be_are_unknown():
    compute, *others = made.step()
    endless = replace(compute, metrics=tuple(replace(m, value=1e200) for m in compute.metrics))
    told = only(endless, *others).metrics["hidden_ratio"]
    assert (told.value, told.reason) == (None, "the 'time' of mode=compute cannot be")


@pytest.mark.parametrize("op", overlap.BUS_FACTORS)
def test_bus_factors_and_modes_are_the_same_where_they_are_measured(op):
    theirs = BUS_FACTORS[op.removeprefix("gemm_")]
    assert [overlap.BUS_FACTORS[op](n) for n in (2, 3, 8)] == [theirs(n) for n in (2, 3, 8)]
    assert overlap.MODES == MODES
