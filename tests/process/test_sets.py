"""Sets, and what is refused before or while a run is planned: one line, the right exit code, nothing half done."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from harness import store
from tests.process.processes import ROOT, Left, command, end_of, outcomes, start, start_python

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
    """A set of three runs: two, a run under another driver that is refused, and one more."""
    return tmp_path_factory.mktemp("grown")


@pytest.fixture(scope="module")
def growth(grown: Path) -> tuple[Left, Left, Left]:
    options = ("run", "--only", "steady", "--out", grown)
    two = command(*options, "--runs", "2")
    refused = command(*options, environment={"OFPEAK_TEST_DRIVER": "581.0"})
    return two, refused, command(*options)


def test_two_runs_are_two_files_and_a_third_continues_the_numbering(growth: tuple[Left, Left, Left], grown: Path):
    assert [left.code for left in growth] == [0, 5, 0]
    files = sorted(grown.glob("run-*.json"))
    assert [file.name for file in files[:2]] == ["run-001.json", "run-002.json"]
    assert len({run.run_id for run in store.load_set([grown])}) == len(files) == 3


def test_every_file_is_named(growth: tuple[Left, Left, Left], grown: Path):
    for name in ("run-001.json", "run-002.json"):
        assert str(grown / name) in growth[0].out


def test_another_driver_is_refused(growth: tuple[Left, Left, Left], grown: Path):
    assert growth[1].complaint == (
        f"this machine is not what {grown / 'run-002.json'} was measured on: driver 580.1 -> 581.0. "
        "A set holds one card and one environment: name another folder with OUT=."
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
        (lambda f: f, ["--profile", "huge"], "unknown profile 'huge'. Use one of smoke, quick, standard, full."),
        (lambda f: f, ["--gpus", "7"], "GPU 7 is not there"),
        (unwritable, ["--out", "{}"], "cannot write to {}: "),
        (lambda f: f, ["--resume", "{}"], "nothing to resume: {} holds no journal of a run (run-NNN.jsonl)."),
        (lambda f: f / "no", ["--resume", "{}"], "there is no set at {}."),
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


def test_a_pattern_that_matches_nothing_is_named(tmp_path: Path):
    left = harness("run", "--device", "cpu", "--only", "gem/*", "--out", tmp_path)
    assert (left.code, left.complaint) == (
        5,
        "no case of profile 'standard' matches gem/*. "
        "Patterns name families (memory, gemm, collectives) or keys (gemm/dtype=bf16*).",
    )
    assert not list(tmp_path.glob("*.json*"))


@pytest.fixture(scope="module")
def refusals(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Path, Left]]:
    """Runs that their benches or their set forbid, all started at once."""
    base = tmp_path_factory.mktemp("refusals")
    processes = {}
    for name, text in {"import": RAISES_AT_IMPORT, "syntax": NO_PYTHON, "twice": TWICE}.items():
        benches = base / name / "benches"
        benches.mkdir(parents=True)
        (benches / "conftest.py").symlink_to(ROOT / "conftest.py")
        (benches / f"bench_{name}.py").write_text(text)
        environment = {"OFPEAK_TEST_BENCHES": str(benches)}
        processes[name] = start("run", "--out", base / name / "set", environment=environment)
    for name, text in {"list": "[1, 2]", "foreign": '{"device": {"name": 3}}', "text": "{"}.items():
        (base / name / "set").mkdir(parents=True)
        (base / name / "set" / "run-007.json").write_text(text)
        processes[name] = start("run", "--only", "steady", "--out", base / name / "set")
    return {name: (base / name / "set", end_of(process)) for name, process in processes.items()}


@pytest.mark.parametrize("name", ["list", "foreign", "text"])
def test_a_foreign_file_in_the_set_is_named(refusals: dict[str, tuple[Path, Left]], name: str):
    """JSON that is no run file ended in a traceback."""
    folder, left = refusals[name]
    assert (left.code, left.complaint) == (
        5,
        f"{folder / 'run-007.json'} is not a run file of this suite. Name another folder with OUT=.",
    )


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("import", "ModuleNotFoundError: No module named 'no_such_module'"),
        ("syntax", "SyntaxError"),
        ("twice", "two cases have the key 'twin/n=1' (families twice and twice)"),
    ],
)
def test_a_family_that_cannot_be_collected_is_named(refusals: dict[str, tuple[Path, Left]], name: str, problem: str):
    """A family with a syntax error ended the supervisor in a traceback, since it hashes what a family imports."""
    folder, left = refusals[name]
    assert left.code == 5
    assert left.complaint.startswith("a family cannot be collected: ")
    assert f"bench_{name}.py" in left.complaint
    assert problem in left.complaint
    assert not list(folder.glob("*.json*"))


def test_a_gpu_that_is_named_twice_is_measured_once(tmp_path: Path):
    left = command("run", "--only", "steady", "--gpus", "0,0", "--out", tmp_path)
    assert left.code == 0
    assert [outcomes(run)["steady/n=1"] for run in store.load_set([tmp_path])] == ["measured"]
