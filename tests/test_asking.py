"""Asking the probe: every command that does so meets the same crashes, hangs and noise in the same way."""

import json
import subprocess

import pytest

from harness import runner
from harness.asking import ask_probe, read_answer
from harness.cli.app import exit_status
from harness.errors import ExitCode, HarnessError

COMMANDS = [["whoami"], ["doctor"], ["specs", "check"], ["selfcheck"]]


def answering(monkeypatch, stdout=b"", returncode=0, stderr=None):
    """A probe that answers so; what it was asked, and how, is in the dictionary that comes back."""
    asked: dict = {}

    def run(command, **how):
        asked.update(how, command=command)
        return subprocess.CompletedProcess(command, returncode, stdout, stderr)

    monkeypatch.setattr("subprocess.run", run)
    return asked


@pytest.mark.parametrize("command", COMMANDS, ids="-".join)
@pytest.mark.parametrize(("stdout", "returncode"), [(b"", 0), (b"[1]", 0), (b"no json", 0), (b"\xff", 0), (b"{}", -11)])
def test_answer_that_is_none_is_one_line_and_exit_2(monkeypatch, capsys, command, stdout, returncode):
    answering(monkeypatch, stdout, returncode)
    assert exit_status(command) == ExitCode.INCONCLUSIVE
    told = capsys.readouterr()
    assert (told.out, told.err.count("\n")) == ("", 1)
    assert told.err.startswith("ofpeak: the probe")


@pytest.mark.parametrize("command", COMMANDS, ids="-".join)
def test_probe_that_hangs_is_given_up(monkeypatch, capsys, command):
    def hang(asked, *, timeout, **_):
        raise subprocess.TimeoutExpired(asked, timeout)

    monkeypatch.setattr("subprocess.run", hang)
    assert exit_status(command) == ExitCode.INCONCLUSIVE
    assert "the probe did not answer within" in capsys.readouterr().err


def test_a_run_reads_past_what_was_printed_before_the_answer(monkeypatch):
    machine = {"gpus": ["NVIDIA Test"], "driver": "1", "reason": ""}
    answering(monkeypatch, b"a warning\n" + json.dumps(machine).encode())
    assert runner.probe_devices("auto") == machine


def test_a_run_whose_probe_answers_nonsense_cannot_measure(monkeypatch):
    answering(monkeypatch, b"Segmentation fault")
    with pytest.raises(HarnessError, match=r"cannot be read: it ends in 'Segmentation fault'") as told:
        runner.probe_devices("auto")
    assert told.value.exit_code == ExitCode.INCONCLUSIVE


@pytest.mark.parametrize(("told", "code"), [(5, 5), (2, 2), (0, 2), (99, 2), ("x", 2), (None, 2), ([1], 2)], ids=str)
def test_an_error_has_its_own_exit_code_but_never_that_of_success(told, code):
    with pytest.raises(HarnessError, match=r"^no key$") as error:
        read_answer(json.dumps({"error": "no key", "exit_code": told}), "facts")
    assert error.value.exit_code == code


def test_progress_is_shown_only_where_it_is_asked_for(monkeypatch):
    asked = answering(monkeypatch, b"{}")
    ask_probe("facts", 1)
    assert asked["stderr"] == subprocess.PIPE
    ask_probe("selfcheck", 1, {"OFPEAK_GPU": "3"}, shows_progress=True)
    assert (asked["stderr"], asked["env"]["OFPEAK_GPU"], asked["command"][-1]) == (None, "3", "selfcheck")
