"""History: steps that are there are found, noise shows none at the stated rate, the screen, the page, bad input."""

import itertools
import json
import math
import random
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from harness import store
from harness.cli.app import exit_status
from harness.errors import ExitCode, HarnessError
from harness.history import ALPHA, LEAST_LEVEL, change_starts, history_of, own_noise, threshold
from harness.model import Case, Fact, Order, Record, Ruler, Run, Samples, Telemetry
from harness.noise import NoiseFile
from harness.noise_finding import noise_of
from harness.report.history import history_sections
from tests import hand_made

ROOT = Path(__file__).parents[1]
LATENCY = Case("launch", {"mode": "eager"}, (), kind="latency")
# Around 0 with a median difference of 0.2 %: ten runs that differ as runs do.
WOBBLE = (0.0, 0.002, -0.001, 0.001, -0.002, 0.0, 0.001, -0.001, 0.002, -0.002)


def timed(seconds: float, case: Case = hand_made.COPY, family: str = "memory", settled: bool | None = True) -> Record:
    data = (seconds, seconds)
    samples = Samples(data, 10, 20 * seconds, "events", "stream")
    return Record(case.key, family, case, "measured", samples=samples, telemetry=Telemetry(settled=settled))


def run_on(day: int, *records: Record, card: str | None = "c0ffee", boot: str | None = "b1", **facts: object) -> Run:
    created_at = f"2026-{1 + day // 28:02d}-{1 + day % 28:02d}T06:00:00Z"
    made = hand_made.gpu_run(*records, run_id=f"{created_at}-{card}", created_at=created_at)
    changed = {name: Fact(value) for name, value in {"card": card, "boot": boot, **facts}.items()}  # type: ignore[arg-type]
    return replace(made, environment={**made.environment, **changed}, site_key="site")


def old_and_new(slower: float = 1.02) -> list[Run]:
    """Ten runs under driver 570.86, ten under 580.1, one a day; the copy takes 2 ms, then 2 % more."""
    old = [run_on(day, timed(0.002 * math.exp(x)), boot="b1", driver="570.86") for day, x in enumerate(WOBBLE)]
    new = [
        run_on(10 + day, timed(0.002 * slower * math.exp(x)), boot="b2", driver="580.1") for day, x in enumerate(WOBBLE)
    ]
    return [*old, *new]


def no_noise(gpu: str) -> NoiseFile | None:
    return None


def lay_out(runs: list[Run], folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for number, run in enumerate(runs, start=1):
        store.save(run, folder / f"run-{number:03d}.json")
    return folder


# Changes.


def test_a_step_is_found_where_it_is_with_both_levels():
    history = history_of(old_and_new(), no_noise)
    ((series, change),) = history.changes
    assert (change.before.first, change.before.runs, change.after.first, change.after.runs) == (0, 10, 10, 10)
    assert math.exp(change.before.log_s) == pytest.approx(0.002)
    assert change.shift == pytest.approx(math.log(1.02))
    assert (change.last_before.driver, change.first_after.driver) == ("570.86", "580.1")
    assert change.together == ("driver 570.86 -> 580.1",)
    assert (change.boots_before, change.boots_after, change.is_new_boot) == (1, 1, True)
    assert change.chance < 0.01
    assert series.noise.source == "own runs"


def test_a_faster_level_is_a_change_too():
    ((_, change),) = history_of(old_and_new(0.97), no_noise).changes
    assert change.shift == pytest.approx(math.log(0.97))


def test_runs_are_put_in_order_of_time_whatever_their_order_in_files():
    runs = old_and_new()
    random.Random(7).shuffle(runs)
    assert history_of(runs, no_noise).changes == history_of(old_and_new(), no_noise).changes


def test_one_odd_run_is_no_level():
    runs = [run_on(day, timed(0.002 * (1.3 if day == 5 else 1.0) * math.exp(x))) for day, x in enumerate(WOBBLE)]
    history = history_of(runs, no_noise)
    assert not history.changes
    assert history.series[0].odd == (5,)
    assert any(
        "2026-01-06T06:00:00Z, driver 580.1: +29." in line for s in history_sections(history) for line in s.remarks
    )


@pytest.mark.parametrize("place", [0, 9])
def test_one_odd_run_at_either_end_waits_for_a_second(place: int):
    runs = [run_on(day, timed(0.002 * (1.3 if day == place else 1.0) * math.exp(x))) for day, x in enumerate(WOBBLE)]
    assert not history_of(runs, no_noise).changes


def test_equal_runs_are_no_change_and_their_last_digit_neither():
    runs = [run_on(day, timed(0.002 * (1 + 1e-6 * (day > 4)))) for day in range(10)]
    assert not history_of(runs, no_noise).changes


def test_two_steps_of_several_cards_are_each_its_own():
    levels = {"a": [0.0] * 12 + [0.05] * 12 + [0.0] * 12, "b": [0.0] * 36}
    rng = random.Random(3)
    runs = [
        run_on(day, timed(0.002 * math.exp(x + rng.gauss(0, 0.002))), card=card)
        for card, logs in levels.items()
        for day, x in enumerate(logs)
    ]
    history = history_of(runs, no_noise)
    assert [(s.card, c.after.first) for s, c in history.changes] in (
        [("a", 12), ("a", 24)],
        [("a", 24), ("a", 12)],
    )


def test_known_noise_that_is_wider_than_the_runs_own_hides_what_it_explains():
    """Runs of one minute agree within 0.1 %; the noise file knows that they come 2 % apart."""
    rng = random.Random(5)
    noisy = noise_of([run_on(day, timed(0.002 * math.exp(rng.gauss(0, 0.02)))) for day in range(20)])
    ((series),) = history_of(old_and_new(), lambda gpu: noisy).series
    assert (series.noise.source, series.changes) == ("noise file", ())
    assert series.noise.sd == pytest.approx(0.02, rel=0.4)


def test_another_cards_noise_counts_only_where_the_card_has_none():
    quiet = noise_of([run_on(day, timed(0.002 * math.exp(x / 10)), card="other") for day, x in enumerate(WOBBLE)])
    ((series),) = history_of(old_and_new(), lambda gpu: quiet).series
    assert series.noise.source == "own runs"
    assert len(series.changes) == 1


def test_what_else_changed_is_told():
    runs = [replace(run, source_hash={"memory": "aa" if day < 10 else "bb"}) for day, run in enumerate(old_and_new())]
    ((_, change),) = history_of(runs, no_noise).changes
    assert change.together == ("driver 570.86 -> 580.1", "source aa -> bb")


def test_unsettled_cases_runs_with_the_ruler_off_and_without_a_card_are_left_out_and_counted():
    off = Ruler("off")
    bad = [
        run_on(20, timed(1.0, settled=False)),
        replace(run_on(21, timed(1.0)), workers=tuple(replace(w, ruler=off) for w in run_on(21).workers)),
        run_on(22, timed(1.0), card=None),
    ]
    history = history_of([*old_and_new(), *bad], no_noise)
    assert (history.left_out.unsettled, history.left_out.ruler_off, history.left_out.without_card) == (1, 1, 1)
    assert len(history.series[0].points) == 20
    assert history.runs == 23


# Rates.


def partition_cost(logs: list[float], starts: tuple[int, ...], penalty: float) -> float:
    parts = np.split(np.array(logs), list(starts))
    return sum(float(((part - part.mean()) ** 2).sum()) for part in parts) + penalty * len(starts)


def test_runs_slowed_down_on_purpose_are_in_no_series_and_counted():
    slowed = [replace(run, order=replace(run.order, inject=("copy=2%",))) for run in old_and_new()[10:]]
    history = history_of([*old_and_new()[:10], *slowed], no_noise)
    assert (history.changes, history.left_out.injected) == ((), 10)
    assert "10 runs slowed down on purpose" in str(list(history_sections(history)))
    with pytest.raises(HarnessError, match="10 runs slowed down on purpose left out"):
        history_of(slowed, no_noise)


def test_the_library_finds_the_best_of_all_partitions():
    """Against every partition of ten values into levels of at least two."""
    rng = random.Random(11)
    for _ in range(30):
        logs = [rng.gauss(3.0 * (n // 4), 1.0) for n in range(10)]
        every = [
            starts
            for count in range(4)
            for starts in itertools.combinations(range(LEAST_LEVEL, 9), count)
            if all(b - a >= LEAST_LEVEL for a, b in itertools.pairwise((0, *starts, 10)))
        ]
        best = min(every, key=lambda starts: partition_cost(logs, starts, 8.0))
        assert tuple(change_starts(logs, 1.0, 8.0)) == best


def test_every_change_is_beyond_the_threshold():
    """The penalty is the least t² of a step, so the chance of each is at most the stated rate."""
    rng = random.Random(13)
    for _ in range(20):
        jumps = [rng.gauss(0, 0.004) for _ in range(4)]
        runs = [run_on(day, timed(0.002 * math.exp(jumps[day // 10] + rng.gauss(0, 0.001)))) for day in range(40)]
        for _, change in history_of(runs, no_noise).changes:
            assert change.chance <= ALPHA


@pytest.mark.parametrize("runs", [8, 20, 60])
def test_noise_alone_shows_a_change_at_most_at_the_stated_rate(runs: int):
    """400 histories of ten series each, without any change; 20 of them (5 %) may show one, and far fewer do."""
    rng = np.random.default_rng(17)
    shown = 0
    for _ in range(400):
        found = False
        for _ in range(10):
            logs = rng.normal(0, 0.003, runs).tolist()
            known = 0.003 * math.sqrt(rng.chisquare(18) / 18)
            own = own_noise(logs)
            least = threshold(max(18.0, own.freedom), runs, 10)
            found |= bool(change_starts(logs, max(known, own.sd), least**2))
        shown += found
    assert shown <= ALPHA * 400


@pytest.mark.parametrize(("step", "least_found"), [(0.005, 0.05), (0.01, 0.85), (0.02, 1.0)])
def test_steps_over_known_noise_are_found(step: float, least_found: float):
    """Ten runs before and after, sd 0.3 % known from 19 runs, one of twenty series: the share found, within a run."""
    rng = np.random.default_rng(19)
    found = 0
    for _ in range(200):
        logs = (rng.normal(0, 0.003, 20) + step * (np.arange(20) >= 10)).tolist()
        sd = max(0.003, own_noise(logs).sd)
        starts = change_starts(logs, sd, threshold(18.0, 20, 20) ** 2)
        found += len(starts) == 1 and abs(starts[0] - 10) <= 1
    assert found / 200 >= least_found


# The screen and the page.


def test_the_whole_screen_of_a_change(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    runs = [
        replace(run, records=(*run.records, timed(5e-6 * math.exp(x), LATENCY, "driver")))
        for run, x in zip(old_and_new(), WOBBLE * 2, strict=True)
    ]
    folder = lay_out([*runs, run_on(40, timed(0.001), card="other")], tmp_path / "set")
    assert exit_status(["history", str(folder), "--noise", str(tmp_path)]) == ExitCode.DONE
    assert capsys.readouterr().out == (ROOT / "tests" / "data" / "history_screen.txt").read_text()


def test_a_steady_history_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    folder = lay_out(old_and_new(1.0), tmp_path / "set")
    assert exit_status(["history", str(folder), "--noise", str(tmp_path)]) == ExitCode.DONE
    assert "changes\n  no change in any series\n" in capsys.readouterr().out


def test_a_tree_of_sets_is_read_past_what_is_no_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    lay_out(old_and_new()[:10], tmp_path / "baselines" / "old")
    lay_out(old_and_new()[10:], tmp_path / "baselines" / "new")
    (tmp_path / "noise").mkdir()
    (tmp_path / "noise" / "nvidia-test.json").write_text("{}")
    assert exit_status(["history", str(tmp_path), "--noise", str(tmp_path)]) == ExitCode.DONE
    assert "+2.00 %" in capsys.readouterr().out


def test_the_committed_runs_show_no_change_under_one_driver(capsys: pytest.CaptureFixture[str]):
    assert exit_status(["history", str(ROOT / "results" / "baselines")]) == ExitCode.DONE
    out = capsys.readouterr().out
    assert f"{len(list((ROOT / 'results' / 'baselines').rglob('*.json')))} runs" in out
    assert "no change in any series" in out


def test_the_page_has_a_plot_and_its_table_a_case(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    folder, page = lay_out(old_and_new(), tmp_path / "set"), tmp_path / "page.html"
    assert exit_status(["history", str(folder), "--noise", str(tmp_path), "-o", str(page)]) == ExitCode.DONE
    assert f"{page}: " in capsys.readouterr().out
    text = page.read_text()
    assert "<title>History: NVIDIA Test</title>" in text
    assert "1 change in 1 of 1 series; the largest is +2.00\u00a0% of the time a launch" in text
    begins = text.index('id="plot-history-0-data">') + len('id="plot-history-0-data">')
    plot = json.loads(text[begins : text.index("</script>", begins)])
    marks, before, after = plot["data"]
    assert len(marks["x"]) == 20
    assert (before["x"], after["x"]) == ([0.6, 10.4], [10.6, 20.4])
    assert before["y"] == pytest.approx([3000.0] * 2)
    assert [shape["x0"] for shape in plot["layout"]["shapes"]] == [10.5]
    assert [note["text"] for note in plot["layout"]["annotations"]] == ["570.86", "580.1"]


def test_nothing_of_a_file_is_read_as_markup(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    hostile = "<script>alert(1)</script>\x1b[31m[bold]"
    runs = [replace(r, environment={**r.environment, "driver": Fact(hostile)}) for r in old_and_new()]
    folder, page = lay_out(runs, tmp_path / "set"), tmp_path / "page.html"
    assert exit_status(["history", str(folder), "--noise", str(tmp_path), "-o", str(page)]) == ExitCode.DONE
    assert "\x1b" not in capsys.readouterr().out
    assert "<script>alert" not in page.read_text()


# What a user can fix.


def complaint(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    assert exit_status(["history", *arguments]) == ExitCode.USAGE
    captured = capsys.readouterr()
    assert (captured.out, captured.err.count("\n")) == ("", 1)
    return captured.err


def test_bad_input_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    few = lay_out(old_and_new()[:3], tmp_path / "few")
    assert "a change needs 4 runs of a case on one card; of 3 runs there are at most 3." in complaint(
        [str(few)], capsys
    )
    twice = [str(few / "run-001.json"), str(few / "run-001.json")]
    assert "is there twice. Name it once." in complaint(twice, capsys)
    (tmp_path / "empty").mkdir()
    assert "holds no run files" in complaint([str(tmp_path / "empty")], capsys)
    assert "nowhere.json" in complaint([str(tmp_path / "nowhere.json")], capsys)
    (tmp_path / "foreign.json").write_text("[1]")
    assert "foreign.json" in complaint([str(tmp_path / "foreign.json")], capsys)
    (tmp_path / "cut.json").write_text((few / "run-001.json").read_text()[:200])
    assert "cut.json" in complaint([str(tmp_path / "cut.json")], capsys)


def test_a_page_that_cannot_be_written_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    folder = lay_out(old_and_new(), tmp_path / "set")
    assert "it is a folder" in complaint([str(folder), "-o", str(tmp_path)], capsys)


def test_a_missing_library_is_named(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "ruptures.detection", None)
    with pytest.raises(HarnessError, match=r"needs ruptures: pip install 'ofpeak\[history\]'"):
        history_of(old_and_new(), no_noise)


def test_a_declared_clock_is_another_case():
    """Keys hold what was declared, so two regimes are two series and no step."""
    locked = replace(hand_made.COPY, params={**hand_made.COPY.params, "clocks": "locked-1410"})
    runs = [
        replace(
            run_on(day, timed(0.002 * math.exp(x), hand_made.COPY if day < 5 else locked)),
            order=Order(declare="" if day < 5 else "clocks=locked:1410"),
        )
        for day, x in enumerate(WOBBLE)
    ]
    history = history_of(runs, no_noise)
    assert len(history.series) == 2
    assert not history.changes
