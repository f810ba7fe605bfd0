"""Known noise: figures that can be checked in the head, blocks and cards, what is left out, hostile files, the screen."""

# ruff: noqa: E501 - a row of a table is one line

import json
import math
import random
import statistics
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from harness import noise_files, store
from harness.cli.app import exit_status
from harness.errors import ExitCode, HarnessError
from harness.model import Fact, Metric, Record, Ruler, Run, Samples, Telemetry, Worker
from harness.noise import NoiseFile, conditions_of, known_spread
from harness.noise_finding import cut_blocks, noise_of
from harness.statistics import detectable_difference
from tests import hand_made

ROOT = Path(__file__).parents[1]
COPY = hand_made.COPY.key
GEMM = hand_made.GEMM.key


def timed(
    seconds: float,
    case: Any = hand_made.COPY,
    family: str = "memory",
    samples: Sequence[float] = (),
    joules: float | None = 2e-10,
    cycles: float | None = None,
    starved: int = 0,
    **telemetry: Any,
) -> Record:
    """A case whose launches take so many seconds each; its samples are equal unless they are given."""
    data = tuple(samples) or (seconds, seconds)
    return Record(
        case.key,
        family,
        case,
        "measured",
        samples=Samples(data, 10, seconds * 10 * len(data), "events", "stream", starved),
        telemetry=Telemetry(**{"settled": True, "limited_by": "none", **telemetry}),
        metrics=(
            Metric("energy_per_work", joules, "J/B", reason="" if joules else "no power"),
            Metric("cycles", cycles, "cycles", reason="" if cycles else "copies fill no SM"),
        ),
    )


def run_at(minute: float, *records: Record, card: str | None = "c0ffee", **facts: Any) -> Run:
    """A run that began at that minute of a day, on that card, in an environment where these facts differ."""
    second = round(60 * minute)
    created_at = f"2026-01-02T{second // 3600:02d}:{second // 60 % 60:02d}:{second % 60:02d}Z"
    made = hand_made.gpu_run(*records, run_id=f"{created_at}-{card}", created_at=created_at)
    environment = {**made.environment, "card": Fact(card), "boot": Fact("b1")}
    return replace(
        made, environment=environment | {name: Fact(value) for name, value in facts.items()}, site_key="site"
    )


def set_of(seconds: Sequence[float], first_minute: float = 0.0, **facts: Any) -> list[Run]:
    """A set of one copy, a run a minute."""
    return [run_at(first_minute + number, timed(value), **facts) for number, value in enumerate(seconds)]


def only_case(noise: NoiseFile) -> Any:
    (group,) = noise.groups
    (case,) = group.cases
    return case


def only_card(noise: NoiseFile) -> Any:
    (card,) = only_case(noise).cards
    return card


# Figures.


def test_run_to_run_spread_is_that_of_the_logarithm_of_time():
    card = only_card(noise_of(set_of([1.0, 1.1, 0.9])))
    expected = statistics.stdev([0.0, math.log(1.1), math.log(0.9)])
    assert card.runs == 3
    assert card.time.sd_ratio == pytest.approx(expected, rel=1e-5)
    assert card.time.sd_ratio == pytest.approx(0.1, rel=0.01)
    assert card.seconds_per_launch == pytest.approx((1.0 * 1.1 * 0.9) ** (1 / 3), rel=1e-5)
    # Chi-square with two degrees of freedom: 0.0506 and 7.378.
    assert card.time.low_ratio == pytest.approx(expected * math.sqrt(2 / 7.378), rel=1e-3)
    assert card.time.high_ratio == pytest.approx(expected * math.sqrt(2 / 0.05064), rel=1e-3)
    assert card.detectable.keys() == {"3", "5", "10", "20"}
    assert card.detectable["5"] == pytest.approx(detectable_difference(expected, 5), rel=1e-5)


def test_total_time_counts_and_not_the_median_of_samples():
    """One slow sample in three is a third of the window, which a median would not see."""
    runs = [run_at(n, timed(slow, samples=(0.5, 0.5, 3 * slow - 1.0))) for n, slow in enumerate([1.0, 1.1, 0.9])]
    assert only_card(noise_of(runs)).time.sd_ratio == pytest.approx(0.1, rel=0.01)


def test_samples_inside_runs_are_another_spread():
    runs = [run_at(n, timed(1.0, samples=[0.9, 1.1] * 10)) for n in range(3)]
    card = only_card(noise_of(runs))
    assert card.time.sd_ratio == 0.0
    assert card.within.samples == 60
    assert card.within.sd_ratio == pytest.approx(0.103, rel=0.01)
    assert card.within.lag1 == pytest.approx(-0.95)
    # Between two values the median is their mean by rank: √(0.9 · 1.1) on the logarithms' scale.
    assert card.within.p99_ratio == pytest.approx(1.1, rel=0.01)


def test_one_sample_a_run_has_no_spread_inside():
    card = only_card(noise_of([run_at(n, timed(1.0 + n, samples=(1.0 + n,))) for n in range(3)]))
    assert (card.within.sd_ratio, card.within.lag1, card.within.reason) == (None, None, "one sample a run")


def test_drift_is_per_hour_and_last_block_against_first():
    # 1 % slower every minute is 60 % of L an hour, without a residual.
    card = only_card(noise_of(set_of([math.exp(0.01 * n) for n in range(5)])))
    assert card.course.drift_per_h == pytest.approx(0.6)
    assert card.course.drift_error_per_h == pytest.approx(0.0, abs=1e-6)
    assert card.course.lag1 == pytest.approx(0.4)


def test_the_case_s_own_start_counts_for_drift():
    started = [f"2026-01-02T00:{minute:02d}:00Z" for minute in (10, 20, 40)]
    runs = [
        run_at(n, replace(timed(math.exp(value)), started_at=moment))
        for n, (value, moment) in enumerate(zip((0.1, 0.2, 0.4), started, strict=True))
    ]
    assert only_card(noise_of(runs)).course.drift_per_h == pytest.approx(0.6)


def test_runs_that_began_at_one_time_have_no_drift():
    runs = [replace(run, created_at="2026-01-02T00:00:00Z") for run in set_of([1.0, 1.1, 0.9])]
    course = only_card(noise_of(runs)).course
    assert (course.drift_per_h, course.reason) == (None, "all runs began at one time")


def test_energy_and_cycles_have_their_own_spread():
    made = [(1.0, 100.0), (1.1, None), (0.9, 101.0)]
    runs = [run_at(n, timed(1.0, joules=joules, cycles=cycles)) for n, (joules, cycles) in enumerate(made)]
    card = only_card(noise_of(runs))
    assert card.energy.sd_ratio == pytest.approx(0.1, rel=0.01)
    assert (card.cycles.sd_ratio, card.cycles.runs) == (None, 2)
    assert card.cycles.reason == "only 2 of 3 runs know it: copies fill no SM"


def test_simulated_noise_is_found_again():
    rng = np.random.default_rng(3)
    runs = [run_at(n, timed(math.exp(log))) for n, log in enumerate(rng.normal(0, 0.003, 200))]
    card = only_card(noise_of(runs))
    assert card.time.low_ratio < 0.003 < card.time.high_ratio
    assert card.time.sd_ratio == pytest.approx(0.003, rel=0.1)
    assert abs(card.course.drift_per_h) < 2 * card.course.drift_error_per_h
    assert abs(card.course.lag1) < 0.15


def test_a_family_s_worst_and_median_are_named():
    cases = [hand_made.gemm_case(n=n) for n in (1, 2, 3)]
    runs = [
        run_at(
            minute,
            *(timed(math.exp(spread * sign), case, "gemm") for case, spread in zip(cases, (3, 1, 2), strict=True)),
        )
        for minute, sign in enumerate((0.0, 0.1, -0.1))
    ]
    (group,) = noise_of(runs).groups
    (family,) = group.families
    assert (family.family, family.cases, family.worst_key) == ("gemm", 3, cases[0].key)
    assert (family.median_sd_ratio, family.worst_sd_ratio) == pytest.approx((0.2, 0.3))


# Blocks.


@pytest.mark.parametrize(
    ("starts", "blocks"),
    [
        ([], []),
        ([5.0], [0]),
        ([0.0, 500.0], [0, 0]),
        ([0, 1, 2, 3, 4], [0] * 5),
        ([0, 1, 2, 5, 6], [0] * 5),
        ([0, 1, 2, 5.1, 6], [0, 0, 0, 1, 1]),
        ([0, 1, 61, 62, 122, 123], [0, 0, 1, 1, 2, 2]),
        ([0, 60, 120, 180], [0] * 4),
    ],
)
def test_a_gap_of_more_than_three_median_ones_begins_a_block(starts, blocks):
    assert cut_blocks(starts) == blocks


def test_blocks_part_what_is_fast_from_what_is_slow():
    # Within blocks ± 0.1 around 0 and around 1: mean square 0.02, between them (1 - 0.02) / 2.
    values = [math.exp(log) for log in (0.1, -0.1, 1.1, 0.9)]
    runs = [run_at(minute, timed(value)) for minute, value in zip((0, 1, 61, 62), values, strict=True)]
    blocks = only_card(noise_of(runs)).blocks
    assert blocks.count == 2
    assert blocks.within_sd_ratio == pytest.approx(math.sqrt(0.02), rel=1e-5)
    assert blocks.between_sd_ratio == pytest.approx(0.7, rel=1e-5)
    assert blocks.last_to_first == pytest.approx(1.0, rel=1e-5)


def test_another_set_is_another_block_however_close():
    first, second = set_of([1.0, 1.1, 0.9]), set_of([1.0, 1.1, 0.9], first_minute=3)
    assert only_card(noise_of(first + second)).blocks.count == 1
    assert only_card(noise_of(first, second)).blocks.count == 2
    assert noise_of(first, second).sets == 2


def test_another_boot_is_another_block():
    card = only_card(noise_of(set_of([1.0, 1.1]) + set_of([0.9, 1.0], first_minute=2, boot="b2")))
    assert (card.blocks.count, card.boots) == (2, 2)


def test_one_block_has_nothing_between_and_single_runs_nothing_within():
    blocks = only_card(noise_of(set_of([1.0, 1.1, 0.9]))).blocks
    assert (blocks.between_sd_ratio, blocks.last_to_first, blocks.reason) == (None, None, "one block of time")
    assert blocks.within_sd_ratio == pytest.approx(0.1, rel=0.01)
    alone = only_card(noise_of(*([run] for run in set_of([1.0, 1.1, 0.9])))).blocks
    assert (alone.within_sd_ratio, alone.between_sd_ratio, alone.reason) == (None, None, "no block has two runs")


def test_the_order_in_which_sets_are_named_changes_nothing():
    first, second = set_of([1.0, 1.1, 0.9]), set_of([1.3, 1.2, 1.4], first_minute=60)
    assert noise_of(first, second) == noise_of(second[::-1], first[::-1])
    assert only_card(noise_of(second, first)).blocks.last_to_first > 0


# Cards and conditions.


def test_cards_are_pooled_around_their_own_means():
    noise = noise_of(set_of([1.0, 1.1, 0.9]), set_of([2.0, 2.2, 1.8], card="decaf"))
    case = only_case(noise)
    assert [card.card for card in case.cards] == ["c0ffee", "decaf"]
    assert case.time.sd_ratio == pytest.approx(0.1, rel=0.01)
    assert (case.time.runs, case.time.freedom) == (6, 4)
    assert case.card_to_card.cards == 2
    assert case.card_to_card.largest_difference == pytest.approx(math.log(2), rel=1e-5)
    assert case.card_to_card.sd_ratio == pytest.approx(math.log(2) / math.sqrt(2), rel=1e-5)


def test_one_card_has_no_spread_over_cards():
    spread = only_case(noise_of(set_of([1.0, 1.1, 0.9]))).card_to_card
    assert (spread.sd_ratio, spread.largest_difference, spread.reason) == (None, None, "one card")


def test_hashes_of_two_sites_are_no_two_cards():
    other = [replace(run, site_key="elsewhere") for run in set_of([2.0, 2.2, 1.8], card="decaf")]
    spread = only_case(noise_of(set_of([1.0, 1.1, 0.9]), other)).card_to_card
    assert (spread.sd_ratio, spread.reason) == (None, "hashes of different sites do not tell cards apart")


@pytest.mark.parametrize(
    "differ",
    [
        *(
            lambda run, name=name: replace(run, environment={**run.environment, name: Fact("other")})
            for name in ("driver", "cuda_runtime", "torch", "triton", "nccl")
        ),
        lambda run: replace(run, environment={**run.environment, "power_limit_w": Fact(600)}),
        lambda run: replace(run, environment={**run.environment, "ecc": Fact(False)}),
        lambda run: replace(run, order=replace(run.order, declare="clocks=locked:1410")),
        lambda run: replace(run, suite_version="0.2.0"),
        lambda run: replace(run, schema_version=2),
    ],
)
def test_other_conditions_are_never_pooled(differ: Callable[[Run], Run]):
    here = set_of([1.0, 1.1, 0.9])
    there = [differ(run) for run in set_of([5.0, 5.5, 4.5], first_minute=3)]
    noise = noise_of(here, there)
    assert len(noise.groups) == 2
    assert [only_card(replace(noise, groups=(group,))).runs for group in noise.groups] == [3, 3]
    assert known_spread(noise, COPY).reason == "the noise of this case is known under 2 conditions or sources, not one"
    found = known_spread(noise, COPY, conditions=conditions_of(there[0]))
    assert found.sd_ratio == pytest.approx(0.1, rel=0.01)


def test_another_source_of_the_family_is_never_pooled():
    here, there = set_of([1.0, 1.1, 0.9]), set_of([5.0, 5.5, 4.5], first_minute=3)
    changed = [replace(run, source_hash={"memory": "new", "gemm": "same"}) for run in there]
    (group,) = noise_of(here, changed).groups
    assert [(case.source, case.time.runs) for case in group.cases] == [("", 3), ("new", 3)]
    elsewhere = [replace(run, source_hash={"gemm": "new"}) for run in there]
    assert only_card(noise_of(here, elsewhere)).runs == 6


# What is left out, and what is counted.


def test_unsettled_runs_and_those_without_a_true_ruler_are_left_out_and_counted():
    runs = set_of([1.0, 1.1, 0.9])
    unsettled = run_at(3, timed(9.0, settled=False))
    off = Worker(0, "", ruler=Ruler("off"))
    untrue = [replace(run_at(n, timed(9.0, settled=n == 4)), workers=(off,)) for n in (4, 5)]
    card = only_card(noise_of([*runs, unsettled, *untrue]))
    assert card.runs == 3
    assert card.time.sd_ratio == pytest.approx(0.1, rel=0.01)
    assert (card.counts.unsettled, card.counts.ruler_off) == (1, 2)


@pytest.mark.parametrize("status", ["ok", "unknown", "information"])
def test_only_a_ruler_that_is_off_leaves_a_run_out(status: Any):
    runs = [replace(run, workers=(Worker(0, "", ruler=Ruler(status)),)) for run in set_of([1.0, 1.1, 0.9])]
    assert only_card(noise_of(runs)).runs == 3


def test_what_nobody_judged_is_not_unsettled():
    runs = [run_at(n, timed(1.0 + n, settled=None)) for n in range(3)]
    assert only_card(noise_of(runs)).runs == 3


def test_throttled_and_starved_runs_stay_and_are_counted():
    odd = [timed(1.0, limited_by="thermal"), timed(1.1, limited_by="brake", starved=1), timed(0.9, limited_by="power")]
    card = only_card(noise_of([run_at(n, record) for n, record in enumerate(odd)]))
    assert card.runs == 3
    assert (card.counts.throttled, card.counts.starved) == (2, 1)


def test_runs_that_name_no_card_are_left_out_and_counted():
    noise = noise_of(set_of([1.0, 1.1, 0.9]) + set_of([5.0, 6.0, 7.0], first_minute=3, card=None))
    assert (only_card(noise).runs, noise.without_card, len(noise.run_ids)) == (3, 3, 3)


def test_a_case_with_two_runs_is_listed_and_does_not_stop_the_others():
    runs = [run_at(n, timed(1.0 + n), timed(1.0, hand_made.GEMM, "gemm", settled=n > 0)) for n in range(3)]
    (group,) = noise_of(runs).groups
    assert [case.key for case in group.cases] == [COPY]
    (few,) = group.too_few
    assert (few.key, few.card, few.runs, few.counts.unsettled) == (GEMM, "c0ffee", 2, 1)


@pytest.mark.parametrize(
    ("runs", "words"),
    [
        (set_of([1.0, 1.1]), "of 2 there are at most 2. Measure more in one set: `make bench PROFILE=quick RUNS=10`."),
        (set_of([1.0, 1.1, 0.9], card=None), "of 3 there are at most 0, 3 without a card's hash."),
        (
            [run_at(n, timed(1.0, settled=n > 1)) for n in range(4)],
            "of 4 there are at most 2, 2 unsettled.",
        ),
        (set_of([1.0, 1.1]) + set_of([1.0, 1.1], card="decaf"), "of 4 there are at most 2."),
    ],
)
def test_too_few_runs_are_refused_with_how_many_there_are(runs: list[Run], words: str):
    with pytest.raises(HarnessError, match="a spread needs 3 runs of a case on one card") as error:
        noise_of(runs)
    assert words in str(error.value)


def test_two_gpu_models_are_two_files():
    other = [replace(run, device=replace(run.device, name="NVIDIA Other")) for run in set_of([1.0, 1.1, 0.9])]
    with pytest.raises(HarnessError, match="these are runs of 2"):
        noise_of(set_of([1.0, 1.1, 0.9]), other)


@pytest.mark.parametrize("moment", ["yesterday", "", "2026-13-01T00:00:00Z", "0001-01-01T00:00:00+23:59"])
def test_a_run_of_no_time_is_refused(moment: str):
    runs = [*set_of([1.0, 1.1]), replace(run_at(2, timed(0.9)), created_at=moment)]
    with pytest.raises(HarnessError, match="which is no time"):
        noise_of(runs)


@pytest.mark.parametrize("seconds", [1e-200, 1e200])
def test_times_that_cannot_be_are_refused(seconds: float):
    with pytest.raises(HarnessError, match=r"cannot be\. Leave that run out"):
        noise_of([run_at(n, timed(seconds)) for n in range(3)])


# Looking it up.


def test_a_lookup_tells_the_spread_its_runs_and_its_card():
    noise = noise_of(set_of([1.0, 1.1, 0.9]))
    found = known_spread(noise, COPY)
    assert found.sd_ratio == pytest.approx(0.1, rel=0.01)
    assert (found.runs, found.freedom, found.cards, found.card, found.reason) == (3, 2, 1, "c0ffee", "")
    assert known_spread(noise, COPY, "c0ffee") == found


def test_a_lookup_over_cards_pools_them_and_one_card_is_never_another():
    noise = noise_of(set_of([1.0, 1.1, 0.9]), set_of([1.0, 1.0, 1.0], card="decaf"))
    assert known_spread(noise, COPY).sd_ratio == pytest.approx(0.1 / math.sqrt(2), rel=0.01)
    assert known_spread(noise, COPY).card == ""
    assert known_spread(noise, COPY, "decaf").sd_ratio == 0.0
    unknown = known_spread(noise, COPY, "beef")
    assert (unknown.sd_ratio, unknown.reason) == (
        None,
        "the noise of this case is known for other cards (2), not for this one",
    )


def test_a_lookup_says_why_there_is_nothing():
    noise = noise_of(set_of([1.0, 1.1, 0.9]))
    elsewhere = replace(conditions_of(run_at(0, timed(1.0))), driver="999")
    assert known_spread(None, COPY).reason == "no noise was measured for this GPU: see `ofpeak noise`"
    assert known_spread(noise, GEMM).reason == "the known noise of 'NVIDIA Test' does not hold this case"
    assert known_spread(noise, COPY, conditions=elsewhere).reason == (
        "the known noise of 'NVIDIA Test' was measured under other conditions"
    )


# Files.


def test_a_file_holds_what_was_found(tmp_path: Path):
    noise = noise_of(set_of([1.0, 1.1, 0.9]), set_of([2.0, 2.2, 1.8], card="decaf"))
    noise_files.save(noise, tmp_path / "deep" / "n.json")
    assert noise_files.load(tmp_path / "deep" / "n.json") == noise
    text = noise_files.to_text(noise)
    assert text == (tmp_path / "deep" / "n.json").read_text()
    assert text.isascii()


def test_a_file_names_no_folder_and_every_run(tmp_path: Path):
    for number, run in enumerate(set_of([1.0, 1.1, 0.9])):
        store.save(run, tmp_path / f"{number}.json")
    assert exit_status(["noise", str(tmp_path), "-o", str(tmp_path / "out" / "n.json")]) == ExitCode.DONE
    text = (tmp_path / "out" / "n.json").read_text()
    assert tmp_path.name not in text
    assert json.loads(text)["run_ids"] == [f"2026-01-02T00:0{n}:00Z-c0ffee" for n in range(3)]
    assert json.loads(text)["last_created_at"] == "2026-01-02T00:02:00Z"


def test_unknown_conditions_stay_unknown(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    bare = [replace(run, environment={"card": Fact("c0ffee")}) for run in set_of([1.0, 1.1, 0.9])]
    assert exit_status(["noise", str(write_set(tmp_path / "set", bare)), "-o", str(tmp_path / "n.json")]) == 0
    assert "driver –, CUDA –, torch –, triton –, limit –, ECC –, ofpeak 0.1.0" in capsys.readouterr().out
    (group,) = noise_files.load(tmp_path / "n.json").groups
    assert (group.conditions.driver, group.conditions.power_limit_w, group.conditions.ecc) == ("", None, None)
    assert group.conditions == conditions_of(store.load(tmp_path / "set" / "run-001.json"))


def test_noise_is_found_by_the_gpu_s_name(tmp_path: Path):
    noise = noise_of(set_of([1.0, 1.1, 0.9]))
    noise_files.save(noise, tmp_path / noise_files.file_name("NVIDIA Test"))
    assert (tmp_path / "nvidia-test.json").is_file()
    assert noise_files.find_noise("NVIDIA Test", tmp_path) == noise
    assert noise_files.find_noise("NVIDIA Other", tmp_path) is None
    with pytest.raises(HarnessError, match="holds the noise of 'NVIDIA Test', not of 'NVIDIA-Test'"):
        noise_files.find_noise("NVIDIA-Test", tmp_path)


@pytest.mark.parametrize(
    ("gpu", "name"),
    [("NVIDIA H200", "nvidia-h200.json"), ("../../etc/passwd", "etc-passwd.json"), ("x" * 500, "x" * 80 + ".json")],
)
def test_no_name_of_a_gpu_leaves_the_folder(gpu: str, name: str):
    assert noise_files.file_name(gpu) == name


def test_a_gpu_without_a_letter_makes_no_file_name():
    with pytest.raises(HarnessError, match="makes no file name"):
        noise_files.file_name("…")


def damaged(*path: Any, value: Any) -> bytes:
    """A noise file in which the value at that place is another."""
    document = json.loads(noise_files.to_text(noise_of(set_of([1.0, 1.1, 0.9]))))
    place = document
    for step in path[:-1]:
        place = place[step]
    place[path[-1]] = value
    return json.dumps(document).encode()


CASE = ("groups", 0, "cases", 0)
CARD = (*CASE, "cards", 0)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "is not a whole JSON file"),
        (b"{", "is not a whole JSON file"),
        (b"\xff\xfe{}", "is not a whole JSON file"),
        (b"[" * 100_000, "is not a whole JSON file"),
        (b"9" * 10_000, "is not a whole JSON file"),
        (b"null", "has no noise_schema_version"),
        (b"[]", "has no noise_schema_version"),
        (b'{"benchmarks": []}', "has no noise_schema_version"),
        (damaged("noise_schema_version", value=True), "has no noise_schema_version"),
        (damaged("noise_schema_version", value=99), "has schema 99, this ofpeak reads up to 1"),
        (damaged("gpu", value=3), "gpu: Input should be a valid string"),
        (damaged("more", value=3), "more: Unexpected keyword argument"),
        (damaged(*CARD, "time", "sd_ratio", value=float("nan")), "sd_ratio: Input should be a finite number"),
        (damaged(*CARD, "time", "sd_ratio", value=1e999), "sd_ratio: Input should be a finite number"),
        (damaged(*CARD, "time", "sd_ratio", value="0.1"), "sd_ratio: Input should be a valid number"),
        (damaged(*CARD, "time", "sd_ratio", value=-0.1), "a spread of -0.1 (0.0522623 to 0.630845) over 3 runs"),
        (damaged(*CARD, "time", "sd_ratio", value=None), "a spread is unknown without a reason"),
        (damaged(*CARD, "time", "freedom", value=10**30), "a spread of 0.100377"),
        (damaged(*CARD, "runs", value=2), "2 runs of a card make no spread"),
        (damaged(*CARD, "seconds_per_launch", value=0.0), "a launch of 0.0 s cannot be"),
        (damaged(*CARD, "detectable", "5", value=-1.0), "a detectable difference is negative"),
        (damaged(*CARD, "counts", "starved", value=-1), "a count is negative"),
        (damaged(*CASE, "cards", value=[]), "it has no card, or one twice"),
        (damaged(*CASE, "time", value={"sd_ratio": None, "runs": 0, "reason": "x"}), "its spread is unknown"),
        (
            damaged("groups", 0, "cases", value=[json.loads(damaged("x", value=0))["groups"][0]["cases"][0]] * 2),
            "is there twice",
        ),
        (damaged(*CASE, "key", value="\x1b[31m\nred"), ""),
    ],
)
def test_a_hostile_file_is_one_line(tmp_path: Path, content: bytes, words: str):
    path = tmp_path / "n.json"
    path.write_bytes(content)
    if not words:
        noise_files.load(path)
        return
    with pytest.raises(HarnessError) as error:
        noise_files.load(path)
    assert words in str(error.value)
    assert str(error.value).isprintable()


def test_a_file_cut_or_scrambled_anywhere_is_read_or_refused(tmp_path: Path):
    whole = noise_files.to_text(noise_of(set_of([1.0, 1.1, 0.9]))).encode()
    rng = random.Random(17)
    path = tmp_path / "n.json"
    for _ in range(300):
        at = rng.randrange(len(whole))
        path.write_bytes(whole[:at] + rng.choice([b"", b"-", b"9", b"null", b"\x00", b'"']) + whole[at + 1 :])
        try:
            noise_files.load(path)
        except HarnessError as error:
            assert str(error).isprintable()


def test_a_file_that_is_too_large_or_not_there_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(noise_files, "SIZE_LIMIT_BYTES", 10)
    path = tmp_path / "n.json"
    path.write_bytes(b" " * 11)
    with pytest.raises(HarnessError, match="is larger than"):
        noise_files.load(path)
    with pytest.raises(HarnessError, match="cannot read"):
        noise_files.load(tmp_path)
    with pytest.raises(HarnessError, match="cannot read"):
        noise_files.load(tmp_path / "none.json")


# The command.


def write_set(folder: Path, runs: Sequence[Run]) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for number, run in enumerate(runs, start=1):
        store.save(run, folder / f"run-{number:03d}.json")
    return folder


@pytest.fixture
def sets(tmp_path: Path) -> list[Path]:
    """Two cards: one with two blocks of a copy and a GEMM that settled twice only, one with a single block."""
    logs = (0.001, -0.001, 0.011, 0.009)
    first = [
        run_at(
            minute,
            timed(
                0.002 * math.exp(log),
                samples=[v * math.exp(log) for v in (0.0019, 0.0021)] * 4,
                starved=int(minute == 61),
            ),
            timed(0.1 * math.exp(log), hand_made.GEMM, "gemm", cycles=1e6 * math.exp(log), settled=minute < 60),
        )
        for minute, log in zip((0, 1, 61, 62), logs, strict=True)
    ]
    second = [
        run_at(minute, timed(0.00202 * math.exp(log), joules=None), card="decaf")
        for minute, log in enumerate((0.0, 0.001, -0.001))
    ]
    return [write_set(tmp_path / "first", first), write_set(tmp_path / "second", second)]


def test_the_screen(sets: list[Path], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("COLUMNS", "100")
    place = sets[0].parent / "noise.json"
    assert exit_status(["noise", *map(str, sets), "-o", str(place)]) == ExitCode.DONE
    out = capsys.readouterr().out
    assert max(len(line) for line in out.splitlines()[:-1]) <= 100
    assert out == SCREEN + f"noise file: {place}\n"


SCREEN = """\
noise of NVIDIA Test
  7 runs in 2 sets, 2026-01-02T00:00:00Z to 2026-01-02T01:02:00Z
  figures but p99 and lag 1 are in %: of the time a launch; for energy of its joules, for cycles of
    its cycles
  found by: the least slowdown that so many runs a side find in 80 % of comparisons, 5 % false
    alarms

conditions
  driver 580.1, CUDA 13.0, torch 2.13.0, triton 3.7.1, NCCL 2.28.9, limit 700 W, ECC on, ofpeak
    0.1.0, run schema 2
  2 cards; boots: at most 1 a card

memory  sd over runs, and the least slowdown that so many runs find
                        run to            95 %   in a  between  found by
  card    runs  blocks     run        interval  block   blocks  3 a side      5     10     20
copy/bytes=4294967296,impl=torch
  c0ffee     4       2   0.589  0.334 to 2.195  0.141    0.700     1.593  1.036  0.683  0.472
  decaf      3       1   0.100  0.052 to 0.628  0.100        –     0.271  0.176  0.116  0.080
  no figure between blocks (1 case): one block of time
  starved launch queue, in the figures: 1 run of copy/bytes=4294967296,impl=torch

memory, inside runs and over time
          sd in  p99 over   lag 1,  lag 1,    drift  ± its  last - first  energy  cycles
  card    a run    median  samples    runs  an hour  error         block      sd      sd
copy/bytes=4294967296,impl=torch
  c0ffee  5.350     1.050    -0.88    0.12    0.980  0.150         1.000   0.000       –
  decaf   0.000     1.000        –   -0.50   -3.000  5.196             –       –       –
  no figure for energy (1 case): no power
  no figure for cycles (1 case): copies fill no SM

run to run, by family
        cases  median  worst
memory      1   0.460  0.460
  worst of memory: copy/bytes=4294967296,impl=torch

card to card  means of a card's runs
           sd of     largest  run to
           cards  difference     run
copy/bytes=4294967296,impl=torch
  2 cards  0.350       0.495   0.460

too few runs for a spread
  2 runs of card c0ffee, 2 unsettled, left out (1 case): gemm/dtype=bf16,impl=torch,k=8192,m=8192,
    n=8192

"""


def test_many_cases_with_too_few_runs_are_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    few = [timed(1.0, hand_made.gemm_case(n=n), "gemm") for n in (1, 2, 3, 4)]
    runs = [run_at(n, timed(1.0 + n), *(few if n else ())) for n in range(3)]
    assert exit_status(["noise", str(write_set(tmp_path / "set", runs)), "-o", str(tmp_path / "n.json")]) == 0
    said = "2 runs of card c0ffee (4 cases): gemm/dtype=bf16,impl=torch,k=8192,m=8192,n=1|2|3|4\n"
    assert said in capsys.readouterr().out


def test_json_is_what_the_files_hold(sets: list[Path], capsys: pytest.CaptureFixture[str]):
    place = sets[0].parent / "noise.json"
    assert exit_status(["noise", *map(str, sets), "-o", str(place), "--format", "json"]) == ExitCode.DONE
    assert json.loads(capsys.readouterr().out) == [json.loads(place.read_text())]


def test_files_of_one_folder_are_one_set_and_the_output_is_the_same(sets: list[Path], tmp_path: Path):
    by_folder, by_file = tmp_path / "1.json", tmp_path / "2.json"
    assert exit_status(["noise", *map(str, sets), "-o", str(by_folder)]) == ExitCode.DONE
    files = [str(file) for folder in reversed(sets) for file in sorted(folder.iterdir(), reverse=True)]
    assert exit_status(["noise", *files, "-o", str(by_file)]) == ExitCode.DONE
    assert by_folder.read_bytes() == by_file.read_bytes()


@pytest.fixture
def other_model(tmp_path: Path) -> Path:
    """A set of a GPU model whose name would like to be more than a name."""
    runs = set_of([1.0, 1.1, 0.9], card="beef")
    return write_set(
        tmp_path / "other", [replace(r, device=replace(r.device, name="\x1b[31m../[bold]Other")) for r in runs]
    )


def test_every_gpu_model_has_its_file(
    sets: list[Path],
    other_model: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setattr(noise_files, "default_folder", lambda: tmp_path / "noise")
    assert exit_status(["noise", str(other_model), *map(str, sets)]) == ExitCode.DONE
    out = capsys.readouterr().out
    assert sorted(p.name for p in (tmp_path / "noise").iterdir()) == ["31m-bold-other.json", "nvidia-test.json"]
    assert "noise of \\x1b[31m../[bold]Other\n" in out
    assert "\x1b" not in out
    assert out.endswith(f"{tmp_path}/noise/31m-bold-other.json\nnoise file: {tmp_path}/noise/nvidia-test.json\n")


def test_one_output_holds_no_two_gpu_models(sets: list[Path], other_model: Path, capsys: pytest.CaptureFixture[str]):
    place = sets[0].parent / "noise.json"
    assert exit_status(["noise", str(sets[0]), str(other_model), "-o", str(place)]) == ExitCode.USAGE
    assert capsys.readouterr().err == ("ofpeak: -o names one file, and these are runs of 2 GPU models. Leave it out.\n")
    assert not place.exists()


def test_too_few_runs_write_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    folder = write_set(tmp_path / "set", set_of([1.0, 1.1]))
    assert exit_status(["noise", str(folder), "-o", str(tmp_path / "n.json")]) == ExitCode.USAGE
    assert capsys.readouterr().err == (
        "ofpeak: 'NVIDIA Test': a spread needs 3 runs of a case on one card under one set of conditions; of 2 there "
        "are at most 2. Measure more in one set: `make bench PROFILE=quick RUNS=10`.\n"
    )
    assert not (tmp_path / "n.json").exists()


@pytest.mark.parametrize("arguments", [["noise"], ["noise", "nowhere"], ["noise", "--format", "md", "nowhere"]])
def test_usage_is_exit_5(arguments: list[str], capsys: pytest.CaptureFixture[str]):
    assert exit_status(arguments) == ExitCode.USAGE
    assert capsys.readouterr().err.count("\n") == 1


def test_the_documentation_s_table_is_what_is_computed():
    said = " | ".join(f"{detectable_difference(1.0, runs):.2f}" for runs in (3, 5, 10, 20))
    assert f"| least detectable difference, in sd | {said} |" in (ROOT / "docs" / "noise.md").read_text()


def test_the_committed_runs_have_the_noise_that_numpy_finds():
    """The run files read as JSON and nothing of ours between them and numpy."""
    (folder,) = (ROOT / "results" / "baselines" / "nvidia-h200").glob("*_quick")
    documents = [json.loads(file.read_text()) for file in sorted(folder.glob("*.json"))]
    noise = noise_of(store.load_set([folder]))
    (group,) = noise.groups
    assert len(group.cases) == len(documents[0]["benchmarks"])
    for case in group.cases:
        found = [b for d in documents for b in d["benchmarks"] if b["name"] == case.key]
        about = [(b["extra_info"]["samples"], b["stats"]["data"]) for b in found]
        logs = np.log([s["window_s"] / s["launches_per_sample"] / len(data) for s, data in about])
        deviations = np.concatenate([np.log(data) - np.log(data).mean() for _, data in about])
        freedom = len(deviations) - len(about)
        (card,) = case.cards
        assert card.time.sd_ratio == pytest.approx(logs.std(ddof=1), rel=1e-5)
        assert card.within.sd_ratio == pytest.approx(np.sqrt((deviations**2).sum() / freedom), rel=1e-5)
        assert (card.runs, card.boots, card.blocks.count) == (5, 1, 1)
