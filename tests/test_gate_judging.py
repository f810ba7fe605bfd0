"""The gate over whole runs: what may be compared, which runs count, tails, joules, cards and causes."""

import math
import random
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import pytest

from harness.errors import HarnessError
from harness.gate import sides
from harness.gate.comparable import parse_changed
from harness.gate.policy import DEFAULT_FILE, load_policy, parse_percent
from harness.gate.rules import LOOK_ALPHA
from harness.model import Fact, Run, Samples
from harness.report.gate_line import verdict_line
from tests import hand_made
from tests import hand_made_gates as made
from tests.hand_made_gates import COPY, GEMM, NEW, PING, READ, outcome_of, result_of, side, verdicts

# Which cases


def test_only_the_named_cases_are_judged_and_the_verdict_says_how_many_were_not():
    slower = {GEMM.key: 0.05}
    assert outcome_of(side("a"), side("b", slower=slower)).verdicts == ("regression",)
    outcome = outcome_of(side("a"), side("b", slower=slower), only=("memory", PING.key))
    assert outcome.verdicts == ("pass",)
    assert sorted(result.key for result in outcome.cases) == sorted((COPY.key, PING.key, READ.key))
    assert f"3 cases of --only memory {PING.key} (1 not looked at)" in verdict_line(outcome)
    assert "--only" not in verdict_line(outcome_of(side("a"), side("b")))


def test_only_that_names_nothing_measured_is_refused():
    with pytest.raises(HarnessError, match="no measured case that --only gem names"):
        outcome_of(side("a"), side("b"), only=("gem",))


# Comparable


def with_facts(**values: Any) -> Mapping[str, Fact]:
    return {**NEW, **{name: Fact(value) for name, value in values.items()}}


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("torch", "2.14"),
        ("cuda_runtime", "13.1"),
        ("power_limit_w", 650),
        ("ecc", False),
        ("env.CUDA_LAUNCH_BLOCKING", "1"),
    ],
)
def test_an_undeclared_difference_is_not_comparable(name: str, value: Any):
    outcome = outcome_of(side("a"), side("b", with_facts(**{name: value})))
    assert outcome.verdicts == ("not comparable",)
    assert [change.name for change in outcome.comparability.undeclared["all"]] == [name]


def test_unknown_is_not_equal():
    """Neither to a figure, nor to another unknown where the fact decides."""
    for before in (made.OLD, {**made.OLD, "power_limit_w": Fact(None, "no permission")}):
        outcome = outcome_of(side("a", before), side("b", {**NEW, "power_limit_w": Fact(None, "no permission")}))
        assert outcome.verdicts == ("not comparable",)


def test_what_the_card_says_it_does_not_have_is_known():
    none = {"power_limit_w": Fact(None, "Not Supported")}
    assert outcome_of(side("a", {**made.OLD, **none}), side("b", {**NEW, **none})).verdicts == ("pass",)


def test_a_declared_change_is_compared():
    both = with_facts(torch="2.14", nccl="2.30")
    assert outcome_of(side("a"), side("b", both), changed=("driver", "torch", "nccl")).verdicts == ("pass",)


def test_what_the_driver_offers_is_a_finding():
    old = {**made.OLD, "max_sm_clock_mhz": Fact(1980), "memory_bus_bits": Fact(6016)}
    outcome = outcome_of(side("a", old), side("b", with_facts(max_sm_clock_mhz=1965, memory_bus_bits=6144)))
    assert outcome.verdicts == ("pass",)
    assert outcome.findings == (
        "came with the driver: memory_bus_bits 6016 -> 6144",
        "came with the driver: max_sm_clock_mhz 1980 -> 1965",
    )


def test_a_limit_that_follows_the_drivers_default_is_a_finding_and_one_that_somebody_set_is_not():
    followed = outcome_of(side("a"), side("b", with_facts(power_limit_w=650, power_limit_default_w=650)))
    assert followed.verdicts == ("pass",)
    assert outcome_of(side("a"), side("b", with_facts(power_limit_w=650))).verdicts == ("not comparable",)


def test_a_kernels_patch_level_concerns_latencies_only():
    found = verdicts(outcome_of(side("a"), side("b", with_facts(kernel="6.8.0-50"))))
    assert found[PING.key] == "not comparable"
    assert found[GEMM.key] == "pass"


@pytest.mark.parametrize(
    ("name", "value"), [("env.NCCL_NVLS_ENABLE", "0"), ("env.NCCL_ALGO", "Ring"), ("nccl", "2.30")]
)
def test_what_nccl_is_told_concerns_cases_between_gpus_whatever_their_family(name: str, value: str):
    """The settings' sweep was gated across NVLS on and off, because only one family's name was looked at."""
    ring = replace(READ, op="all_reduce", params={"bytes": 2**32, "ranks": 2})
    cases = [(ring if case is READ else case, "nccl_sweep" if case is READ else family) for case, family in made.CASES]
    sources = {**made.SOURCES, "nccl_sweep": "dddd"}
    made_sides = [
        [replace(run, source_hash=sources) for run in side(label, facts, cases=cases)]
        for label, facts in (("a", made.OLD), ("b", with_facts(**{name: value})))
    ]
    found = verdicts(outcome_of(*made_sides))
    assert (found[ring.key], found[COPY.key], found[GEMM.key]) == ("not comparable", "pass", "pass")


def test_other_hosts_concern_what_runs_between_gpus_only():
    cases = [(PING, "collectives"), (GEMM, "gemm")]
    sources = {**made.SOURCES, "collectives": "dddd"}
    facts = [
        {**of, "hosts.count": Fact(2), "hosts.1.cards": Fact(cards), "hosts.1.boot": Fact(cards, role="informative")}
        for of, cards in ((made.OLD, "c2 c3"), (NEW, "c4 c5"))
    ]
    sides = [side(boot, of, cases=cases) for boot, of in zip("ab", facts, strict=True)]
    outcome = outcome_of(*([replace(run, source_hash=sources) for run in runs] for runs in sides))
    found = verdicts(outcome)
    assert (found[PING.key], found[GEMM.key]) == ("not comparable", "pass")
    assert [change.name for change in outcome.comparability.undeclared["links"]] == ["hosts.1.cards"]


def test_another_source_concerns_its_family_only():
    candidate = [replace(run, source_hash={**made.SOURCES, "gemm": "dddd"}) for run in side("b", NEW)]
    found = verdicts(outcome_of(side("a"), candidate))
    assert (found[GEMM.key], found[COPY.key]) == ("not comparable", "pass")


def test_a_family_without_a_known_source_is_not_comparable():
    sides = [[replace(run, source_hash={}) for run in side(*of)] for of in (("a",), ("b", NEW))]
    assert set(verdicts(outcome_of(*sides)).values()) == {"not comparable"}


def test_a_key_that_means_other_work_is_not_comparable():
    other = replace(READ, work=(replace(READ.work[0], unit="FLOP"),))
    cases = [(other if case is READ else case, family) for case, family in made.CASES]
    result = result_of(outcome_of(side("a"), side("b", NEW, cases=cases)), READ.key)
    assert result.verdict == "not comparable"
    assert result.notes == ("work throughput of 4e+09 B -> throughput of 4e+09 FLOP",)


@pytest.mark.parametrize("text", ["", " , ", "drivers", "env"])
def test_a_change_that_nobody_knows_is_refused(text: str):
    with pytest.raises(HarnessError, match="--changed"):
        parse_changed(text)


def test_a_side_that_mixes_what_is_declared_as_changed_is_refused():
    """A baseline of both versions of NCCL passed: what counts for some cases only was not looked at once declared."""
    old, new = ({**made.OLD, "nccl": Fact(version)} for version in ("2.27", "2.28"))
    mixed = [*side("a", old), *side("x", new)]
    with pytest.raises(HarnessError, match=r"the baseline mixes runs of several environments: nccl 2\.27 / 2\.28"):
        outcome_of(mixed, side("b", new), changed=("nccl",))


# Cards


def test_a_change_on_some_of_the_cards_only_is_refused():
    """A card that was upgraded before its baseline halved what the others lost: 1.2 % slower passed."""
    slower = dict.fromkeys((COPY.key, READ.key), 0.012)
    upgraded = side("a"), side("b", NEW, slower)
    assert outcome_of(*upgraded).verdicts == ("regression",)
    with pytest.raises(HarnessError) as error:
        outcome_of([*upgraded[0], *side("c", NEW, card="decaf")], [*upgraded[1], *side("d", NEW, card="decaf")])
    assert str(error.value) == (
        "driver changed on card c0ffee and not on decaf: together they would hide a part of what it did. "
        "Name runs of cards that changed alike."
    )


def test_cards_are_paired_and_what_has_no_partner_is_left_out():
    baseline = [*side("a"), *side("x", card="decaf")]
    outcome = outcome_of(baseline, side("b", NEW))
    assert outcome.verdicts == ("pass",)
    assert outcome.findings == ("left out: 6 runs of the baseline on cards that the other side lacks (decaf)",)


def test_no_card_on_both_sides_needs_to_be_asked_for():
    sides = side("a"), side("b", NEW, card="decaf")
    refused = outcome_of(*sides)
    assert refused.verdicts == ("not comparable",)
    known = {case.key: 0.0005 for case, _ in made.CASES}
    assert outcome_of(*sides, is_across_cards=True, card_sd=known).verdicts == ("pass",)
    wide = outcome_of(*sides, is_across_cards=True, card_sd=dict.fromkeys(known, 0.01))
    assert wide.verdicts == ("inconclusive",)
    assert outcome_of(*sides, is_across_cards=True).verdicts == ("inconclusive",)


def test_a_card_of_another_site_is_unknown():
    candidate = [replace(run, site_key="other") for run in side("b", NEW)]
    assert outcome_of(side("a"), candidate).verdicts == ("not comparable",)


# Which runs count


Damage = Callable[[Run], Run]


def all_partial(run: Run) -> Run:
    return replace(run, partial="interrupted")


def with_ruler_off(run: Run) -> Run:
    return replace(run, workers=tuple(replace(w, ruler=hand_made.RULER_OFF) for w in run.workers))


def beside_others(run: Run) -> Run:
    return replace(run, environment={**run.environment, "other_processes": Fact(2, role="informative")})


@pytest.mark.parametrize("damage", [all_partial, with_ruler_off, beside_others])
def test_a_side_without_usable_runs_never_passes(damage: Damage):
    outcome = outcome_of(side("a"), [damage(run) for run in side("b", NEW)])
    assert set(verdicts(outcome).values()) == {"inconclusive"}


@pytest.mark.parametrize(
    ("damage", "verdict"), [(all_partial, "inconclusive"), (with_ruler_off, "pass"), (beside_others, "pass")]
)
def test_one_run_less_blocks_only_where_the_upgrade_can_be_its_cause(damage: Damage, verdict: str):
    candidate = side("b", NEW, runs=4)
    outcome = outcome_of(side("a", runs=4), [damage(candidate[0]), *candidate[1:]])
    assert result_of(outcome, COPY.key).verdict == verdict
    assert result_of(outcome, COPY.key).dropped[1].count == 1


@pytest.mark.parametrize("about", [{"settled": False}, {"limited_by": "thermal"}])
def test_stalls_that_are_more_frequent_in_the_candidate_keep_it_from_passing(about: Mapping[str, Any]):
    stalled = side("c", NEW, boots=1, runs=1, about={COPY.key: about})
    outcome = outcome_of(side("a"), [*side("b", NEW), *stalled])
    assert result_of(outcome, COPY.key).verdict == "inconclusive"
    assert result_of(outcome, READ.key).verdict == "pass"
    both = outcome_of([*side("a"), *side("d", boots=1, runs=1, about={COPY.key: about})], [*side("b", NEW), *stalled])
    assert result_of(both, COPY.key).verdict == "pass"


def test_a_case_that_failed_once_keeps_the_candidate_from_passing():
    candidate = side("b", NEW, runs=4)
    outcome = outcome_of(side("a", runs=4), [made.without(candidate[0], COPY.key), *candidate[1:]])
    assert "failed: 0 of 8 -> 1 of 8 runs" in result_of(outcome, COPY.key).notes[0]


# What medians hide


def test_a_small_slowdown_of_a_whole_family_does_not_pass():
    """Each case is below its own margin of 1 %; together they are above 0.75 %."""
    found = verdicts(outcome_of(side("a"), side("b", NEW, {COPY.key: 0.0085, READ.key: 0.0085})))
    assert (found[COPY.key], found[READ.key]) == ("pass", "pass")
    assert found["mean of 2 cases of memory"] == "regression"


def test_a_longer_tail_is_a_regression():
    tail = {COPY.key: {"tail": 1.5}}
    slower = {COPY.key: -0.05}  # the mean is what it was
    result = result_of(outcome_of(side("a"), side("b", NEW, slower, about=tail)), COPY.key)
    assert result.verdict == "regression"
    assert result.notes[0].startswith("longer tail: p99 over median +50.00 % ± ")


def test_joules_that_change_alone_are_the_instruments():
    result = result_of(outcome_of(side("a"), side("b", NEW, about={COPY.key: {"joules": 2.2e-10}})), COPY.key)
    assert result.verdict == "inconclusive"
    assert result.notes[0].startswith("instrument? 200.0 -> 220.0 (+10.0 %) pJ/B")


def test_joules_that_rise_with_the_clock_are_a_regression():
    about = {COPY.key: {"joules": 2.2e-10, "sm_clock_mhz": 2100.0}}
    result = result_of(outcome_of(side("a"), side("b", NEW, about=about)), COPY.key)
    assert result.verdict == "regression"
    assert result.notes[0].startswith("more power: 200.0 -> 220.0 (+10.0 %) pJ/B, with true clock 1980 MHz -> 2100 MHz")


def test_joules_are_not_gated_at_the_power_limit():
    capped = {COPY.key: {"limited_by": "power", "joules": 2.2e-10}}
    assert result_of(outcome_of(side("a"), side("b", NEW, about=capped)), COPY.key).verdict == "pass"


def test_joules_that_are_no_longer_known_do_not_pass():
    result = result_of(outcome_of(side("a"), side("b", NEW, about={COPY.key: {"joules": None}})), COPY.key)
    assert result.verdict == "inconclusive"


# Why


@pytest.mark.parametrize(
    ("key", "before", "after", "said"),
    [
        (GEMM.key, {}, {}, "more cycles: 3.168 M -> 3.263 M (+3.0 %) a launch"),
        (
            GEMM.key,
            {},
            {"cycles": 3.168e6, "sm_clock_mhz": 1922.0},
            "lower clock: true clock 1980 MHz -> 1922 MHz (-2.9 %)",
        ),
        (
            GEMM.key,
            {"limited_by": "power", "joules": 1.0e-12, "cycles": 2.2e6},
            {"limited_by": "power", "joules": 1.03e-12, "cycles": 2.2e6, "sm_clock_mhz": 1922.0},
            "more power: 1.000 -> 1.030 (+3.0 %) pJ/FLOP at the power limit, which lowers the true clock",
        ),
        (
            GEMM.key,
            {"limited_by": "power", "joules": 1.0e-12},
            {"limited_by": "power", "joules": 1.03e-12},
            "more cycles: 3.168 M -> 3.263 M (+3.0 %) a launch, true clock 1980 MHz -> 1980 MHz (+0.0 %); 1.000",
        ),
        (GEMM.key, {}, {"power_limit_w": 650.0}, "environment: the power limit went 700 W -> 650 W (-7.1 %)"),
        (
            GEMM.key,
            {"cycles": 3.168e6},
            {"cycles": 3.168e6, "sm_clock_mhz": 1922.0, "temperature_end_c": 85},
            "environment: temperature 60 -> 85 °C",
        ),
        (
            GEMM.key,
            {"cycles": 3.168e6},
            {"cycles": 3.168e6},
            "instrument? 1.600 ms -> 1.648 ms (+3.0 %) a launch, but cycles",
        ),
        (GEMM.key, {"cycles": None}, {"cycles": None}, "cause unknown: 1.600 ms -> 1.648 ms (+3.0 %) a launch"),
        (PING.key, {}, {}, "slower host: 6.000 µs -> 7.200 µs (+20.0 %) a launch"),
    ],
)
def test_a_regression_says_why(key: str, before: Mapping[str, Any], after: Mapping[str, Any], said: str):
    slower = {key: 0.2 if key == PING.key else 0.03}
    baseline, candidate = side("a", about={key: before}), side("b", NEW, slower, about={key: after})
    result = result_of(outcome_of(baseline, candidate), key)
    assert result.verdict == "regression"
    assert result.cause.startswith(said)


def test_a_clock_that_nvml_tells_otherwise_is_a_finding():
    outcome = outcome_of(side("a"), side("b", NEW, about={GEMM.key: {"nvml_gap": 1.05}}))
    assert outcome.findings == (f"NVML's clock over the true one: 1.000 -> 1.050 (+5.0 %) in {GEMM.key}",)


# Looks, boots


def test_an_extended_comparison_uses_a_smaller_alpha():
    first, extended = (outcome_of(side("a"), side("b", NEW), look=look) for look in (None, 2))
    assert extended.alpha == LOOK_ALPHA
    high, higher = (result_of(o, COPY.key).evidence for o in (first, extended))
    assert high is not None and higher is not None and high.high < higher.high


def test_one_boot_a_side_passes_only_with_a_stated_spread():
    sides = side("a", boots=1, runs=5), side("b", NEW, boots=1, runs=5)
    assert outcome_of(*sides).verdicts == ("inconclusive",)
    assert outcome_of(*sides, assume_boot_sd=0.001).verdicts == ("pass",)


def test_another_driver_in_the_same_boot_is_another_boot():
    baseline = [replace(r, environment={**r.environment, "boot": Fact("b1")}) for r in side("a")]
    assert outcome_of(baseline, side("b", NEW)).boots == (1, 2)


# Properties


@pytest.mark.parametrize("seed", range(5))
def test_the_order_of_runs_does_not_matter(seed: int):
    draw = random.Random(seed)
    baseline, candidate = side("a"), side("b", NEW, {GEMM.key: 0.03})
    first = outcome_of(baseline, candidate)
    mixed = outcome_of(draw.sample(baseline, 6), draw.sample(candidate, 6))
    assert verdicts(mixed) == verdicts(first)


@pytest.mark.parametrize("seed", range(5))
def test_noise_never_turns_a_slow_case_into_a_pass(seed: int):
    draw = random.Random(seed)
    outcome = outcome_of(
        side("a", noise=draw.choice([1, 10, 100])), side("b", NEW, {COPY.key: 0.02}, noise=draw.choice([1, 10, 100]))
    )
    assert result_of(outcome, COPY.key).verdict != "pass"


def test_a_run_on_both_sides_is_refused():
    with pytest.raises(HarnessError, match="stands on both sides"):
        outcome_of(side("a"), side("a"))


@pytest.mark.parametrize(
    ("mixed", "said"),
    [
        ({"driver": Fact("560.1")}, "driver 560.1 / 570.86"),
        ({"torch": Fact("2.10")}, "torch 2.10 / 2.13.0"),
    ],
)
def test_a_side_of_two_environments_is_refused(mixed: Mapping[str, Fact], said: str):
    with pytest.raises(HarnessError, match=f"the baseline mixes runs of several environments: {said}"):
        outcome_of([*side("a"), *side("x", {**made.OLD, **mixed})], side("b", NEW))


# Policy


def test_the_shipped_policy_has_the_margins_that_are_promised():
    policy = load_policy()
    assert (policy.margin("memory", "throughput"), policy.margin("gemm", "throughput")) == (0.01, 0.015)
    assert (policy.margin("collectives", "throughput"), policy.margin("memory", "latency")) == (0.02, 0.1)
    assert (policy.energy, policy.family_mean) == (0.03, 0.0075)
    assert all(line.isascii() for line in DEFAULT_FILE.read_text().splitlines())


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[margin]\nmemory = 1", "margin.memory is '1'; write a percentage"),
        ('[margin]\nmemory = "0 %"', "margin.memory is '0 %'"),
        ('[margin]\nmemory = "nan %"', "margin.memory is 'nan %'"),
        ('[margin]\nmemory = "200 %"', "margin.memory is '200 %'"),
        ('[margins]\nmemory = "1 %"', "there is no 'margins'"),
        ('[margin_of]\nenergie = "1 %"', "there is no 'margin_of.energie'"),
        ("margin = 3", "'margin' is no table"),
        ("[drop]\nunsettled = 1", "drop.unsettled is '1'; write true or false"),
        ('[drop]\nthrottled = ["heat"]', "drop.throttled is"),
        ("[margin", "it is no TOML"),
    ],
)
def test_a_wrong_policy_is_one_line(text: str, said: str, tmp_path):
    file = tmp_path / "policy.toml"
    file.write_text(text)
    with pytest.raises(HarnessError, match=r"^policy .*: .*") as error:
        load_policy(file)
    assert said in str(error.value)
    assert "\n" not in str(error.value)


def test_a_policy_changes_what_it_names(tmp_path):
    file = tmp_path / "policy.toml"
    file.write_text('[margin]\nmine = "4 %"\n[drop]\nunsettled = false\nthrottled = []\n')
    policy = load_policy(file)
    assert (policy.margin("mine", "throughput"), policy.margin("memory", "throughput")) == (0.04, 0.01)
    assert "unsettled" not in policy.drop and not policy.throttled


@pytest.mark.parametrize("text", ["", "0.3", "x%", "-1%", "nan%", "101%", "1e3%"])
def test_what_is_no_percentage_is_refused(text: str):
    with pytest.raises(ValueError, match="percentage"):
        parse_percent(text)


def test_the_tail_is_the_99th_percentile_over_the_median():
    seconds = tuple(1e-3 * (100 + n) for n in range(101))
    told = replace(hand_made.copy_record(), samples=Samples(seconds, 1, sum(seconds), "events", "stream"))
    assert sides.side_run(hand_made.gpu_run(told)).readings[told.key].log_tail == pytest.approx(math.log(0.199 / 0.150))


# Runs slowed down on purpose


def injected(runs: list[Run]) -> list[Run]:
    return [replace(run, order=replace(run.order, inject=("gemm=3%",))) for run in runs]


def test_a_candidate_that_was_slowed_down_on_purpose_is_told_as_such():
    outcome = outcome_of(side("a"), injected(side("b", NEW)))
    assert outcome.injected == "gemm=3%"
    assert verdict_line(outcome).startswith("PASS (candidate INJECTED gemm=3%, a test of the gate): driver ")


def test_a_baseline_that_was_slowed_down_on_purpose_is_refused():
    """Beside it a slower driver would have passed."""
    with pytest.raises(HarnessError, match=r"baseline: run a-0-0 was slowed down on purpose \(gemm=3%\)"):
        outcome_of(injected(side("a")), side("b", NEW))


def test_a_candidate_slowed_down_in_part_is_refused():
    runs = side("b", NEW)
    with pytest.raises(HarnessError, match="some runs were slowed down on purpose and some were not"):
        outcome_of(side("a"), [*injected(runs[:1]), *runs[1:]])
