"""A slowdown that is asked for: how it is read, what it does to a launch, and that nobody can take it for real."""

import dataclasses
import itertools
from fractions import Fraction

import pytest

from harness.compare import set_of
from harness.errors import HarnessError
from harness.injection import read_injection, said_of
from harness.noise_finding import noise_of
from harness.probe.load import Injected
from harness.report.summary import summarize
from tests import hand_made


@pytest.mark.parametrize(
    ("text", "pattern", "extra"),
    [
        ("gemm=3%", "gemm", Fraction(3, 100)),
        ("gemm/dtype=bf16,impl=*=0.5%", "gemm/dtype=bf16,impl=*", Fraction(1, 200)),
        ("*=100%", "*", Fraction(1)),
    ],
)
def test_injection_names_cases_and_a_share(text, pattern, extra):
    assert dataclasses.astuple(read_injection(text)) == (pattern, extra)


@pytest.mark.parametrize("text", ["gemm", "gemm=3", "=3%", "gemm=0%", "gemm=-3%", "gemm=101%", "gemm=0.05%", "a b=3%"])
def test_injection_that_says_something_else_is_refused(text):
    with pytest.raises(HarnessError) as told:
        read_injection(text)
    assert str(told.value) == (
        f"cannot inject '{text}'. Name families or keys, and 0.1 to 100 % of more work: gemm=3%."
    )


def test_extra_launches_are_spread_evenly_and_exact():
    launched = []
    launch = Injected(launched.append, Fraction(3, 100))
    for i in range(1000):
        launch(i)
    twice = [i for i in range(1000) if launched.count(i) == 2]
    assert len(launched) == 1030
    assert {later - earlier for earlier, later in itertools.pairwise(twice)} == {33, 34}


def test_twice_the_work_is_every_launch_twice():
    launched = []
    launch = Injected(launched.append, Fraction(1))
    launch(7)
    assert launched == [7, 7]


def test_launch_with_a_clock_of_its_own_tells_both():
    launch = Injected(lambda i: 0.5, Fraction(1, 2))
    assert [launch(i) for i in range(4)] == [0.5, 1.0, 0.5, 1.0]


@pytest.mark.parametrize(
    ("percent", "launches", "whole"),
    [("3", 125, 100), ("3", 160, 200), ("3", 1, 100), ("0.5", 500, 400), ("5", 490, 480), ("100", 7, 7)],
)
def test_what_a_graph_repeats_holds_a_whole_number_of_extra_launches(percent, launches, whole):
    launch = Injected(list, Fraction(percent) / 100)
    assert launch.whole(launches) == whole
    assert (whole * launch.extra).denominator == 1


# --- marks -----------------------------------------------------------------------------------------------------------


def injected_run(**more):
    run = hand_made.gpu_run(hand_made.copy_record(), **more)
    return dataclasses.replace(run, order=dataclasses.replace(run.order, inject=("gemm=3%", "memory=2%")))


def test_header_of_a_summary_says_injected():
    (summary,) = summarize([injected_run()])
    assert dict(summary.header)["INJECTED"] == (
        "gemm=3% memory=2%: more was done than is counted; these are no figures of this device"
    )
    (clean,) = summarize([hand_made.gpu_run(hand_made.copy_record())])
    assert "INJECTED" not in dict(clean.header)
    assert said_of(()) == ""


def test_no_median_spans_injected_and_clean_runs():
    assert len(summarize([hand_made.gpu_run(hand_made.copy_record()), injected_run(run_id="r2")])) == 2


def test_comparison_knows_that_a_set_was_injected():
    assert set_of("candidate", [injected_run()]).inject == "gemm=3% memory=2%"
    assert set_of("baseline", [hand_made.gpu_run(hand_made.copy_record())]).inject == ""


def test_noise_is_never_taken_from_an_injected_run():
    with pytest.raises(HarnessError) as told:
        noise_of([injected_run()])
    assert str(told.value) == ("run r1 was slowed down on purpose (--inject gemm=3% memory=2%). Leave it out.")
