"""The gate's self-test: blocks in the order of time, slowdowns where they belong, the whole screen, bad input."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from harness import store
from harness.cli.app import exit_status
from harness.errors import ExitCode
from harness.gate.policy import load_policy
from harness.gate_selftest import PATTERNS, SLOWDOWNS, selftest, slow_down
from harness.model import Case, Fact, Metric, Record, Run, Samples, Telemetry, Work
from tests import hand_made

ROOT = Path(__file__).parents[1]
NINETEEN = ROOT / "results" / "baselines" / "nvidia-h200" / "20261130_driver-580.159.04_quick-19"
READ = Case("read", {"bytes": 2**32}, (Work(4e9, "B", "memory", "read"),))


def timed(seconds: float, case: Case = hand_made.COPY) -> Record:
    """A case of 100 samples, the last of them a tenth longer."""
    data = (*[seconds] * 99, 1.1 * seconds)
    return Record(
        case.key,
        "memory",
        case,
        "measured",
        samples=Samples(data, 10, 10 * sum(data), "events", "stream"),
        telemetry=Telemetry(settled=True, limited_by="power"),
        metrics=(Metric("energy_per_work", 2e-10, "J/B"),),
    )


def run_at(minute: int, *records: Record, **facts: object) -> Run:
    created_at = f"2026-01-{2 + minute // 1440:02d}T{minute // 60 % 24:02d}:{minute % 60:02d}:00Z"
    made = hand_made.gpu_run(*records, run_id=f"{created_at} {sorted(facts.items())}", created_at=created_at)
    environment = {**made.environment, "boot": Fact("b1")} | {name: Fact(value) for name, value in facts.items()}  # type: ignore[arg-type]
    return replace(made, environment=environment, site_key="site", source_hash={"memory": "aa"})


def lay_out(folder: Path, runs: list[Run]) -> list[Path]:
    folder.mkdir(exist_ok=True)
    for number, run in enumerate(runs, start=1):
        store.save(run, folder / f"run-{number:03d}.json")
    return sorted(folder.glob("*.json"))


def set_of(minutes: range, *, slower_from: int = 10**9, slower: float = 1.0, seed: int = 1) -> list[Run]:
    """A copy and a read a minute, with 0.1 % of noise; slower by a factor from that minute on."""
    rng = np.random.default_rng(seed)
    return [
        run_at(
            minute,
            *(
                timed(0.002 * (slower if minute >= slower_from else 1.0) * float(np.exp(rng.normal(0, 0.001))), case)
                for case in (hand_made.COPY, READ)
            ),
        )
        for minute in minutes
    ]


def by_grouping(found, grouping: str):
    return next(equal for equal in found.equal if equal.grouping == grouping)


def test_blocks_are_cut_in_the_order_of_time(tmp_path: Path):
    """Ten runs, an hour, ten runs: two starts; halves and starts are the same blocks, of one day."""
    files = lay_out(tmp_path / "set", [*set_of(range(10)), *set_of(range(70, 80), seed=2)])
    found = selftest(files[::-1], load_policy())
    counts = {equal.grouping: (equal.blocks, equal.independent, equal.comparisons) for equal in found.equal}
    assert counts == {
        "halves": (2, 1, 2),
        "starts": (2, 1, 2),
        "days": (1, 0, 0),
        "5 in a row": (4, 2, 12),
        "3 in a row": (6, 3, 30),
    }
    assert all(equal.false == 0 for equal in found.equal)
    assert by_grouping(found, "halves").cases == {"pass": 4}


def test_a_step_between_starts_is_called_slower_one_way(tmp_path: Path):
    files = lay_out(tmp_path / "set", set_of(range(20), slower_from=10, slower=1.03))
    halves = by_grouping(selftest(files, load_policy()), "halves")
    assert (halves.comparisons, halves.false, halves.passes) == (2, 1, 1)
    assert {alarm.key for alarm in halves.alarms} == {hand_made.COPY.key, READ.key, "mean of 2 cases of memory"}
    assert halves.alarms[0].slowdown == pytest.approx(0.03, abs=0.003)
    assert halves.alarms[0].baseline == "2026-01-02 00:00 to 00:09"


def test_drivers_and_cards_are_never_held_against_each_other(tmp_path: Path):
    runs = set_of(range(24))
    others = {"driver": "570.1", "card": "other"}
    mixed = [
        replace(run, environment={**run.environment, name: Fact(value)})
        for (name, value), some in zip(others.items(), (runs[:6], runs[6:12]), strict=True)
        for run in some
    ]
    found = selftest(lay_out(tmp_path / "set", [*mixed, *runs[12:]]), load_policy())
    assert (found.runs, found.cards, len(found.drivers)) == (24, 2, 2)
    assert by_grouping(found, "halves").blocks == 6
    assert by_grouping(found, "halves").comparisons == 6


def test_two_days_are_two_blocks(tmp_path: Path):
    files = lay_out(tmp_path / "set", [*set_of(range(5)), *set_of(range(1440, 1445), seed=2)])
    assert by_grouping(selftest(files, load_policy()), "days").comparisons == 2


@pytest.mark.parametrize(
    ("pattern", "mean"),
    [("every sample", 1.05), ("40 % of samples", 1 + 0.4 * 0.05), ("slowest 5 % of samples", 1 + 0.05 * 0.05)],
)
def test_a_slowdown_goes_into_the_samples_that_it_names(pattern, mean: float):
    samples = Samples((1.0,) * 100, 10, 1000.0, "events", "stream")
    slow = slow_down(samples, pattern, 0.05, np.random.default_rng(1))
    assert slow.window_s == pytest.approx(1000 * mean)
    assert slow.seconds_per_launch == pytest.approx(mean)
    assert sum(value > 1.0 for value in slow.seconds) == {1.05: 100, 1.02: 40, 1.0025: 5}[round(mean, 4)]


def test_the_slowest_samples_are_the_slowest():
    samples = Samples(tuple(1.0 + n / 1000 for n in range(20)), 10, 10 * 20.19, "events", "stream")
    slow = slow_down(samples, "slowest 5 % of samples", 0.1, np.random.default_rng(1))
    assert slow.seconds[:19] == samples.seconds[:19]
    assert slow.seconds[19] == pytest.approx(1.019 * 1.1)


def test_large_slowdowns_are_found_and_small_ones_pass(tmp_path: Path):
    found = selftest(lay_out(tmp_path / "set", set_of(range(15))), load_policy())
    uniform = {power.slowdown: power for power in found.power if power.pattern == "every sample"}
    assert found.powered_by == "5 in a row"
    assert [(s, p.trials, p.found, p.passed) for s, p in uniform.items() if s != 0.01] == [
        (0.005, 12, 0, 12),
        (0.02, 12, 12, 0),
        (0.03, 12, 12, 0),
        (0.05, 12, 12, 0),
    ]
    assert {(power.pattern, power.slowdown) for power in found.power} == {(p, s) for p in PATTERNS for s in SLOWDOWNS}


def test_the_same_files_give_the_same_answer(tmp_path: Path):
    files = lay_out(tmp_path / "set", set_of(range(10)))
    assert selftest(files, load_policy()) == selftest(files[::-1], load_policy())


def test_the_whole_screen_of_the_committed_runs(capsys: pytest.CaptureFixture[str]):
    """The page in docs/ is what the command prints; whatever comes out is reported."""
    assert exit_status(["gate-selftest", str(NINETEEN)]) == ExitCode.DONE
    page = (ROOT / "docs" / "gate-selftest.md").read_text()
    assert page.count("```") == 2
    assert capsys.readouterr().out == page.split("```\n")[1]


def test_markdown_holds_the_same_figures(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    lay_out(tmp_path / "set", set_of(range(6)))
    assert exit_status(["gate-selftest", str(tmp_path / "set"), "--format", "md"]) == ExitCode.DONE
    out = capsys.readouterr().out
    assert out.startswith("### self-test of the gate\n")
    assert "| halves | 2 | 1 | 2 | 0 | 0 to 79 % | " in out


def complaint(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    assert exit_status(["gate-selftest", *arguments]) == ExitCode.USAGE
    captured = capsys.readouterr()
    assert (captured.out, captured.err.count("\n")) == ("", 1)
    return captured.err


def test_bad_input_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    few = lay_out(tmp_path / "few", set_of(range(5)))
    said = complaint([str(tmp_path / "few")], capsys)
    assert "needs 6 runs of one card under the same conditions; of 5 there are at most 5." in said
    assert "hold the same run" in complaint([str(few[0]), str(few[0])], capsys)
    (tmp_path / "empty").mkdir()
    assert "empty holds no run files (*.json)." in complaint([str(tmp_path / "empty")], capsys)
    (tmp_path / "cut.json").write_text(few[0].read_text()[:300])
    assert "cut.json" in complaint([str(tmp_path / "cut.json")], capsys)
    assert "no percentage" in complaint([str(tmp_path / "few"), "--assume-boot-sd", "much"], capsys)
    assert "nowhere.toml" in complaint([str(tmp_path / "few"), "--policy", "nowhere.toml"], capsys)


def test_runs_under_other_libraries_are_no_series(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    mixed = [
        *set_of(range(5)),
        *(replace(run, environment={**run.environment, "torch": Fact("9.9")}) for run in set_of(range(5, 10))),
    ]
    lay_out(tmp_path / "mixed", mixed)
    assert "of 10 there are at most 5." in complaint([str(tmp_path / "mixed")], capsys)


def test_a_case_that_is_in_one_block_only_is_tried_nowhere(tmp_path: Path):
    """A family whose only case was in no two blocks had no trials, and its share divided by zero."""
    write = replace(READ, op="write")
    runs = set_of(range(10))
    first = [replace(run, records=(*run.records, replace(timed(0.002, write), family="other"))) for run in runs[:5]]
    tested = selftest(lay_out(tmp_path / "one", [*first, *runs[5:]]), load_policy())
    assert {power.family for power in tested.power} == {"memory"}
