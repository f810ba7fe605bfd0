"""What holds for every input: scaling scales, order does not matter, nothing foreign ends in a traceback."""

import json
import math
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from harness import statistics, store
from harness.compare import compare, set_of
from harness.digest_files import read_digests
from harness.errors import HarnessError
from harness.metrics import derive_metrics
from harness.model import Record, Run, Samples
from harness.recovery import recover
from tests.hand_made import GPU, SHEET, copy_record, gpu_run
from tests.hand_made_journals import events, write

pytest.importorskip("pydantic")

# The same examples each time: a test that fails on one machine fails on all.
steady = settings(
    max_examples=60, derandomize=True, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


@pytest.fixture(autouse=True)
def without_waiting_for_the_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is on disk when is not what is asked here."""
    monkeypatch.setattr(os, "fsync", lambda _: None)


times = st.lists(st.floats(1e-7, 10.0), min_size=1, max_size=40)
numbers = st.lists(st.floats(allow_nan=False, allow_infinity=False, width=32), max_size=30)
rates = st.lists(st.floats(1e9, 1e13), min_size=1, max_size=6)
scales = st.sampled_from((2.0**-10, 0.5, 2.0, 1024.0))  # exact in floating point
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=12), inner, max_size=4),
    max_leaves=20,
)


def timed(seconds: list[float]) -> Record:
    samples = Samples(tuple(seconds), 10, 10 * math.fsum(seconds), "events", "stream")
    record = copy_record()
    assert record.telemetry is not None
    return replace(record, samples=samples, metrics=derive_metrics(record.case, samples, record.telemetry, SHEET, GPU))


def value(record: Record, name: str) -> float:
    metric = record.metric(name)
    assert metric is not None
    assert metric.value is not None
    return metric.value


@steady
@given(times, scales)
def test_scaling_all_samples_scales_rate_and_time(seconds: list[float], scale: float):
    before, after = timed(seconds), timed([s * scale for s in seconds])
    assert value(after, "rate") == pytest.approx(value(before, "rate") / scale)
    assert value(after, "time") == pytest.approx(value(before, "time") * scale)


@steady
@given(times, scales)
def test_scaling_all_samples_scales_what_pytest_benchmark_reads(seconds: list[float], scale: float):
    before = statistics.pytest_benchmark_stats(seconds)
    after = statistics.pytest_benchmark_stats([s * scale for s in seconds])
    for name in ("min", "max", "mean", "median", "iqr", "total"):
        assert after[name] == pytest.approx(float(before[name]) * scale), name
    assert after["rounds"] == before["rounds"] == len(seconds)


@steady
@given(numbers, numbers)
def test_statistics_of_any_numbers_are_finite_or_unknown(first: list[float], second: list[float]):
    length = min(len(first), len(second))
    ordered = sorted(set(first))[:length]
    asked: tuple[Callable[[], Any], ...] = (
        lambda: statistics.mean_interval(first),
        lambda: statistics.mean_error(first),
        lambda: statistics.pooled_sd([first, second]),
        lambda: statistics.between_sd([first, second]),
        lambda: statistics.lag1_correlation([first, second]),
        lambda: statistics.slope_per_s(ordered, second[: len(ordered)]),
        lambda: statistics.hold_mean(ordered, second[: len(ordered)], -1.0, 1.0),
        lambda: statistics.rise_time(ordered, second[: len(ordered)]),
    )
    for ask in asked:
        found = ask()
        parts = found if isinstance(found, tuple) else (found,)
        assert all(part is None or math.isfinite(part) for part in parts), found


@steady
@given(rates, st.randoms(use_true_random=False))
def test_order_of_runs_in_a_set_does_not_matter(values: list[float], random: Any):
    runs = [gpu_run(copy_record(rate), run_id=f"r{number}") for number, rate in enumerate(values)]
    shuffled = random.sample(runs, len(runs))
    other = [gpu_run(copy_record(3e12), run_id="other")]
    first, second = (compare([set_of("a", some), set_of("b", other)]) for some in (runs, shuffled))
    assert first.rows == second.rows
    assert first.families == second.families


@steady
@given(times)
def test_any_samples_survive_a_run_file(tmp_path: Path, seconds: list[float]):
    store.save(gpu_run(timed(seconds)), tmp_path / "run.json")
    loaded = store.load(tmp_path / "run.json")
    store.save(loaded, tmp_path / "again.json")
    assert store.load(tmp_path / "again.json") == loaded


def refused_or(read: Callable[[], Any]) -> Any:
    """What was read, or nothing if it was refused in one line."""
    try:
        return read()
    except HarnessError as error:
        assert "\n" not in str(error)
        return None


@steady
@given(json_values)
def test_any_json_is_no_run_and_is_refused(tmp_path: Path, content: Any):
    path = tmp_path / "any.json"
    path.write_text(json.dumps(content))
    assert refused_or(lambda: store.load(path)) is None
    assert refused_or(lambda: read_digests([path], use_cache=False)) is None


@steady
@given(json_values, st.data())
def test_any_value_in_a_run_file_is_taken_or_refused(tmp_path: Path, content: Any, data: st.DataObject):
    path, document = tmp_path / "any.json", store.compose(gpu_run(timed([0.002, 0.003])))
    container: Any = document
    key = data.draw(st.sampled_from(sorted(container)))
    while isinstance(container[key], dict | list) and container[key] and data.draw(st.booleans()):
        container = container[key]
        key = data.draw(st.sampled_from(sorted(container) if isinstance(container, dict) else range(len(container))))
    container[key] = content
    path.write_text(json.dumps(document))
    found = refused_or(lambda: store.load(path))
    assert found is None or isinstance(found, Run)
    refused_or(lambda: read_digests([path], use_cache=False))


@steady
@given(json_values, st.data())
def test_any_value_in_a_journal_is_taken_or_refused(tmp_path: Path, content: Any, data: st.DataObject):
    told = events()
    container: Any = data.draw(st.sampled_from(told))
    key = data.draw(st.sampled_from(sorted(container)))
    while isinstance(container[key], dict | list) and container[key] and data.draw(st.booleans()):
        container = container[key]
        key = data.draw(st.sampled_from(sorted(container) if isinstance(container, dict) else range(len(container))))
    container[key] = content
    (found,) = recover(write(tmp_path / "run-001.jsonl", told), tmp_path / "out.json")
    (tmp_path / "out.json").unlink(missing_ok=True)
    assert (found.run is None) == bool(found.problem)
    assert "\n" not in found.problem


@steady
@given(st.binary(max_size=300))
def test_any_bytes_are_no_journal(tmp_path: Path, content: bytes):
    (tmp_path / "run-001.jsonl").write_bytes(content)
    (found,) = recover(tmp_path / "run-001.jsonl", tmp_path / "out.json")
    assert found.problem
    assert found.run is None
