"""Run files: what is written, we and pytest-benchmark can read; what is damaged or foreign is one clear line."""

import json
import math
import os
import random
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from harness.assembly import run_from_events
from harness.errors import ExitCode, HarnessError
from harness.journal import Journal, read_events
from harness.model import (
    Case,
    Check,
    DeviceFacts,
    Fact,
    Metric,
    Order,
    Peak,
    PeakSheet,
    Record,
    Ruler,
    RulerPart,
    Run,
    Samples,
    Telemetry,
    Work,
    Worker,
    to_plain,
)
from harness.store import SCHEMA_VERSION, compose, frame, load, load_set, save, schema_text

pytest.importorskip("pydantic")

COPY = Case("copy", {"bytes": 1024, "impl": "torch"}, (Work(2048, "B", "memory", "read + write"),))
GEMM = Case("gemm", {"dtype": "bf16", "m": 8}, (Work(2 * 8192**3, "FLOP", "bf16", "2mnk"),), deterministic=True)
PEER = Case("peer_copy", {"bytes": 8}, (Work(8, "B", None, "one way", no_peak="one GPU"),), kind="latency")

SAMPLES = Samples((0.001, 0.0011, 0.0009, 0.001), 10, 0.04, "cuda_event", "stream")
TELEMETRY = Telemetry(
    settled=True,
    sm_clock_mhz=1343.0,
    power_w=695.0,
    throttle_ratio={"power_cap": 0.97},
    limited_by="power",
    timeline={"time_s": (0.0, 0.1), "power_w": (690.5, None)},
    missing={"memory_temperature_c": "not supported"},
)
RATE = Metric("rate", 2.048e6, "B/s", "higher", 2e6, 2.1e6, "read + write")
NO_RATIO = Metric("spec_ratio", None, "ratio", "higher", reason="no peak is known")

MEASURED = Record(
    COPY.key,
    "memory",
    COPY,
    "measured",
    samples=SAMPLES,
    telemetry=TELEMETRY,
    checks=(Check("before", "sqnr_db", True, 55.5, 40.0),),
    metrics=(RATE, NO_RATIO),
    warnings=("unsettled: a test",),
    worker=1,
    wall_s=1.5,
)
FAILED = Record(GEMM.key, "gemm", GEMM, "failed", "wrong by 3.0 dB", samples=replace(SAMPLES, starved=1))
SKIPPED = Record(PEER.key, "peer", PEER, "not_applicable", "needs two GPUs")

RUN = Run(
    run_id="r1",
    created_at="2026-01-02T03:04:05+00:00",
    schema_version=SCHEMA_VERSION,
    suite_version="0.1.0",
    order=Order(profile="quick", only=("copy*", "gemm*")),
    device=DeviceFacts("cuda", "NVIDIA Test", "cuda:0", gpu_count=1, compute_capability=(9, 0), l2_bytes=60 * 2**20),
    sheet=PeakSheet("Test", "exact", peaks={"memory": Peak(4.8e12, "B", "read", "data sheet")}),
    environment={
        "driver": Fact("580.1"),
        "power_limit_w": Fact(700),
        "ecc": Fact(True),
        "ratio": Fact(0.5, role="informative"),
        "card": Fact("c0ffee", role="sensitive"),
        "nccl": Fact(None, status="not installed"),
    },
    workers=(Worker(1, "2026-01-02T03:04:06+00:00", "finished", {"seconds": 12.5, "settled": True, "why": None}),),
    records=(FAILED, MEASURED, SKIPPED),
    partial="1 of 4 cases was not run",
    site_key="abc",
    source_hash={"memory": "m1", "gemm": "g1"},
)


def document():
    """A fresh plain copy of the run's file."""
    return json.loads(json.dumps(compose(RUN)))


def written(tmp_path, content, name="run.json"):
    path = tmp_path / name
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    return path


def refusal(path):
    """The one line that a reader gets."""
    with pytest.raises(HarnessError) as caught:
        load(path)
    message = str(caught.value)
    assert "\n" not in message
    assert str(path) in message
    assert caught.value.exit_code == ExitCode.USAGE
    return message


def measured(seconds=SAMPLES.seconds, **changes):
    samples = Samples(tuple(seconds), 1, changes.pop("window_s", sum(seconds)), "cuda_event", "stream")
    return replace(RUN, records=(replace(MEASURED, samples=samples, **changes),))


# What is written


def test_a_run_survives_being_saved_and_loaded(tmp_path):
    save(RUN, tmp_path / "run.json")
    assert load(tmp_path / "run.json") == RUN


RULER = Ruler(
    "off",
    (
        RulerPart("tick", True, 3.2e-8, "s", 0.0, 2e-6),
        RulerPart("spin_20us", False, 3e-6, "s", -2e-7, 1.6e-6, "reads 2.3e-05 s"),
        RulerPart("pipe_fp8", None, None, "ratio", 0.99, 1.005, "the resident loop does not run here"),
    ),
    "out of bounds: spin_20us",
)
IDLE = {"power_w": 119.5, "seconds": 2.0, "temperature_c": None, "reason": ""}


def test_ruler_and_idle_power_of_a_worker_survive_too(tmp_path):
    run = replace(RUN, workers=(replace(RUN.workers[0], ruler=RULER, idle=IDLE),))
    save(run, tmp_path / "run.json")
    assert load(tmp_path / "run.json") == run
    assert load(tmp_path / "run.json").ruler == RULER


def test_burst_settling_and_energy_check_survive_too(tmp_path):
    telemetry = replace(
        TELEMETRY,
        timeline={"time_s": (-0.1, 0.0), "power_w": (None, 690.5)},
        burst={"time_s": (0.01,), "launch_s": (0.0016,), "sm_clock_mhz": (None,)},
        power_counter_w=695.0,
        power_instant_w=700.0,
        energy_check_ratio=-0.00714,
    )
    run = measured(telemetry=telemetry, metrics=(replace(RATE, systematic_ratio=0.05),))
    save(run, tmp_path / "run.json")
    assert load(tmp_path / "run.json") == run


def test_time_at_which_a_window_began_is_kept_to_the_millisecond(tmp_path):
    """As Unix seconds it was cut to six digits like every figure, which are good to a quarter of an hour."""
    began = "2026-01-02T03:04:05.678Z"
    save(measured(telemetry=replace(TELEMETRY, window_began_at=began)), tmp_path / "run.json")
    assert load(tmp_path / "run.json").records[0].telemetry.window_began_at == began


def test_benchmarks_are_the_measured_records_and_nothing_else():
    content = compose(RUN)
    assert [b["name"] for b in content["benchmarks"]] == [COPY.key]
    assert [r["key"] for r in content["not_measured"]] == [GEMM.key, PEER.key]
    assert content["not_measured"][1]["reason"] == "needs two GPUs"


def test_a_benchmark_says_what_pytest_benchmark_readers_look_for():
    benchmark = compose(RUN)["benchmarks"][0]
    assert benchmark["name"] == benchmark["fullname"] == "copy/bytes=1024,impl=torch"
    assert benchmark["group"] == "memory"
    assert benchmark["params"] == {"bytes": 1024, "impl": "torch"}
    assert benchmark["options"]["timer"] == "cuda_event"
    assert benchmark["stats"]["mean"] == pytest.approx(0.001)
    assert (benchmark["stats"]["rounds"], benchmark["stats"]["iterations"]) == (4, 10)


def test_samples_are_written_once():
    text = json.dumps(compose(RUN)["benchmarks"])
    assert text.count("[0.001, 0.0011, 0.0009, 0.001]") == 1
    assert "seconds" not in compose(RUN)["benchmarks"][0]["extra_info"]["samples"]


def test_machine_info_shows_gpu_and_driver_and_no_host():
    assert compose(RUN)["machine_info"] == {
        "run_id": "r1",
        "gpu": "NVIDIA Test",
        "gpu_count": 1,
        "driver": "580.1",
        "cpu": {},
    }


def test_figures_keep_six_digits_and_samples_seven():
    telemetry = Telemetry(power_w=695.123456789, pcie_lanes=16)
    content = compose(
        measured((0.00123456789,) * 4, telemetry=telemetry, metrics=(Metric("rate", 1.23456789e12, "B/s"),))
    )
    benchmark = content["benchmarks"][0]
    assert benchmark["stats"]["data"] == [0.001234568] * 4
    assert benchmark["extra_info"]["metrics"][0]["value"] == 1.23457e12
    assert benchmark["extra_info"]["telemetry"] == {"power_w": 695.123, "pcie_lanes": 16, "limited_by": "unknown"}


def test_work_and_window_stay_exact(tmp_path):
    run = measured((1 / 3,) * 4, window_s=4 / 3)
    save(run, tmp_path / "run.json")
    record = load(tmp_path / "run.json").records[0]
    assert record.samples.window_s == 4 / 3
    assert load(written(tmp_path, compose(RUN))).records[0].case.work[0].amount == 2 * 8192**3


def test_a_standard_run_stays_under_half_a_megabyte(tmp_path):
    rng = random.Random(3)
    timeline = {name: tuple(rng.uniform(600, 700) for _ in range(50)) for name in ("time_s", "power_w", "sm_mhz")}
    records = []
    for number in range(40):
        case = replace(COPY, params={"bytes": 1024 + number, "impl": "torch"})
        seconds = tuple(rng.uniform(0.0010, 0.0011) for _ in range(200))
        metrics = tuple(replace(RATE, name=f"metric_{i}", value=rng.random()) for i in range(15))
        samples = Samples(seconds, 3, 3 * sum(seconds), "cuda_event", "stream")
        telemetry = replace(TELEMETRY, timeline=timeline)
        records.append(
            replace(MEASURED, key=case.key, case=case, samples=samples, telemetry=telemetry, metrics=metrics)
        )
    save(replace(RUN, records=tuple(records)), tmp_path / "run.json")
    assert (tmp_path / "run.json").stat().st_size < 500_000


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf, 0.0, -0.001])
def test_a_sample_that_is_no_time_is_refused_with_its_case(bad):
    with pytest.raises(HarnessError, match=r"copy/bytes=1024,impl=torch: a time of .* s cannot be"):
        compose(measured((0.001, 0.001, 0.001, bad), window_s=0.004))


def test_a_figure_that_is_not_finite_is_refused_with_its_case():
    for record in (
        replace(MEASURED, telemetry=Telemetry(power_w=math.nan)),
        replace(MEASURED, metrics=(Metric("rate", math.inf, "B/s"),)),
        replace(FAILED, telemetry=Telemetry(timeline={"power_w": (1.0, math.nan)})),
    ):
        with pytest.raises(HarnessError, match=re.escape(record.key)):
            compose(replace(RUN, records=(record,)))


def test_samples_must_add_up_to_their_window():
    with pytest.raises(HarnessError, match=r"its samples add up to 0\.004 s, its window is 0\.005 s"):
        compose(measured((0.001,) * 4, window_s=0.005))


def test_a_case_cannot_be_there_twice():
    with pytest.raises(HarnessError, match="is there twice"):
        compose(replace(RUN, records=(MEASURED, MEASURED)))


def test_saving_replaces_the_file_whole_and_leaves_nothing_beside_it(tmp_path):
    path = tmp_path / "new" / "run.json"
    save(RUN, path)
    save(replace(RUN, run_id="r2"), path)
    assert load(path).run_id == "r2"
    assert os.listdir(path.parent) == ["run.json"]  # noqa: PTH208  # hidden files count too


def test_a_run_that_cannot_be_composed_leaves_the_old_file(tmp_path):
    path = tmp_path / "run.json"
    save(RUN, path)
    with pytest.raises(HarnessError):
        save(measured((math.nan,) * 4), path)
    assert load(path) == RUN


def test_pytest_benchmark_compares_a_run_file(tmp_path):
    command = Path(sys.executable).with_name("pytest-benchmark")
    if not command.exists():
        pytest.skip(f"no {command.name} beside {sys.executable}")
    save(RUN, tmp_path / "run.json")
    done = subprocess.run(
        [command, "compare", "run.json", "--columns=min,mean,stddev,outliers,ops,rounds,iterations", "--sort=name"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert COPY.key in done.stdout
    assert "Failed to load" not in done.stdout + done.stderr


# Random runs


def random_run(seed):
    """A run of random shape whose figures are short enough to survive the file."""
    rng = random.Random(seed)

    def figure():
        return float(f"{rng.lognormvariate(0, 8):.6g}")

    def maybe(value):
        return value if rng.random() < 0.7 else None

    def record(number):
        case = Case(
            rng.choice(["copy", "gemm"]),
            {"n": number, "impl": rng.choice(["torch", "triton"])},
            tuple(Work(rng.randrange(1, 2**50), "B", maybe("memory"), "é \N{GREEK SMALL LETTER MU}") for _ in range(2)),
            kind=rng.choice(["throughput", "latency", "quality"]),
        )
        seconds = tuple(float(f"{rng.lognormvariate(-7, 0.2):.7g}") for _ in range(rng.randrange(1, 201)))
        launches = rng.randrange(1, 50)
        samples = Samples(seconds, launches, sum(seconds) * launches, "cuda_event", "graph", rng.randrange(0, 2))
        telemetry = Telemetry(maybe(rng.random() < 0.5), maybe(figure()), maybe(figure()), power_w=maybe(figure()))
        metrics = tuple(Metric(f"m{i}", maybe(figure()), "B/s", low=maybe(figure())) for i in range(3))
        outcome = rng.choice(["measured", "measured", "checked", "failed", "not_run"])
        if outcome != "measured":
            return Record(case.key, "family", case, outcome, "a reason", worker=number)
        return Record(case.key, "family", case, outcome, "", samples, maybe(telemetry), metrics=metrics)

    return replace(RUN, run_id=f"r{seed}", records=tuple(record(n) for n in range(rng.randrange(1, 12))))


@pytest.mark.parametrize("seed", range(20))
def test_random_runs_survive_being_saved_and_loaded(seed, tmp_path):
    run = random_run(seed)
    save(run, tmp_path / "run.json")
    assert load(tmp_path / "run.json") == run


def test_digits_are_lost_once_and_never_again(tmp_path):
    run = measured((1 / 3, 1 / 7, 0.3), telemetry=Telemetry(power_w=2000 / 3))
    files = [tmp_path / f"run_{number}.json" for number in range(3)]
    for file in files:
        save(run, file)
        run = load(file)
    assert load(files[0]) == load(files[2])
    assert files[1].read_bytes() == files[2].read_bytes()


def test_a_run_file_with_one_value_replaced_loads_or_is_refused_but_never_crashes(tmp_path):
    rng = random.Random(4)
    strange = [None, True, -1, 10**400, "x", "\ud800", [], {}, [[1]], {"a": {"b": 1}}, 1e308, "\x1b[31m"]
    for _ in range(300):
        content = document()
        place, key = rng.choice(list(places(content)))
        place[key] = rng.choice(strange)
        path = written(tmp_path, content)
        try:
            assert isinstance(load(path), Run)
        except HarnessError as error:
            assert str(error).isprintable()


def places(container):
    """Every container with a key or index of it."""
    for key, value in container.items() if isinstance(container, dict) else enumerate(container):
        yield container, key
        if isinstance(value, dict | list):
            yield from places(value)


# What is refused


def test_a_missing_file_is_refused(tmp_path):
    assert "No such file" in refusal(tmp_path / "nothing.json")


def test_a_file_cut_short_anywhere_is_refused(tmp_path):
    whole = json.dumps(compose(RUN)).encode()
    path = tmp_path / "cut.json"
    for size in (0, 1, 2, len(whole) // 3, len(whole) // 2, len(whole) - 2, len(whole) - 1):
        path.write_bytes(whole[:size])
        assert "is not a whole JSON file" in refusal(path)


@pytest.mark.parametrize("text", ["[]", "3", "null", '"run"', "{}", '{"benchmarks": []}', '{"schema_version": true}'])
def test_foreign_json_is_refused(text, tmp_path):
    assert "is not a run file of ofpeak" in refusal(written(tmp_path, text))


def test_a_record_under_another_cases_key_is_refused(tmp_path):
    """A renamed benchmark was compared with the case whose name it bore."""
    content = document()
    benchmark = content["benchmarks"][0]
    benchmark["name"] = benchmark["extra_info"]["key"] = "copy/bytes=2048,impl=torch"
    assert refusal(written(tmp_path, content)).endswith(
        "copy/bytes=2048,impl=torch is not the key of its case copy/bytes=1024,impl=torch."
    )


def test_a_file_of_pytest_benchmark_alone_is_refused(tmp_path):
    content = document()
    del content["schema_version"]
    assert "it has no schema_version" in refusal(written(tmp_path, content))


def test_a_newer_schema_names_the_version_that_reads_it(tmp_path):
    content = document() | {"schema_version": SCHEMA_VERSION + 1}
    content["suite"]["version"] = "9.0.0"
    message = refusal(written(tmp_path, content))
    assert message.endswith(
        f"has schema {SCHEMA_VERSION + 1}, this ofpeak reads up to {SCHEMA_VERSION}. "
        "Use ofpeak 9.0.0 or later, which wrote it."
    )


def test_a_schema_before_the_first_is_refused(tmp_path):
    assert "the first was 1" in refusal(written(tmp_path, document() | {"schema_version": 0}))


@pytest.mark.parametrize("number", ["NaN", "Infinity", "-Infinity", "1e999", "-1e999"])
def test_numbers_that_are_not_finite_are_refused(number, tmp_path):
    text = json.dumps(document()).replace("695.0", number)
    assert "is not a finite number" in refusal(written(tmp_path, text))


def test_whole_numbers_beyond_64_bits_are_refused(tmp_path):
    content = document()
    content["benchmarks"][0]["extra_info"]["samples"]["launches_per_sample"] = 10**400
    assert "a whole number of 401 digits" in refusal(written(tmp_path, content))


def test_a_key_given_twice_is_refused(tmp_path):
    text = json.dumps(document()).replace('"run_id": "r1", "suite"', '"run_id": "r1", "run_id": "r2", "suite"')
    assert "the key 'run_id' is there twice" in refusal(written(tmp_path, text))


@pytest.mark.parametrize("depth", [30, 100_000])
def test_deep_nesting_is_refused(depth, tmp_path):
    assert "nested" in refusal(written(tmp_path, '{"a":' + "[" * depth + "]" * depth + "}"))


def test_a_file_beyond_the_size_limit_is_refused_unread(tmp_path, monkeypatch):
    monkeypatch.setattr("harness.store.SIZE_LIMIT_BYTES", 2**20)
    assert "is larger than 1 MiB" in refusal(written(tmp_path, " " * (2**20 + 1)))


def test_bytes_that_are_no_text_are_refused(tmp_path):
    path = tmp_path / "run.json"
    path.write_bytes(b'{"run_id": "\xff\xfe"}')
    assert "is not a whole JSON file" in refusal(path)


@pytest.mark.parametrize(
    ("place", "value", "named"),
    [
        (("device", "sm_count"), "132", "device.sm_count"),
        (("device", "name"), 7, "device.name"),
        (("device", "kind"), "tpu", "device.kind"),
        (("device", "surprise"), 1, "device.surprise"),
        (("order", "only"), "copy", "order.only"),
        (("partial",), None, "partial"),
        (("suite",), [], "suite"),
        (("benchmarks",), {}, "benchmarks"),
        (("benchmarks", 0), 3, "name"),
        (("benchmarks", 0, "extra_info"), None, "extra_info"),
        (("benchmarks", 0, "extra_info", "telemetry", "power_w"), "695", "records.1.telemetry.power_w"),
        (("benchmarks", 0, "extra_info", "samples", "launches_per_sample"), 1.5, "launches_per_sample"),
        (("benchmarks", 0, "extra_info", "case", "op"), "a b", "records.1.case"),
        (("benchmarks", 0, "stats", "data"), "none", "data"),
        (("benchmarks", 0, "stats", "data", 0), None, "seconds.0"),
        (("benchmarks", 0, "stats", "data", 0), True, "seconds.0"),
        (("not_measured", 0, "outcome"), "fine", "records.0.outcome"),
        (("not_measured", 0, "position"), "first", "position"),
    ],
)
def test_a_value_of_the_wrong_type_is_refused_with_its_place(place, value, named, tmp_path):
    content = document()
    inside = content
    for step in place[:-1]:
        inside = inside[step]
    inside[place[-1]] = value
    assert named in refusal(written(tmp_path, content))


@pytest.mark.parametrize(
    ("samples", "data", "problem"),
    [
        ({}, [0.001, 0.001, 0.001, 0.0], "a time of 0.0 s cannot be"),
        ({}, [0.001, 0.001, 0.001, -0.001], "a time of -0.001 s cannot be"),
        ({}, [], "0 samples of 10 launches"),
        ({"window_s": 4.0}, [0.001] * 4, "add up to 0.04 s, its window is 4 s"),
        ({"launches_per_sample": 0}, [0.001] * 4, "4 samples of 0 launches"),
        ({"starved": 5}, [0.001] * 4, "5 of them starved"),
    ],
)
def test_samples_that_cannot_be_are_refused_with_their_case(samples, data, problem, tmp_path):
    content = document()
    content["benchmarks"][0]["extra_info"]["samples"] |= samples
    content["benchmarks"][0]["stats"]["data"] = data
    message = refusal(written(tmp_path, content))
    assert problem in message
    assert COPY.key in message


def test_a_record_under_another_name_is_refused(tmp_path):
    content = document()
    content["benchmarks"][0]["name"] = "copy/bytes=1"
    assert "carries another case's record" in refusal(written(tmp_path, content))


def test_a_measured_case_among_the_others_is_refused(tmp_path):
    content = document()
    content["not_measured"][0]["outcome"] = "measured"
    assert "a measured case stands among 'not_measured'" in refusal(written(tmp_path, content))


def test_what_other_plugins_add_at_the_top_is_passed_over(tmp_path):
    assert load(written(tmp_path, document() | {"ci": {"job": 7}})) == RUN


def test_control_characters_of_a_foreign_file_do_not_reach_the_terminal(tmp_path):
    content = document()
    content["device"]["\x1b[2Jgone\n"] = 1
    assert refusal(written(tmp_path, content)).isprintable()
    content = document()
    content["benchmarks"][0]["name"] = content["benchmarks"][0]["extra_info"]["key"] = "\x1b[2Jgone\n"
    content["benchmarks"][0]["stats"]["data"] = []
    assert refusal(written(tmp_path, content)).isprintable()


# Sets


def test_a_set_is_the_json_files_of_a_folder_by_name(tmp_path):
    for number in (2, 1):
        save(replace(RUN, run_id=f"r{number}"), tmp_path / f"run_{number}.json")
    (tmp_path / "notes.txt").write_text("not a run")
    assert [run.run_id for run in load_set([tmp_path])] == ["r1", "r2"]
    assert [run.run_id for run in load_set([tmp_path / "run_2.json", tmp_path / "run_1.json"])] == ["r2", "r1"]


def test_a_copy_of_a_run_is_no_second_measurement(tmp_path):
    save(RUN, tmp_path / "a.json")
    save(RUN, tmp_path / "b.json")
    with pytest.raises(HarnessError, match="hold the same run r1"):
        load_set([tmp_path])


def test_a_folder_without_runs_is_refused(tmp_path):
    assert refused(tmp_path) == f"{tmp_path} holds no run files (*.json). Name a folder that `make bench` wrote."


def test_a_folder_with_a_journal_alone_says_how_to_make_its_run_file(tmp_path):
    """Somebody whose run had been killed was told to name a folder that `make bench` wrote, which it was."""
    (tmp_path / "run-001.jsonl").touch()
    assert refused(tmp_path) == (
        f"{tmp_path} holds no run files (*.json), only the journal of a run that did not end. Make its run file with "
        f"`ofpeak recover {tmp_path}`, or go on with `make bench RESUME={tmp_path}`."
    )


def test_a_folder_of_sets_names_them(tmp_path):
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        save(replace(RUN, run_id=name), tmp_path / name / "run-001.json")
    assert refused(tmp_path) == f"{tmp_path} holds no run files (*.json); 2 of its folders do. Name {tmp_path}/*."
    (tmp_path / "two" / "run-001.json").unlink()
    assert refused(tmp_path) == f"{tmp_path} holds no run files (*.json); 1 of its folders does. Name {tmp_path}/one."


def test_a_journal_in_the_place_of_a_run_file_is_named(tmp_path):
    journal = tmp_path / "run-001.jsonl"
    journal.write_text("{}\n{}\n")
    assert refused(journal) == (
        f"{journal} is no run file but a run's journal. Name {tmp_path}/run-001.json; "
        f"`ofpeak recover {journal}` makes it where it is missing."
    )


def refused(path: Path) -> str:
    with pytest.raises(HarnessError) as error:
        load_set([path])
    return str(error.value)


# The journal

PLAN = {
    "event": "plan",
    "worker": 1,
    "started_at": "2026-01-02T03:04:06+00:00",
    "device": to_plain(RUN.device),
    "sheet": to_plain(RUN.sheet),
    "environment": to_plain(RUN.environment),
    "site_key": "abc",
    "cases": [{"family": r.family, "key": r.key, "case": to_plain(r.case)} for r in (MEASURED, FAILED, SKIPPED)],
}
EVENTS = [
    {
        "event": "order",
        "run_id": "r1",
        "created_at": RUN.created_at,
        "order": to_plain(RUN.order),
        "suite_version": "0.1.0",
        "source_hash": RUN.source_hash,
    },
    PLAN,
    {"event": "warmed", "worker": 1, "preheat": dict(RUN.workers[0].preheat)},
    {"event": "started", "worker": 1, "key": FAILED.key, "limit_s": 60},
    {"event": "finished", "record": to_plain(FAILED)},
    {"event": "started", "worker": 1, "key": MEASURED.key, "limit_s": 60},
    {"event": "finished", "record": to_plain(MEASURED)},
    {"event": "finished", "record": to_plain(SKIPPED)},
    {"event": "ended", "worker": 1, "how": "finished"},
]


def events(*kept, then=()):
    return [EVENTS[i] for i in kept] + list(then)


def test_a_whole_journal_is_the_run_that_it_tells():
    assert run_from_events(EVENTS) == replace(RUN, partial="")


def test_a_journal_tells_the_ruler_and_the_rest_of_a_worker():
    told = {**EVENTS[2], "idle": IDLE, "ruler": to_plain(RULER)}
    worker = run_from_events([*EVENTS[:2], told, *EVENTS[3:]]).workers[0]
    assert worker == replace(RUN.workers[0], idle=IDLE, ruler=RULER)


def test_a_journal_of_a_worker_without_a_ruler_has_none():
    told = {**EVENTS[2], "ruler": None}
    assert run_from_events([*EVENTS[:2], told, *EVENTS[3:]]).ruler is None


def test_a_journal_survives_the_disk(tmp_path):
    journal = Journal(tmp_path / "journal.jsonl")
    for event in EVENTS:
        journal.write(**event)
    journal.close()
    assert run_from_events(read_events(tmp_path / "journal.jsonl")) == replace(RUN, partial="")


def test_a_case_that_killed_its_worker_is_not_run_and_says_so():
    run = run_from_events(events(0, 1, 2, 3, 4, 5, then=[{"event": "ended", "worker": 1, "how": "signal 9"}]))
    assert [(r.key, r.outcome, r.reason) for r in run.records] == [
        (FAILED.key, "failed", "wrong by 3.0 dB"),
        (MEASURED.key, "not_run", "worker 1 ended (signal 9) while it was measured"),
        (SKIPPED.key, "not_run", "worker 1 ended (signal 9) before it was reached"),
    ]
    assert run.partial == ("2 of 3 cases were not run; the first: worker 1 ended (signal 9) while it was measured")
    assert run.records[1].family == "memory"
    assert run.records[1].case == COPY


def test_an_interrupted_run_is_partial():
    run = run_from_events(events(0, 1, 3, then=[{"event": "interrupted", "reason": "SIGTERM"}]))
    assert run.records[1].reason == "interrupted while it was measured: SIGTERM"
    assert run.records[0].reason == "interrupted: SIGTERM"
    assert run.partial.startswith("3 of 3 cases were not run")
    whole = run_from_events([*EVENTS, {"event": "interrupted", "reason": "SIGTERM"}])
    assert whole.partial == "interrupted: SIGTERM"


def test_a_journal_without_an_end_says_so():
    assert run_from_events(events(0, 1)).records[0].reason == "worker 1 ended (no end told) before it was reached"


def test_a_second_worker_continues_the_run():
    second = PLAN | {"worker": 2, "started_at": "later", "environment": {}, "cases": PLAN["cases"][:1]}
    run = run_from_events(
        events(0, 1, 3, 4, 7, then=[{"event": "ended", "worker": 1, "how": "signal 9"}, second, EVENTS[6]])
    )
    assert [(w.number, w.started_at, w.ended) for w in run.workers] == [
        (1, PLAN["started_at"], "signal 9"),
        (2, "later", ""),
    ]
    assert run.environment == RUN.environment
    assert {r.outcome for r in run.records} == {"failed", "not_applicable", "measured"}
    assert run.partial == ""


def test_a_case_that_was_repeated_counts_once_as_it_ended_last():
    again = {"event": "finished", "record": to_plain(replace(FAILED, reason="", outcome="measured"))}
    run = run_from_events([*EVENTS, again])
    assert [(r.key, r.outcome) for r in run.records][-1] == (GEMM.key, "measured")
    assert len(run.records) == 3


def test_a_worker_on_another_device_is_refused():
    other = PLAN | {"worker": 2, "device": PLAN["device"] | {"name": "NVIDIA Other"}}
    with pytest.raises(HarnessError, match="worker 2 found 'NVIDIA Other', the run began on 'NVIDIA Test'"):
        run_from_events([*EVENTS, other])


def test_a_journal_without_a_plan_means_that_nothing_could_be_measured():
    for told in ([], events(0), events(0, then=[{"event": "ended", "worker": 1, "how": "exit 3"}])):
        with pytest.raises(HarnessError) as caught:
            run_from_events(told)
        assert caught.value.exit_code == ExitCode.INCONCLUSIVE


def test_events_of_a_later_version_are_passed_over_and_damaged_ones_refused():
    assert run_from_events([*EVENTS, {"event": "cooled", "worker": 1}]) == replace(RUN, partial="")
    with pytest.raises(HarnessError, match="the journal is damaged"):
        run_from_events([*EVENTS, {"event": "finished"}])


def test_composing_loads_neither_pydantic_nor_pandas(tmp_path):
    """GPU images seldom have them: a run must be saved there."""
    program = (
        "import sys, json; from pathlib import Path\n"
        "from harness.assembly import run_from_events; from harness.store import save\n"
        "save(run_from_events(json.load(sys.stdin)), Path(sys.argv[1]))\n"
        "print(sorted({'pydantic', 'pandas', 'torch', 'pytest'} & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, tmp_path / "run.json"],
        cwd=Path(__file__).parents[1],
        input=json.dumps(EVENTS),
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.strip() == "[]"


# The table and the schema


def test_frame_has_a_row_a_record_and_metric():
    pandas = pytest.importorskip("pandas")
    table = frame([RUN])
    rows = table[["key", "metric", "value", "unit", "outcome"]].itertuples(index=False, name=None)
    assert [tuple(None if pandas.isna(v) else v for v in row) for row in rows] == [
        (GEMM.key, None, None, None, "failed"),
        (COPY.key, "rate", 2.048e6, "B/s", "measured"),
        (COPY.key, "spec_ratio", None, "ratio", "measured"),
        (PEER.key, None, None, None, "not_applicable"),
    ]
    assert set(table["driver"]) == {"580.1"}
    assert table["param.dtype"][0] == "bf16"
    assert table["metric_reason"][2] == "no peak is known"
    assert str(table["value"].dtype) == "float64"


def test_frame_of_nothing_is_empty():
    pytest.importorskip("pandas")
    assert len(frame([])) == 0


def test_the_committed_schema_is_the_one_of_the_dataclasses():
    """To renew it: python -c 'from harness.store import *; print(schema_text(), end="")' > harness/run.schema.json"""
    pytest.importorskip("pydantic", minversion="2.14", reason="older versions word the same schema differently")
    committed = Path(__file__).parents[1] / "harness" / "run.schema.json"
    assert committed.read_text() == schema_text()


def test_a_composed_file_has_what_the_schema_requires():
    definition = json.loads(schema_text())
    content = document()
    assert not missing_of(definition, content, definition["$defs"])


def missing_of(definition, content, definitions):
    """Required and unknown names, found by a walk through objects and arrays; types are pydantic's business."""
    if "$ref" in definition:
        definition = definitions[definition["$ref"].rsplit("/", 1)[1]]
    if isinstance(content, list):
        return [m for item in content for m in missing_of(definition.get("items", {}), item, definitions)]
    if not isinstance(content, dict):
        return []
    known = definition.get("properties", {})
    absent = [name for name in definition.get("required", []) if name not in content]
    if definition.get("additionalProperties") is False:
        absent += [name for name in content if name not in known]
    return absent + [m for name, value in content.items() for m in missing_of(known.get(name, {}), value, definitions)]
