"""The command line: what it prints, what it refuses, how it leaves."""

import json
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import typer.main

import harness
from harness import packages, store
from harness.cli import run as run_verb
from harness.cli.app import app, exit_status
from harness.cli.patterns import split_patterns
from harness.errors import ExitCode, HarnessError
from harness.model import Case, Order, Work
from tests import hand_made

HEAVY = ("torch", "triton", "pandas", "numpy", "scipy", "pydantic", "plotly", "pynvml")


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[run_verb.Request]:
    """What `run` would have started."""
    requests: list[run_verb.Request] = []

    def execute(request: run_verb.Request) -> ExitCode:
        requests.append(request)
        return ExitCode.DONE

    monkeypatch.delenv("OFPEAK_LABEL", raising=False)
    monkeypatch.setattr(run_verb, "execute", execute)
    return requests


def fresh(*arguments: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run([sys.executable, *arguments], capture_output=True, text=True, check=False, timeout=60)


def test_help_loads_nothing_heavy():
    code = (
        "import sys, harness.cli.app as app; status = app.exit_status(['--help']); "
        f"print([name for name in {HEAVY} if name in sys.modules], status)"
    )
    assert fresh("-c", code).stdout.splitlines()[-1] == "[] 0"


def test_the_version_is_printed(capsys: pytest.CaptureFixture[str]):
    assert exit_status(["--version"]) == ExitCode.DONE
    assert capsys.readouterr().out == f"ofpeak {harness.__version__}\n"


def test_no_verb_at_all_prints_help_and_is_no_success(capsys: pytest.CaptureFixture[str]):
    assert exit_status([]) == ExitCode.USAGE
    assert capsys.readouterr().out.startswith("Usage: ofpeak")


def test_help_cuts_off_no_verb(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch):
    """Of most verbs the list showed half a sentence and three dots."""
    monkeypatch.setenv("COLUMNS", "80")
    assert exit_status(["--help"]) == ExitCode.DONE
    verbs = capsys.readouterr().out.partition("Commands:\n")[2].partition("\n\n")[0].splitlines()
    assert len(verbs) == len(typer.main.get_command(app).commands)  # type: ignore[attr-defined]
    assert not [line for line in verbs if "..." in line]


def test_help_names_what_an_option_takes_and_not_its_python_type(capsys: pytest.CaptureFixture[str]):
    for verb in typer.main.get_command(app).commands:  # type: ignore[attr-defined]
        assert exit_status([verb, "--help"]) == ExitCode.DONE
        options = capsys.readouterr().out.partition("Options:\n")[2]
        assert not re.findall(r"<(?:str|int|float|list|Path)\b.*?>", options), verb


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["frobnicate"], "No such command 'frobnicate'. See 'ofpeak --help'."),
        (["shwo"], "No such command 'shwo'. Did you mean 'show'? See 'ofpeak --help'."),
        (["run", "--frobnicate"], "No such option"),
        (["run", "--profile", "huge"], "unknown profile 'huge'. Use one of smoke, quick, standard, full, soak."),
        (["run", "--runs", "0"], "'--runs'"),
        (["run", "--runs", "many"], "'--runs'"),
        (["run", "--device", "tpu"], "'auto'"),
        (["run", "--gpus", "first"], "unknown GPUs 'first'"),
        (["run", "--concurrent"], "--concurrent needs several GPUs, --gpus names 0. Use --gpus all."),
        (["run", "--declare", "clocks=fast"], "unknown declaration 'clocks=fast'"),
        (
            ["run", "--minutes", "4"],
            "--minutes is how long a soak takes, the profile is 'standard'. Use --profile soak.",
        ),
        (
            ["run", "--profile", "soak", "--minutes", "0"],
            "a soak of 0 minutes cannot be. Use 0.01 to 1440 with --minutes.",
        ),
        (["run", "--profile", "soak", "--minutes=-3"], "a soak of -3 minutes cannot be."),
        (["run", "--profile", "soak", "--minutes", "nan"], "a soak of nan minutes cannot be."),
        (["run", "--profile", "soak", "--minutes", "inf"], "a soak of inf minutes cannot be."),
        (["run", "--profile", "soak", "--minutes", "1440.1"], "a soak of 1440.1 minutes cannot be."),
        (["run", "--profile", "soak", "--minutes", "1e300"], "a soak of 1e+300 minutes cannot be."),
        (["run", "--profile", "soak", "--minutes", "long"], "'--minutes'"),
        (["run", "--resume", "b", "--profile", "soak", "--minutes", "4"], "--minutes and --resume: a run goes on as"),
        (["run", "--out", "a", "--resume", "b"], "--out and --resume"),
        (["run", "--only", " , "], "--only names no case"),
        (["show"], "PATH"),
        (["show", "nowhere.json"], "nowhere.json"),
        (
            ["show", "--format", "pdf", "nowhere.json"],
            "Invalid value for '--format': 'pdf' is not one of 'text', 'md'.",
        ),
    ],
)
def test_what_a_user_can_fix_is_one_line_and_exit_5(
    arguments: list[str], words: str, capsys: pytest.CaptureFixture[str], asked: list[run_verb.Request]
):
    assert exit_status(arguments) == ExitCode.USAGE
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("ofpeak: ")
    assert captured.err.count("\n") == 1
    assert words in captured.err
    assert not asked


def test_the_defaults_of_run_are_those_of_an_order(asked: list[run_verb.Request]):
    assert exit_status(["run"]) == ExitCode.DONE
    assert asked == [run_verb.Request(Order(), 1, "0", False, None, None)]


@pytest.mark.parametrize(
    ("options", "minutes"), [((), None), (("--minutes", "0.1"), 0.1), (("--minutes", "1440"), 1440.0)]
)
def test_a_soak_takes_its_minutes_or_the_families_own(
    options: tuple[str, ...], minutes: float | None, asked: list[run_verb.Request]
):
    assert exit_status(["run", "--profile", "soak", *options]) == ExitCode.DONE
    assert asked[0].order == Order("soak", minutes=minutes)


def test_injections_are_words_of_the_order(asked: list[run_verb.Request]):
    assert exit_status(["run", "--inject", "gemm=3% memory=2%", "--inject", "copy/*=1%"]) == ExitCode.DONE
    assert asked[0].order.inject == ("gemm=3%", "memory=2%", "copy/*=1%")


def test_run_takes_every_option(asked: list[run_verb.Request], monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("OFPEAK_LABEL", "rack-3")
    options = "--profile quick --only memory,gemm/* --only copy/* --runs 5 --out set --gpus all --concurrent"
    assert exit_status(["run", *options.split(), "--declare", "clocks=locked:1410", "--device", "cpu"]) == 0
    only = ("memory", "gemm/*", "copy/*")
    order = Order("quick", only, "cpu", "all", declare="clocks=locked:1410", label="rack-3")
    assert asked == [run_verb.Request(order, 5, "all", True, Path("set"), None)]


@pytest.mark.parametrize(
    ("text", "patterns"),
    [
        ("memory", ["memory"]),
        ("memory,gemm collectives", ["memory", "gemm", "collectives"]),
        ("gemm/dtype=bf16,impl=torch", ["gemm/dtype=bf16,impl=torch"]),
        ("gemm/dtype=bf16,*,n=8192,memory", ["gemm/dtype=bf16,*,n=8192", "memory"]),
        ("copy/*,gemm/*", ["copy/*", "gemm/*"]),
        (",, ,", []),
    ],
)
def test_commas_part_patterns_but_not_keys(text: str, patterns: list[str]):
    assert split_patterns(text) == patterns


def raise_from_run(monkeypatch: pytest.MonkeyPatch, error: BaseException) -> int:
    def execute(request: run_verb.Request) -> ExitCode:
        raise error

    monkeypatch.setattr(run_verb, "execute", execute)
    return exit_status(["run"])


def test_an_error_that_measured_nothing_has_its_own_code(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    error = HarnessError("torch cannot use the GPU\n\x1b[31m", ExitCode.INCONCLUSIVE)
    assert raise_from_run(monkeypatch, error) == 2
    assert capsys.readouterr().err == "ofpeak: torch cannot use the GPU \\x1b[31m\n"


def test_an_interrupt_is_130(monkeypatch: pytest.MonkeyPatch):
    assert raise_from_run(monkeypatch, KeyboardInterrupt()) == 130


def test_an_interrupt_before_the_plan_says_that_nothing_was_measured():
    assert run_verb.interrupted_message("SIGINT", []) == (
        "stopped by SIGINT before a case was planned. Nothing was measured."
    )


def test_interrupted_gpus_are_each_resumed():
    files = [Path("set/gpu0/run-001.json"), Path("set/gpu1/run-001.json")]
    assert run_verb.interrupted_message("SIGTERM", files) == (
        "stopped by SIGTERM; finished cases are in set/gpu0/run-001.json, set/gpu1/run-001.json. "
        "Go on with `make bench RESUME=set/gpu0` or `make bench RESUME=set/gpu1`."
    )


def test_our_own_bug_is_70_with_its_traceback(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    assert raise_from_run(monkeypatch, ZeroDivisionError("boom")) == 70
    assert capsys.readouterr().err.endswith("ZeroDivisionError: boom\n")


def test_a_closed_pipe_is_141(monkeypatch: pytest.MonkeyPatch):
    assert raise_from_run(monkeypatch, BrokenPipeError(32, "Broken pipe")) == 141


@pytest.mark.parametrize(
    ("runs", "code"),
    [
        ([hand_made.gpu_run(hand_made.copy_record())], ExitCode.DONE),
        ([hand_made.cpu_run(hand_made.checked_record())], ExitCode.DONE),
        ([hand_made.full_run()], ExitCode.FAILED),
        ([hand_made.gpu_run(hand_made.without_figure(hand_made.COPY, "m", "failed", "x"))], ExitCode.INCONCLUSIVE),
        ([], ExitCode.INCONCLUSIVE),
    ],
)
def test_the_exit_code_of_run_follows_from_its_outcomes(runs: list[Any], code: ExitCode):
    assert run_verb.exit_code_of(runs) == code


@pytest.fixture
def run_set(tmp_path: Path) -> Path:
    """A folder of three run files."""
    for number, run in enumerate(hand_made.set_of_three(), start=1):
        store.save(run, tmp_path / f"{number}.json")
    return tmp_path


def test_show_prints_one_run_file(run_set: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("COLUMNS", "100")
    assert exit_status(["show", str(run_set / "1.json")]) == ExitCode.DONE
    assert (
        capsys.readouterr().out
        == f"""\
╭─ ofpeak 0.1.0 ─────────────────────────────────────────────────────────────────────╮
│ GPU       NVIDIA Test, 100 SMs, compute capability 9.0, 100 GiB                    │
│ software  driver 580.1, CUDA 13.0, torch 2.13.0, triton 3.7.1, NCCL 2.28.9         │
│ power     limit 700 W (default 700 W), ECC on                                      │
│ card      c0ffee                                                                   │
│ run       profile quick, 2026-01-02T01:00:00Z                                      │
│ ruler     not checked                                                              │
│ peaks     data sheet row 'Test SXM'                                                │
│           memory 4.000 TB/s                                                        │
│ units     dense peaks; SI rates (1 GB/s = 1e9 B/s); binary sizes (1 MiB = 2**20 B) │
╰────────────────────────────────────────────────────────────────────────────────────╯

memory  counted: read + write
                          of    time a     MHz true       pJ per  limited
        rate  ± 95 %    spec    launch       / NVML    W       B  by
copy/bytes=4294967296,impl=torch (4 GiB)
  2.900 TB/s  0.10 %  72.5 %  2.069 ms  1979 / 1980  600   200.0  none
  share of the traffic that L2 could serve: at most 1.0 %

run file: {run_set}/1.json
"""
    )


def test_show_prints_the_medians_of_a_folder(run_set: Path, capsys: pytest.CaptureFixture[str]):
    assert exit_status(["show", str(run_set)]) == ExitCode.DONE
    out = capsys.readouterr().out
    assert "3.000 TB/s" in out
    assert "  3.33 %  " in out
    assert out.endswith(f"3 run files in: {run_set}\n")


def test_show_writes_markdown(run_set: Path, capsys: pytest.CaptureFixture[str]):
    assert exit_status(["show", "--format", "md", str(run_set)]) == ExitCode.DONE
    assert "| `copy/bytes=4294967296,impl=torch` (4 GiB) | 3.000 TB/s | 3.33 % |" in capsys.readouterr().out


def test_show_prints_collectives_in_nccl_tests_columns_below_ours(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    case = Case(
        "all_reduce", {"bytes": 800, "dtype": "fp32", "impl": "nccl", "ranks": 2}, (Work(800.0, "B", None, "bus"),)
    )
    measured = replace(hand_made.copy_record(), key=case.key, case=case, family="collectives")
    store.save(hand_made.gpu_run(measured), tmp_path / "1.json")
    assert exit_status(["show", "--columns", "nccl", str(tmp_path)]) == ExitCode.DONE
    ours, _, theirs = capsys.readouterr().out.partition("# all_reduce, 2 ranks, nccl, launch queued\n")
    assert "all_reduce/bytes=800" in ours
    assert theirs.splitlines()[-1].split()[:5] == ["800", "200", "float", "sum", "-1"]


def test_show_prints_the_fastest_of_nccls_settings_below_the_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    params = {"bytes": 800, "dtype": "fp32", "impl": "nccl", "ranks": 2, "world": "own"}
    case = Case("all_reduce", params, (Work(800.0, "B", None, "bus"),))
    measured = replace(hand_made.copy_record(), key=case.key, case=case, family="nccl_sweep")
    store.save(hand_made.gpu_run(measured), tmp_path / "1.json")
    assert exit_status(["show", str(tmp_path)]) == ExitCode.DONE
    ours, _, table = capsys.readouterr().out.partition("\nNCCL's fastest setting by size  of 1 setting")
    assert "all_reduce/bytes=800" in ours
    assert table.splitlines()[3].split()[:4] == ["800", "B", "2.000", "ms"]
    assert exit_status(["show", "--format", "md", str(tmp_path)]) == ExitCode.DONE
    assert "\n\n### NCCL's fastest setting by size\n" in capsys.readouterr().out


def test_show_says_that_there_is_no_collective(run_set: Path, capsys: pytest.CaptureFixture[str]):
    assert exit_status(["show", "--columns", "nccl", "--format", "md", str(run_set / "1.json")]) == ExitCode.DONE
    assert capsys.readouterr().out.endswith("\n```\n# no collective was measured\n```\n")


def test_show_of_an_empty_folder_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    assert exit_status(["show", str(tmp_path)]) == ExitCode.USAGE
    assert capsys.readouterr().err.startswith(f"ofpeak: {tmp_path} holds no run files")


def test_show_without_pydantic_names_what_to_install(run_set: Path):
    """Some versions of typer import pydantic themselves, so it is hidden from the store alone."""
    code = """
import builtins, sys
from harness.cli.app import exit_status
found = builtins.__import__
def hide(name, space=None, *rest):
    if name == "pydantic" and (space or {}).get("__name__") == "harness.store":
        raise ImportError(name)
    return found(name, space, *rest)
builtins.__import__ = hide
sys.exit(exit_status(sys.argv[1:]))
"""
    done = fresh("-c", code, "show", str(run_set / "1.json"))
    assert done.returncode == ExitCode.USAGE
    assert done.stderr.startswith("ofpeak: ")
    assert "pip install 'pydantic" in done.stderr


def test_show_needs_no_torch(run_set: Path):
    code = (
        "import sys; from harness.cli.app import exit_status; exit_status(sys.argv[1:]); "
        "print('torch' in sys.modules, 'pandas' in sys.modules)"
    )
    assert fresh("-c", code, "show", str(run_set)).stdout.endswith("False False\n")


@pytest.mark.parametrize(
    ("verb", "needed", "missing"),
    [
        (["selfcheck"], "LOADING", "torch"),
        (["peak"], "LOADING", "torch"),
        (["doctor"], "LOOKING", "nvidia-ml-py"),
        (["specs", "check"], "LOOKING", "nvidia-ml-py"),
    ],
)
def test_a_verb_that_looks_at_gpus_says_what_it_lacks(
    verb: list[str], needed: str, missing: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    """Where torch was missing there was a traceback, and where nvidia-ml-py was, 'no NVIDIA GPU here'."""
    monkeypatch.setattr(packages, needed, {"no_such_module": missing})
    assert exit_status(verb) == ExitCode.USAGE
    assert capsys.readouterr().err == (
        f"ofpeak: {sys.executable} lacks {missing}. Install it there (pip install {missing}), "
        "or run the command of the environment that `make bench` made: .venv/bin/ofpeak.\n"
    )


def test_whoami_says_why_there_is_no_card(monkeypatch, capsys):
    answer = {"site_key": "0123456789ab", "label": None, "cards": [], "reason": "no NVIDIA driver"}
    monkeypatch.setattr(
        "subprocess.run", lambda *_, **__: SimpleNamespace(returncode=0, stdout=json.dumps(answer).encode())
    )
    assert exit_status(["whoami"]) == 0
    assert capsys.readouterr().out == (
        "site key  0123456789ab  (OFPEAK_SITE_KEY, or the file made on first use)\n"
        "label     – (OFPEAK_LABEL is not set)\n"
        "card      – (no NVIDIA driver)\n"
    )


def test_whoami_maps_cards_to_hashes(monkeypatch, capsys):
    cards = [{"card": "c0ffee", "name": "NVIDIA Test", "uuid": "12"}]
    answer = {"site_key": "0123456789ab", "label": "rack 7", "cards": cards, "reason": ""}
    monkeypatch.setattr(
        "subprocess.run", lambda *_, **__: SimpleNamespace(returncode=0, stdout=json.dumps(answer).encode())
    )
    assert exit_status(["whoami"]) == 0
    assert capsys.readouterr().out.splitlines()[1:] == ["label     rack 7", "card      c0ffee  NVIDIA Test  GPU-12"]
