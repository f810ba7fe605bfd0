"""Comparing sets: figures that can be divided in the head, what is missing and said, costs, fleets, the cache."""

import json
import math
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness import compare as comparing
from harness import lean_files, store
from harness.cli.app import exit_status
from harness.compare import Set, compare, load_sets, set_of
from harness.costs import Job, LanguageModel, Prices, cost
from harness.digests import digest_run, strip_regime
from harness.efficiency import efficiency
from harness.errors import HarnessError
from harness.fleet import judge_fleet
from harness.metrics import derive_metrics
from harness.model import Case, DeviceFacts, Metric, Telemetry, Work
from tests import hand_made
from tests import hand_made_sets as made


@pytest.fixture(autouse=True)
def own_cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache folder of the test's own."""
    folder = tmp_path_factory.mktemp("cache")
    monkeypatch.setenv("XDG_CACHE_HOME", str(folder))
    return folder


def cell(comparison: comparing.Comparison, op: str, label: str) -> comparing.Cell:
    row = next(row for row in comparison.rows if row.key.startswith(op))
    found = row.cells[comparison.labels.index(label)]
    assert found is not None
    return found


# Speed-ups


def test_promised_and_delivered_are_ratios_to_the_reference():
    copy = cell(compare(made.two_sets()), "copy", "new")
    assert (copy.promised, copy.delivered, copy.delivered_over_promised) == (2.0, 3.0, 1.5)


def test_a_latency_is_delivered_by_the_shorter_time_and_promised_by_nobody():
    latency = cell(compare(made.two_sets()), "all_reduce", "new")
    assert (latency.unit, latency.delivered, latency.promised) == ("s", 2.0, None)
    assert latency.reasons["promised"]


def test_another_reference_turns_the_ratios_over():
    copy = cell(compare(made.two_sets(), "new"), "copy", "old")
    assert (copy.promised, copy.delivered) == (0.5, pytest.approx(1 / 3))


def test_geometric_means_are_over_common_cases():
    families = {f.family: f for f in compare(made.two_sets()).families}
    assert list(families) == ["gemm", "links", "memory", "all"]
    assert families["memory"].cases == 1  # the read is the new set's alone
    means = families["all"].cells[1]
    assert means.delivered == pytest.approx((3.0 * 3.2 * 2.0) ** (1 / 3))
    assert (means.delivered_cases, means.promised_cases) == (3, 2)
    assert means.promised == pytest.approx(math.sqrt(2 * 4))
    assert means.delivered_over_promised == pytest.approx(math.sqrt(1.5 * 0.8))
    assert means.energy_ratio == pytest.approx(0.5)


def test_what_a_set_lacks_is_listed_with_the_reason_that_its_run_gives():
    absent = hand_made.without_figure(made.READ, "memory", "failed", "wrong result")
    sets = (set_of("old", [made.old(absent)]), made.two_sets()[1])
    (lack,) = compare(sets).lacking
    assert (lack.label, lack.reason, lack.keys) == ("old", "failed: wrong result", (made.READ.key,))


def test_figures_are_medians_over_runs():
    runs = [made.run(made.record(made.COPY, "memory", rate), run_id=str(rate)) for rate in (1e12, 2e12, 9e12)]
    copy = cell(compare([set_of("a", runs)]), "copy", "a")
    assert (copy.rate, copy.runs) == (2e12, 3)


def test_rates_that_count_differently_are_not_divided():
    other = replace(made.COPY, work=(replace(made.COPY.work[0], label="one way"),))
    sets = [set_of("a", [made.old()]), set_of("b", [made.run(made.record(other, "memory", 1e12))])]
    copy = cell(compare(sets), "copy", "b")
    assert (copy.delivered, copy.promised) == (None, None)
    assert copy.reasons["delivered"] == "counts 'B one way', the reference 'B read + write'"


def test_runs_of_a_set_that_count_differently_have_no_median():
    """Half of the runs counted the bytes one way: the rate was halfway between the two."""
    other = replace(made.COPY, work=(replace(made.COPY.work[0], label="one way"),))
    runs = [made.old(), made.run(made.record(other, "memory", 5e11), run_id="2", name="NVIDIA Old")]
    copy = cell(compare([set_of("a", runs), set_of("b", [made.new()])]), "copy", "a")
    assert (copy.rate, copy.energy_per_work_j, copy.promised_per_s, copy.runs) == (None, None, None, 2)
    assert set(copy.reasons.values()) == {"its runs count 'B read + write' and 'B one way'"}
    delivered = cell(compare([set_of("a", runs), set_of("b", [made.new()])]), "copy", "b")
    assert (delivered.rate, delivered.delivered) == (3e12, None)


def test_a_case_bound_by_two_peaks_is_promised_by_the_roofline():
    """Bytes bind on the old card (1e9 B / 2e12 = 0.5 ms a launch), FLOP on one of tenfold bandwidth (0.2 ms)."""
    work = (*made.GEMM.work, replace(made.COPY.work[0], amount=5e9))
    case = replace(made.GEMM, work=work)
    fast = replace(made.OLD_SHEET.peaks["memory"], value=2e13)
    sheet = replace(made.OLD_SHEET, peaks=made.OLD_SHEET.peaks | {"memory": fast})
    sets = [
        set_of("a", [made.run(made.record(case, "gemm", 1e14))]),
        set_of("b", [made.run(made.record(case, "gemm", 1e14), sheet=sheet)]),
    ]
    comparison = compare(sets)
    # 1e12 FLOP: 2.5 ms of bytes on a, 2 ms of FLOP on b.
    assert cell(comparison, "gemm", "b").promised == pytest.approx(1.25)
    assert any("bound by 'bf16', on the reference by 'memory'" in note for note in comparison.notes)


# What is unknown and said


def test_an_unknown_gpu_is_promised_nothing_and_that_is_said():
    unknown = made.run(made.record(made.COPY, "memory", 1e12), sheet=made.NO_SHEET)
    comparison = compare([set_of("old", [made.old()]), set_of("new", [unknown])])
    copy = cell(comparison, "copy", "new")
    assert (copy.promised, copy.delivered, copy.delivered_over_promised) == (None, 1.0, None)
    assert copy.reasons["promised"] == made.NO_SHEET.reason
    assert any(note.startswith("'new': no promised speed-up") for note in comparison.notes)


def test_derived_peaks_promise_nothing():
    derived = replace(made.OLD_SHEET, gpu=None, match="derived", reason="no entry; peaks are derived")
    copy = cell(compare([set_of("x", [made.run(made.record(made.COPY, "memory", 1e12), sheet=derived)])]), "copy", "x")
    assert copy.promised is None
    assert "no data sheet promises them" in copy.reasons["promised"]


def test_traffic_that_l2_serves_is_promised_nothing():
    base = made.record(made.COPY, "memory", 9e12)
    served = replace(base, metrics=(base.metrics[0], Metric("spec_ratio", None, "ratio", reason="L2 could serve 50 %")))
    copy = cell(compare([set_of("x", [made.run(served)])]), "copy", "x")
    assert (copy.promised, copy.reasons["promised"]) == (None, "L2 could serve 50 %")


def test_a_cpu_beside_a_gpu_is_allowed_and_said():
    cpu = set_of("laptop", [hand_made.cpu_run(hand_made.cpu_copy_record())])
    comparison = compare([made.two_sets()[0], cpu])
    assert any(note.startswith("'laptop': a CPU beside GPUs") for note in comparison.notes)
    assert cell(comparison, "copy", "laptop").delivered == pytest.approx(0.01)


def test_sets_without_a_common_case_have_no_means_and_that_is_said():
    only = [
        set_of("a", [made.run(made.record(made.COPY, "memory", 1e12))]),
        set_of("b", [made.run(made.record(made.GEMM, "gemm", 1e14), card=None)]),
    ]
    comparison = compare(only)
    assert comparison.families == ()
    assert any(note.startswith("no case is common to all sets") for note in comparison.notes)
    assert any(note.startswith("'b': no card key") for note in comparison.notes)


def test_several_drivers_in_a_set_are_said():
    other = made.run(run_id="2")
    other = replace(other, environment={**other.environment, "driver": replace(other.environment["driver"], value="9")})
    assert any("2 drivers, '580.1', '9'" in note for note in compare([set_of("a", [made.old(), other])]).notes)


# Properties


@given(st.permutations(range(3)))
def test_the_order_of_sets_does_not_matter(order: list[int]):
    sets = [*made.two_sets(), set_of("third", [replace(made.new(), run_id="3")])]
    straight, shuffled = compare(sets, "old"), compare([sets[i] for i in order], "old")
    assert [row.key for row in straight.rows] == [row.key for row in shuffled.rows]
    for one, other in zip(straight.rows, shuffled.rows, strict=True):
        by_label = dict(zip(shuffled.labels, other.cells, strict=True))
        assert [by_label[label] for label in straight.labels] == list(one.cells)
    for mean, shuffled_mean in zip(straight.families, shuffled.families, strict=True):
        cells = dict(zip(shuffled.labels, shuffled_mean.cells, strict=True))
        assert [cells[label] for label in straight.labels] == list(mean.cells)


@given(st.floats(0.01, 100.0))
def test_scaling_all_samples_scales_the_rate(factor: float):
    def measured(scale: float) -> Set:
        samples = made.samples(0.002 * scale)
        facts = DeviceFacts("cuda", "NVIDIA Test", "cuda:0", l2_bytes=1)
        case = replace(made.COPY, footprint_bytes=2**40)
        metrics = derive_metrics(case, samples, Telemetry(), made.OLD_SHEET, facts)
        record = replace(made.record(case, "memory", 1.0), samples=samples, metrics=metrics)
        return set_of(f"x{scale}", [made.run(record)])

    base, scaled = measured(1.0), measured(factor)
    comparison = compare([base, replace(scaled, label="scaled")])
    assert cell(comparison, "copy", "scaled").delivered == pytest.approx(1 / factor)
    assert cell(comparison, "copy", "scaled").promised == pytest.approx(1.0)


@given(st.lists(st.floats(1e9, 1e15), min_size=1, max_size=6))
def test_a_set_against_its_copy_is_one(rates: list[float]):
    runs = [made.run(made.record(made.COPY, "memory", r, 1e-10), run_id=str(i)) for i, r in enumerate(rates)]
    comparison = compare([set_of("a", runs), set_of("b", runs)])
    means = comparison.families[0].cells[1]
    assert (means.delivered, means.promised, means.delivered_over_promised, means.energy_ratio) == (1.0, 1.0, 1.0, 1.0)


@given(st.lists(st.floats(0.001, 1000), min_size=1, max_size=20))
def test_the_geometric_mean_lies_between_the_extremes(ratios: list[float]):
    mean = comparing.geometric_mean(ratios)
    assert mean is not None
    assert min(ratios) * (1 - 1e-9) <= mean <= max(ratios) * (1 + 1e-9)


# Loading


def save(folder: Path, *runs: object) -> Path:
    for number, one in enumerate(runs):
        store.save(one, folder / f"run-{number}.json")  # type: ignore[arg-type]
    return folder


def test_a_folder_of_two_cards_is_two_sets(tmp_path: Path):
    save(tmp_path, made.old(), replace(made.old(), run_id="2"), replace(made.new(), run_id="3"))
    sets = load_sets([tmp_path])
    assert [(s.gpu, len(s.runs)) for s in sets] == [("NVIDIA Old", 2), ("NVIDIA New", 1)]
    assert [s.label for s in sets] == ["NVIDIA Old", "NVIDIA New"]


def test_sets_of_one_card_are_told_apart_by_folder_then_by_what_differs(tmp_path: Path):
    a = save(tmp_path / "a", made.old(), replace(made.run(run_id="2", name="NVIDIA Old", limit_w=500.0)))
    b = save(tmp_path / "b", replace(made.old(), run_id="3"))
    assert [s.label for s in load_sets([a, b])] == ["a 700 W", "a 500 W", "b"]
    assert [s.label for s in load_sets([a, b], ["x", "y"])] == ["x 700 W", "x 500 W", "y"]


def test_the_operators_label_names_a_set(tmp_path: Path):
    assert load_sets([save(tmp_path, made.run(label="rack 7"))])[0].label == "rack 7"


@pytest.mark.parametrize(("labels", "words"), [(["a"], "labels: 1, sets: 2"), (["a", "b", "c"], "labels: 3, sets: 2")])
def test_labels_are_one_a_set(tmp_path: Path, labels: list[str], words: str):
    folder = save(tmp_path, made.old())
    with pytest.raises(HarnessError, match=words):
        load_sets([folder, folder], labels)


def test_the_lean_reading_says_what_the_store_says(tmp_path: Path):
    absent = hand_made.without_figure(made.READ, "memory", "failed", "wrong result")
    save(tmp_path, made.old(absent), hand_made.set_of_three()[0], hand_made.cpu_run(hand_made.cpu_copy_record()))
    for file in sorted(tmp_path.glob("*.json")):
        assert digest_run(lean_files.load(file)) == digest_run(store.load(file))


@pytest.mark.parametrize("file", sorted(Path("results/baselines").glob("*/*/*.json")), ids=lambda p: p.name)
def test_the_lean_reading_of_committed_runs_says_what_the_store_says(file: Path):
    lean = lean_files.read_lean(file)
    assert lean is not None
    assert digest_run(lean) == digest_run(store.load(file))


def damage(document: dict[str, object], how: str) -> str:
    text = json.dumps(document)
    record = document["benchmarks"][0]  # type: ignore[index]
    if how == "cut short":
        return text[:-20]
    if how == "two documents":
        return f"{text},{text}"
    if how == "samples off":
        record["stats"]["data"] = [1.0]
    elif how == "another name":
        record["name"] = "other"
    elif how == "text for a number":
        record["extra_info"]["metrics"][0]["value"] = "fast"
    elif how == "twice":
        document["benchmarks"] = [record, record]
    elif how == "starved":
        record["extra_info"]["samples"]["starved"] = 999
    elif how == "schema":
        document["schema_version"] = 99
    return json.dumps(document)


@pytest.mark.parametrize(
    "how",
    ["cut short", "two documents", "samples off", "another name", "text for a number", "twice", "starved", "schema"],
)
def test_a_damaged_file_is_refused_in_the_words_of_the_store(tmp_path: Path, how: str):
    save(tmp_path, made.old())
    file = tmp_path / "run-0.json"
    file.write_text(damage(json.loads(file.read_text()), how))
    with pytest.raises(HarnessError) as refused:
        load_sets([tmp_path])
    with pytest.raises(HarnessError) as stored:
        store.load(file)
    assert str(refused.value) == str(stored.value)


# The cache


def cached(own_cache: Path) -> list[Path]:
    return sorted((own_cache / "ofpeak" / "digests").glob("*.json"))


def test_a_second_reading_comes_from_the_cache(tmp_path: Path, own_cache: Path, monkeypatch: pytest.MonkeyPatch):
    save(tmp_path, made.old(hand_made.without_figure(made.READ, "memory", "failed", "x")))
    first = load_sets([tmp_path])
    assert len(cached(own_cache)) == 1
    monkeypatch.setattr(lean_files, "load", lambda file: pytest.fail(f"{file} was read"))
    assert load_sets([tmp_path]) == first


def test_a_changed_file_is_read_again(tmp_path: Path):
    save(tmp_path, made.old())
    load_sets([tmp_path])
    save(tmp_path, made.new())
    assert load_sets([tmp_path])[0].gpu == "NVIDIA New"
    os.utime(tmp_path / "run-0.json", ns=(1, 1))
    assert load_sets([tmp_path])[0].gpu == "NVIDIA New"


def test_without_a_cache_nothing_is_kept(tmp_path: Path, own_cache: Path):
    load_sets([save(tmp_path, made.old())], use_cache=False)
    assert cached(own_cache) == []


def with_run(held: dict[str, Any], **changed: object) -> dict[str, Any]:
    return held | {"run": held["run"] | changed}


def with_table(held: dict[str, Any], count: object, columns: object) -> dict[str, Any]:
    return with_run(held, cases=[count, columns])


def columns_of(held: dict[str, Any]) -> list[list[Any]]:
    return held["run"]["cases"][1]


HOSTILE_CACHES: list[str | Callable[[dict[str, Any]], object]] = [
    "",
    "[]",
    "null",
    '{"of": 1}',
    "\x80\x04pickle",
    "[" * 100_000,
    lambda held: held | {"run": []},
    lambda held: with_run(held, gpu=7),
    lambda held: with_run(held, gpu=["a"]),
    lambda held: with_run(held, cases=[]),
    lambda held: with_run(held, cases={}),
    lambda held: with_table(held, 0, []),
    lambda held: with_table(held, "3", columns_of(held)),
    lambda held: with_table(held, 10**12, [column[:1] for column in columns_of(held)]),
    lambda held: with_table(held, 3, columns_of(held)[:-1]),
    lambda held: with_table(held, 3, [["x", "y", "z"] for _ in columns_of(held)]),
    lambda held: with_table(held, 3, [columns_of(held)[0], ["x", "y"], *columns_of(held)[2:]]),
    lambda held: with_table(held, 3, [columns_of(held)[0], [], *columns_of(held)[2:]]),
]


@pytest.mark.parametrize("hostile", HOSTILE_CACHES)
def test_a_hostile_cache_is_ignored(tmp_path: Path, own_cache: Path, hostile: str | Callable[[dict[str, Any]], object]):
    save(tmp_path, made.old())
    honest = load_sets([tmp_path])
    (entry,) = cached(own_cache)
    entry.write_text(hostile if isinstance(hostile, str) else json.dumps(hostile(json.loads(entry.read_text()))))
    assert load_sets([tmp_path]) == honest


def test_a_cached_infinity_is_ignored(tmp_path: Path, own_cache: Path):
    save(tmp_path, made.old())
    honest = load_sets([tmp_path])
    (entry,) = cached(own_cache)
    entry.write_text(entry.read_text().replace("1000000000000.0", "1e999"))
    assert load_sets([tmp_path]) == honest


def test_a_cache_that_others_can_write_is_not_used(tmp_path: Path, own_cache: Path):
    folder = own_cache / "ofpeak" / "digests"
    folder.mkdir(parents=True)
    folder.chmod(0o777)
    load_sets([save(tmp_path, made.old())])
    assert cached(own_cache) == []


def test_a_cache_that_cannot_be_made_is_done_without(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    assert load_sets([save(tmp_path / "set", made.old())])[0].gpu == "NVIDIA Old"


# Costs

PRICES = Prices({"old": 3.6, "new": 7.2}, 0.36)


def bill(costs: object, op: str, index: int) -> object:
    return next(c for c in costs.cases if c.key.startswith(op)).bills[index]  # type: ignore[attr-defined]


def test_dollars_are_time_and_energy_at_their_prices():
    """1e15 B at 1e12 B/s: 1000 s, $1.00 at 3.6 $/h; at 2e-10 J/B 200 kJ = 1/18 kWh, $0.02."""
    copy = bill(cost(compare(made.two_sets()), PRICES), "copy", 0)
    assert copy.hours == pytest.approx(1000 / 3600)
    assert copy.kwh == pytest.approx(1 / 18)
    assert copy.usd == pytest.approx(1.02)


def test_without_energy_its_price_makes_the_dollars_unknown():
    costs = cost(compare(made.two_sets()), PRICES)
    read = next(c for c in costs.cases if c.key == made.READ.key).bills
    assert read[0] is None
    assert (read[1].usd, read[1].reason) == (None, "no power")


def test_latencies_and_several_gpus_have_no_price():
    assert {c.per for c in cost(compare(made.two_sets()), PRICES).cases} == {"PB", "exaFLOP"}
    assert not [c for c in cost(compare(made.two_sets()), PRICES).cases if c.key.startswith("all_reduce")]


def test_tokens_follow_from_the_fastest_gemm_and_the_memory():
    """A model of 1e9 parameters: 2e9 FLOP a token at 2.5e14 is 8 us; 2e9 B / 1 at 1e12 B/s is 2 ms, / 1000 is 2 us."""
    comparison = compare(made.two_sets())
    small, large = (cost(comparison, PRICES, LanguageModel(1e9, batch, "bf16")).estimates for batch in (1, 1000))
    assert small[0].bills[0].hours == pytest.approx(8.0 / 3600)
    assert small[1].bills[0].hours == pytest.approx(2000 / 3600)
    assert large[1].bills[0].hours == pytest.approx(8.0 / 3600)
    assert small[0].rests_on == (made.GEMM.key,)
    assert small[1].rests_on == (made.GEMM.key, made.COPY.key)  # the read is not the old set's


def test_a_copy_between_two_gpus_has_no_price_of_one():
    """It had one GPU's dollars an hour and both GPUs' watts."""
    pair = Case("peer_copy", {"bytes": 8, "from": 0, "to": 1}, (Work(8.0, "B", "peer_link", "one way"),))
    own = Case("peer_load", {"bytes": 8, "from": 0, "to": 0}, (Work(8.0, "B", "peer_link", "loaded, one way"),))
    extra = [made.record(case, "peers", 4e11, 1e-9) for case in (pair, own)]
    sets = (made.set_of("old", [made.old(*extra)]), made.set_of("new", [made.new(*extra)]))
    assert [c.key for c in cost(compare(sets), PRICES).cases if c.family == "peers"] == [own.key]


@pytest.mark.parametrize("protocol", ["mamf", "do_bench", "short_blocks"])
def test_tokens_do_not_follow_from_a_gemm_that_never_ran_warm(protocol):
    """Launches with a pause before each clock higher than any that follow one another."""
    burst = replace(made.GEMM, params={**made.GEMM.params, "protocol": protocol})
    fast = made.record(burst, "protocols", 9e15, 1e-13)
    sets = (made.set_of("old", [made.old(fast)]), made.set_of("new", [made.new(fast)]))
    estimate = cost(compare(sets), PRICES, LanguageModel(1e9, 1, "bf16")).estimates[0]
    assert estimate.rests_on == (made.GEMM.key,)
    assert estimate.bills[0].hours == pytest.approx(8.0 / 3600)


def test_tokens_follow_from_another_tools_gemm_where_a_set_has_no_other():
    """Published figures are mostly of that kind; what an estimate rests on says so."""
    burst = replace(made.GEMM, params={**made.GEMM.params, "protocol": "mamf"})
    fast = made.record(burst, "protocols", 5e14, 1e-13)
    sets = (made.set_of("old", [made.old(fast)]), made.set_of("new", [made.run(fast, run_id="new", card="decaf")]))
    estimate = cost(compare(sets), PRICES, LanguageModel(1e9, 1, "bf16")).estimates[0]
    assert estimate.rests_on == (burst.key,)


def test_a_dtype_that_nobody_measured_is_said():
    estimate = cost(compare(made.two_sets()), PRICES, LanguageModel(1e9, 1, "fp8")).estimates[0]
    assert (estimate.bills[0].usd, estimate.bills[0].reason) == (None, "'old' has no GEMM in fp8")


def test_a_job_is_its_flop_and_then_its_bytes():
    """1e18 FLOP at 2.5e14 is 4000 s, 1e15 B at 1e12 is 1000 s."""
    flop, size, both = cost(compare(made.two_sets()), PRICES, job=Job(1e18, 1e15)).estimates
    assert [e.bills[0].hours * 3600 for e in (flop, size, both)] == pytest.approx([4000, 1000, 5000])
    assert both.bills[0].usd == pytest.approx(flop.bills[0].usd + size.bills[0].usd)


def test_the_assumptions_say_every_price():
    said = " ".join(cost(compare(made.two_sets()), PRICES, LanguageModel(70e9, 64, "bf16")).assumptions)
    assert "old $3.6/h, new $7.2/h" in said
    assert "a kWh costs $0.36" in said
    assert "for 64 sequences" in said
    assert "140.0 GB, more than one GPU of 'old', 'new'" in said


@pytest.mark.parametrize(
    ("prices", "words"),
    [
        (Prices({"b300": 1.0}), "no set is labelled 'b300'"),
        (Prices({"old": 1.0}), "no price for 'new': add new=DOLLARS"),
        (Prices({"old": 1.0, "new": -1.0}), "the price of new is -1.0"),
        (Prices({}, float("nan")), "the price of a kWh is nan"),
    ],
)
def test_prices_that_cannot_be_are_refused(prices: Prices, words: str):
    with pytest.raises(HarnessError, match=words):
        cost(compare(made.two_sets()), prices)


# Efficiency


def limit_set(limit_w: float, rate: float, joules: float, declare: str = "") -> Set:
    params = made.COPY.params | ({"clocks": "locked-1410"} if declare else {})
    case = replace(made.COPY, params=params)
    return set_of(
        f"{limit_w:g} {declare}",
        [made.run(made.record(case, "memory", rate, joules), limit_w=limit_w, declare=declare)],
    )


def test_the_most_efficient_limit_is_marked():
    sets = [limit_set(700, 4e12, 2e-10), limit_set(500, 3e12, 1e-10), limit_set(300, 1e12, 4e-10)]
    compute, memory = efficiency(sets)
    assert compute.reason == "no compute-bound case with measured energy is common to all sets of this card"
    assert [p.power_limit_w for p in memory.points] == [300, 500, 700]
    assert [p.rate_ratio for p in memory.points] == pytest.approx([0.25, 0.75, 1.0])
    assert [p.work_per_joule for p in memory.points] == pytest.approx([2.5e9, 1e10, 5e9])
    assert [p.is_best for p in memory.points] == [False, True, False]


def test_declared_clocks_are_points_of_one_case():
    _, memory = efficiency([limit_set(700, 4e12, 2e-10), limit_set(700, 3e12, 1e-10, "clocks=locked:1410")])
    assert [p.declare for p in memory.points] == ["", "clocks=locked:1410"]
    assert memory.cases == 1


def test_two_cards_are_no_efficiency_table():
    assert efficiency(made.two_sets()) == ()


@pytest.mark.parametrize(
    ("key", "plain"), [("gemm/clocks=locked-1410,m=8", "gemm/m=8"), ("gemm/m=8", "gemm/m=8"), ("odd", "odd")]
)
def test_a_regime_is_stripped_from_a_key(key: str, plain: str):
    assert strip_regime(key) == plain


# Fleets

RATES = [1.00e12, 1.01e12, 0.99e12, 1.00e12, 1.01e12, 0.99e12]


@pytest.mark.parametrize(
    ("odd", "cause"),
    [
        ({}, "unknown: its telemetry is that of the fleet"),
        ({"sm_clock_mhz": 1500.0}, "lower true clock: 1500 of the fleet's 1980 MHz"),
        ({"temperature_end_c": 85.0}, "hotter: 85 °C, fleet 60 °C"),
        ({"power_limit_w": 500.0}, "lower power limit: 500 of the fleet's 700 W"),
        ({"limited_by": "thermal"}, "limited by thermal, fleet by none"),
        ({"throttle_ratio": {"board": 0.5}}, "throttled (board) 50 % of the time, fleet 0 %"),
    ],
)
def test_the_odd_card_is_found_with_its_likely_cause(odd: dict[str, object], cause: str):
    fleet = judge_fleet(made.cards([*RATES, 0.5e12], **odd))
    (finding,) = fleet.findings
    assert (finding.label, finding.operator_label, finding.card) == ("s6", "rack 6", "card6")
    assert finding.causes[0] == cause
    assert fleet.cards[0].outliers == 1
    # MAD 0.01e12, so sd 1.4826e10 and z = -5e11 / 1.4826e10.
    assert finding.z == pytest.approx(-5e11 / 1.4826e10)


def test_a_narrow_link_explains_what_crosses_it():
    def sets() -> list[Set]:
        lanes = [16] * 6 + [8]
        return [
            set_of(
                f"s{i}",
                [made.run(made.record(made.H2D, "memory", 1e9 * n, pcie_generation=5, pcie_lanes=n), card=f"c{i}")],
            )
            for i, n in enumerate(lanes)
        ]

    (finding,) = judge_fleet(sets()).findings
    assert finding.causes == ("PCIe link Gen5 x8, fleet Gen5 x16",)


def test_cards_that_differ_by_less_than_runs_do_are_alike():
    """All but one card equal: the MAD is 0, and 0.1 % is no outlier all the same."""
    assert judge_fleet(made.cards([1e12] * 6 + [0.999e12])).findings == ()
    assert len(judge_fleet(made.cards([1e12] * 6 + [0.99e12])).findings) == 1


def test_a_fleet_with_runs_slowed_down_on_purpose_is_refused():
    """They were averaged with the card's real runs: half of what was put in looked like the card's own."""
    slow = made.run(made.record(made.COPY, "memory", 0.5e12), card="card0", run_id="slow")
    injected = set_of("slow", [replace(slow, order=replace(slow.order, inject=("memory=50%",)))])
    with pytest.raises(HarnessError, match=r"'slow' was slowed down on purpose \(--inject memory=50%\)\. Leave it out"):
        judge_fleet([*made.cards([1e12] * 6), injected])


def test_sets_of_one_card_are_one_member():
    sets = made.cards([*RATES, 0.5e12])
    again = [replace(one, label=f"{one.label} again") for one in sets]
    assert len(judge_fleet([*sets, *again]).cards) == 7


@given(st.permutations(range(7)))
@settings(max_examples=20)
def test_the_order_of_a_fleet_does_not_matter(order: list[int]):
    sets = made.cards([*RATES, 0.5e12])
    straight, shuffled = judge_fleet(sets), judge_fleet([sets[i] for i in order])
    assert straight.findings == shuffled.findings
    assert straight.cards == shuffled.cards


@pytest.mark.parametrize(
    ("sets", "words"),
    [
        (made.cards([1e12] * 4), "needs at least 5 cards, these sets are of 4"),
        (made.two_sets(), "a fleet is of one model, these sets are of 'NVIDIA Old', 'NVIDIA New'"),
    ],
)
def test_what_is_no_fleet_is_refused(sets: list[Set], words: str):
    with pytest.raises(HarnessError, match=words):
        judge_fleet(sets)


# The command


@pytest.fixture
def folders(tmp_path: Path) -> list[str]:
    return [str(save(tmp_path / name, run)) for name, run in (("old", made.old()), ("new", made.new()))]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ("--label a", "labels: 1, sets: 2"),
        ("--label a,", "holds an empty name"),
        ("--label a,a", "two sets are labelled 'a'"),
        ("--label a,b --reference c", "no set is labelled 'c'. Use one of 'a', 'b' as --reference."),
        ("--label a,b --usd-per-hour c=1", "no set is labelled 'c', which has a price. The sets are 'a', 'b'."),
        ("--label a,b --usd-per-hour a=1", "no price for 'b': add b=DOLLARS to --usd-per-hour."),
        ("--label a,b --usd-per-hour a", "'a' is no price. Write it as LABEL=DOLLARS"),
        ("--label a,b --usd-per-hour a=x", "'a=x' is no price"),
        ("--label a,b --usd-per-hour a=nan,b=1", "'a=nan' is no price"),
        ("--label a,b --usd-per-hour a=1,a=2", "names 'a' twice"),
        ("--usd-per-kwh -1", "the price of a kWh is -1.0"),
        ("--model-parameters 0", "a model has more than 0 parameters"),
        ("--model-parameters 1e9 --dtype int9", "unknown dtype 'int9'"),
        ("--model-parameters 1e9 --batch 0", "'--batch'"),
        ("--job-flop -1", "a job of -1 cannot be"),
        ("--job-flop 1 --dtype int9", "unknown dtype 'int9'"),
        ("--fleet", "a fleet is of one model"),
        ("--fleet --reference a", "it takes no --reference and no prices"),
        ("--format pdf", "'--format'"),
    ],
)
def test_bad_input_is_one_line_and_exit_5(
    folders: list[str], options: str, words: str, capsys: pytest.CaptureFixture[str]
):
    assert exit_status(["compare", *folders, *options.split()]) == 5
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("ofpeak: ")
    assert captured.err.count("\n") == 1
    assert words in captured.err


def test_a_set_that_is_not_there_is_exit_5(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    assert exit_status(["compare", str(tmp_path / "nowhere.json")]) == 5
    assert "nowhere.json" in capsys.readouterr().err


@pytest.mark.parametrize("format", ["text", "md", "csv", "json"])
def test_every_format_is_written(folders: list[str], format: str, capsys: pytest.CaptureFixture[str]):
    assert exit_status(["compare", *folders, "--format", format, "--label", "a,b"]) == 0
    assert "copy/bytes=4294967296,impl=torch" in capsys.readouterr().out


def test_prices_a_model_and_a_job_are_printed(folders: list[str], capsys: pytest.CaptureFixture[str]):
    options = (
        "--label a,b --usd-per-hour a=3.6,b=7.2 --usd-per-kwh 0.1 --model-parameters 70e9 --batch 64 --job-flop 1e21"
    )
    assert exit_status(["compare", *folders, *options.split()]) == 0
    out = capsys.readouterr().out
    for words in ("cost per PB", "prefill, 1 M tokens", "decode, 1 M tokens, batch 64", "job: 1000 exaFLOP in bf16"):
        assert words in out
