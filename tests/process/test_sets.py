"""Sets, and what is refused before or while a run is planned: one line, the right exit code, nothing half done."""

import os
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from harness import store
from tests.process.processes import ROOT, Left, command, end_of, outcomes, start_python

RAISES_AT_IMPORT = "import no_such_module\n"
NO_PYTHON = "def cases(profile, device:\n"
TWICE = """
from harness.model import Case

def cases(profile, device):
    for _ in range(2):
        yield Case("twin", {"n": 1}, (), kind="latency")

def bench_twin(case, device, measure):
    pass
"""


@pytest.fixture(scope="module")
def grown(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A set of three runs: one GPU, named twice, and two runs; another driver, which is refused; and one run more."""
    return tmp_path_factory.mktemp("grown")


@pytest.fixture(scope="module")
def growth(grown: Path) -> tuple[Left, Left, Left]:
    options = ("run", "--only", "steady", "--out", grown)
    two = command(*options, "--runs", "2", "--gpus", "0,0")
    refused = command(*options, environment={"OFPEAK_TEST_DRIVER": "581.0"})
    return two, refused, command(*options, environment={"PYTEST_ADDOPTS": "--no-such-option"})


def test_two_runs_are_two_files(growth: tuple[Left, Left, Left], grown: Path):
    """A GPU that was named twice was measured twice, into folders of their own."""
    assert (growth[0].code, growth[0].err) == (0, "")
    assert f"2 run files in: {grown}" in growth[0].out


def test_a_later_run_continues_the_numbering(growth: tuple[Left, Left, Left], grown: Path):
    files = sorted(file.name for file in grown.glob("run-*.json"))
    assert files == ["run-001.json", "run-002.json", "run-004.json"]  # run-003.log is that of the refused run
    assert f"run file: {grown / 'run-004.json'}" in growth[2].out
    assert [outcomes(run)["steady/n=1"] for run in store.load_set([grown])] == ["measured"] * 3


def test_pytests_own_options_in_the_environment_do_not_reach_workers(growth: tuple[Left, Left, Left]):
    """PYTEST_ADDOPTS of the user's shell went on to the workers, and one unknown option ended the run."""
    assert (growth[2].code, growth[2].err) == (0, "")


def test_another_driver_is_refused(growth: tuple[Left, Left, Left], grown: Path):
    assert (growth[1].code, growth[1].complaint) == (
        5,
        f"this machine is not what {grown / 'run-002.json'} was measured on: driver 580.1 -> 581.0. "
        "A set holds one card and one environment: name another folder with OUT=.",
    )


def test_a_refused_run_is_none_that_could_be_resumed(growth: tuple[Left, Left, Left], grown: Path):
    """A refused run's journal stayed, RESUME took it for the last run, and wrote a mixed set after all."""
    assert {path.stem for path in grown.glob("*.jsonl")} == {path.stem for path in grown.glob("*.json")}


def harness(*arguments: object) -> Left:
    return end_of(start_python("-m", "harness", *arguments))


def unwritable(folder: Path) -> Path:
    """A folder that cannot be written: for root, to whom every folder is open, one below a file."""
    if os.geteuid() == 0:
        (folder / "file").touch()
        return folder / "file" / "set"
    folder.chmod(0o500)
    return folder


@pytest.mark.parametrize(
    ("prepare", "arguments", "complaint"),
    [
        (lambda f: f, ["--profile", "huge"], "unknown profile 'huge'. Use one of smoke, quick, standard, full, soak."),
        (lambda f: f, ["--gpus", "7"], "GPU 7 is not there"),
        (unwritable, ["--out", "{}"], "cannot write to {}: "),
        (lambda f: f, ["--resume", "{}"], "nothing to resume: {} holds no journal of a run (run-NNN.jsonl)."),
        (lambda f: f / "no", ["--resume", "{}"], "there is no set at {}. Name a folder that `make bench` wrote."),
    ],
)
def test_what_cannot_be_is_said_before_anything_starts(
    prepare: Callable[[Path], Path], arguments: list[str], complaint: str, tmp_path: Path
):
    folder = prepare(tmp_path)
    left = harness("run", "--device", "cpu", *(argument.format(folder) for argument in arguments))
    tmp_path.chmod(0o700)
    assert (left.code, left.out) == (5, "")
    assert left.complaint.startswith(complaint.format(folder))


def test_a_set_whose_lock_cannot_be_made_is_named(tmp_path: Path):
    """Resuming in somebody else's folder ended in a traceback."""
    (tmp_path / ".lock").mkdir()
    left = command("run", "--resume", tmp_path)
    assert (left.code, left.complaint) == (
        5,
        f"cannot write to {tmp_path}: Is a directory. Name another folder with OUT=.",
    )


def test_a_pattern_that_matches_nothing_is_named_with_what_there_is(tmp_path: Path):
    """Four families were named, of twenty-six."""
    benches = Path(__file__).parents[2] / "benches"
    families = ", ".join(sorted(path.stem.removeprefix("bench_") for path in benches.glob("bench_*.py")))
    left = harness("run", "--device", "cpu", "--only", "gem/*", "--out", tmp_path)
    assert (left.code, left.complaint) == (
        5,
        "no case of profile 'standard' matches 'gem/*'. "
        f"Patterns name families ({families}) or keys (gemm/dtype=bf16*). "
        "Some families have cases in profile 'full' alone, soak in 'soak'.",
    )
    assert not list(tmp_path.glob("*.json*"))


def test_a_slowdown_on_purpose_is_in_the_file_on_the_screen_and_in_no_clean_set(tmp_path: Path):
    injected = command("run", "--inject", "steady/n=1=10%", "--only", "steady", "--out", tmp_path)
    assert injected.code == 0
    assert "INJECTED" in injected.out
    (run,) = store.load_set([tmp_path])
    assert run.order.inject == ("steady/n=1=10%",)
    first, second = run.measured
    assert [len(record.warnings) for record in (first, second)] == [1, 0]
    rates = [record.metric("rate").value for record in (first, second)]
    assert rates == [pytest.approx(4e12 / 1.1), pytest.approx(2e15)]
    clean = command("run", "--only", "steady", "--out", tmp_path)
    assert (clean.code, clean.complaint) == (
        5,
        f"{tmp_path / 'run-001.json'} was measured with --inject steady/n=1=10%, this run is to be clean. "
        "Name another folder with OUT=.",
    )


def test_an_injection_that_names_no_case_is_refused(tmp_path: Path):
    left = command("run", "--inject", "gemn=3%", "--only", "steady", "--out", tmp_path)
    assert (left.code, left.complaint) == (
        5,
        "--inject gemn=3% names no case of this run. Name a family or a key that it measures.",
    )
    assert not list(tmp_path.glob("*.json*"))


def test_every_family_that_cannot_be_collected_is_named(tmp_path: Path):
    """A family with a syntax error ended the supervisor in a traceback, since it hashes what a family imports."""
    (tmp_path / "conftest.py").symlink_to(ROOT / "conftest.py")
    for name, text in {"absent": RAISES_AT_IMPORT, "twin": TWICE, "typo": NO_PYTHON}.items():
        (tmp_path / f"bench_{name}.py").write_text(text)
    folder = tmp_path / "set"
    left = command("run", "--out", folder, environment={"OFPEAK_TEST_BENCHES": str(tmp_path)})
    assert left.code == 5
    told = re.fullmatch(r"a family cannot be collected: (\S+): (.*); (\S+): (.*); (\S+): (.*)", left.complaint)
    assert told is not None, left.complaint
    files = {Path(told[n].partition("::")[0]).name: told[n + 1] for n in (1, 3, 5)}
    assert files == {
        "bench_absent.py": "ModuleNotFoundError: No module named 'no_such_module'",
        "bench_twin.py": "pytest.UsageError: two cases have the key 'twin/n=1' (families twin and twin)",
        "bench_typo.py": "SyntaxError: '(' was never closed",
    }
    assert not list(folder.glob("*.json*"))
