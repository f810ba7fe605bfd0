"""How the suite starts: what it loads, what it says is missing, how make and pytest call it."""

import importlib.util
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from harness import packages, runner
from harness.errors import HarnessError
from tests.process.processes import FAKE_BENCHES, ROOT, SCRIPTED, Left, end_of, start_python

HEAVY = ("torch", "triton", "pynvml", "pytest", "pandas", "pydantic", "plotly")


def test_supervising_and_reporting_load_neither_torch_nor_pytest():
    code = (
        "import sys, harness.runner, harness.cli.app, harness.store, harness.report.summary; "
        f"print([name for name in {HEAVY} if name in sys.modules])"
    )
    assert end_of(start_python("-c", code)) == Left(0, "[]\n", "")


def test_a_scripted_device_needs_no_torch():
    code = (
        "import sys; from harness.model import Order; from harness.probe.worker import Task, open_session; "
        f"open_session(Task(Order(device='{SCRIPTED}')), list); print('torch' in sys.modules)"
    )
    assert end_of(start_python("-c", code)) == Left(0, "False\n", "")


def test_everything_that_measuring_lacks_is_named_at_once(monkeypatch: pytest.MonkeyPatch):
    really_find = importlib.util.find_spec
    absent = ("torch", "pytest_benchmark", "typer")
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name in absent else really_find(name))
    with pytest.raises(HarnessError) as error:
        runner.require_packages()
    assert str(error.value) == (
        f"{sys.executable} lacks torch, pytest-benchmark, typer. Install them there "
        "(pip install torch pytest-benchmark typer), or leave PYTHON unset and let `make bench` make its own "
        "environment."
    )


@pytest.mark.parametrize(
    ("verb", "needed"),
    [("run", packages.MEASURING), ("show", packages.READING)],
)
def test_an_interpreter_without_packages_is_told_all_it_lacks(verb: str, needed: dict[str, str]):
    """Without typer the command ended in a traceback, and the next missing package came to light one by one."""
    left = end_of(start_python("-S", "-m", "harness", verb))
    assert left.code == 5
    assert left.complaint.startswith(f"{sys.executable} lacks {', '.join(needed.values())}. Install them there ")


def test_an_interpreter_without_numpy_is_told_before_the_runner_is_loaded():
    """The supervisor itself needs numpy, so that its check for packages was never reached."""
    code = (
        "import sys, importlib.util as util; find = util.find_spec; "
        "util.find_spec = lambda name: None if name in ('numpy', 'torch') else find(name); "
        "sys.modules['numpy'] = None; from harness.__main__ import main; main()"
    )
    left = end_of(start_python("-c", code, "run"))
    assert left.code == 5
    assert "lacks torch, numpy. Install them there" in left.complaint


def make(*arguments: str, **environment: str) -> str:
    """What make says, in an environment where no make above this one shows through."""
    plain = {name: value for name, value in os.environ.items() if name not in ("MAKEFLAGS", "MFLAGS", "MAKELEVEL")}
    answer = subprocess.run(
        ["make", *arguments], cwd=ROOT, env=plain | environment, capture_output=True, text=True, check=True
    )
    return answer.stdout


def test_make_bench_passes_on_what_its_command_line_says():
    said = make("-n", "bench", "PYTHON=python3", "PROFILE=quick", "ONLY=gemm* copy*", "RUNS=2", "OUT=a b")
    assert words(said) == "python3 -m harness run --profile 'quick' --only 'gemm* copy*' --runs '2' --out 'a b'"


def test_make_bench_passes_on_every_knob():
    said = make("-n", "bench", "PYTHON=python3", "RESUME=s", "GPUS=all", "CONCURRENT=1", "DECLARE=clocks=locked:9")
    assert words(said) == ("python3 -m harness run --resume 's' --gpus 'all' --concurrent --declare 'clocks=locked:9'")


def test_make_bench_passes_on_the_minutes_of_a_soak():
    said = make("-n", "bench", "PYTHON=python3", "PROFILE=soak", "MINUTES=8")
    assert words(said) == "python3 -m harness run --profile 'soak' --minutes '8'"
    assert words(make("-n", "bench", "PYTHON=python3", MINUTES="8")) == "python3 -m harness run"


def test_knobs_of_the_environment_do_not_count():
    """Where OUT was exported for something else, RESUME was refused: the two name a set each."""
    others = {"OUT": "/no/out", "DEVICE": "cpu", "ONLY": "x", "RUNS": "9", "CONCURRENT": "1", "DECLARE": "x"}
    said = make("-n", "bench", PYTHON="/no/python", PROFILE="full", BASE_PYTHON="/no/python", **others)
    assert words(said.splitlines()[-1]) == ".venv/bin/python -m harness run"
    assert "/no/python" not in said


def words(line: str) -> str:
    return " ".join(line.split())


def test_help_lists_every_target():
    declared = re.search(r"^\.PHONY: (.*)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert declared is not None
    listed = re.findall(r"^make ([a-z-]+)  +", make("help"), re.MULTILINE)
    assert sorted(listed) == sorted(declared.group(1).split())


@pytest.fixture(scope="module")
def replayed(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, object]]:
    """What pytest-benchmark itself writes of a family that pytest alone has run."""
    file = tmp_path_factory.mktemp("replayed") / "benchmarks.json"
    options = ("--only", "held", f"--benchmark-json={file}", "-p", "no:cacheprovider", "-q")
    left = end_of(start_python("-m", "pytest", FAKE_BENCHES, "--device", SCRIPTED, *options))
    assert left.code == 0, left.out
    found: list[dict[str, object]] = json.loads(file.read_text())["benchmarks"]
    return found


def test_pytest_benchmark_gets_exactly_the_devices_samples(replayed: list[dict[str, object]]):
    for benchmark in replayed:
        stats = benchmark["stats"]
        assert isinstance(stats, dict)
        scripted = group_means(1000)
        first = scripted.index(stats["data"][0])
        assert stats["data"] == scripted[first : first + len(stats["data"])]


def group_means(groups: int) -> list[float]:
    """Seconds a launch of bench_held.py in a load's first groups: ten launches each, added one by one."""
    means = []
    for first in range(0, 10 * groups, 10):
        seconds = 0.0
        for i in range(first, first + 10):
            seconds += 0.001 + i / 3e6
        means.append(seconds / 10)
    return means


def test_pytest_benchmark_is_told_whose_clock_it_was(replayed: list[dict[str, object]]):
    assert [b["name"] for b in replayed] == [f"bench_held[held/n={n}]" for n in (1, 2, 3)]
    for benchmark in replayed:
        options = benchmark["options"]
        assert isinstance(options, dict)
        assert options["timer"] == "device"
        assert benchmark["extra_info"] == {"outcome": "measured"}


def test_pytest_alone_collects_no_bench():
    # Modules that load torch take long, and say nothing about this.
    options = ("--ignore=tests/kernels", "--ignore=tests/probe", "--ignore=tests/process")
    left = end_of(start_python("-m", "pytest", "--collect-only", "-q", "-p", "no:cacheprovider", *options))
    assert left.code == 0, left.out
    collected = [line.partition("::")[0] for line in left.out.splitlines() if "::" in line]
    assert "tests/test_cli.py" in collected
    assert not [path for path in collected if Path(path).name.startswith("bench_")]
