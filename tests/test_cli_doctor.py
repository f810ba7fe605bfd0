"""`ofpeak doctor`: the whole screen of a fit machine, a sick one and none, and its exit codes."""

import json
import subprocess
from pathlib import Path
from types import SimpleNamespace

import pytest

from harness.cli.app import exit_status
from harness.errors import ExitCode
from tests.hand_made_machines import answer, facts, gpu

DATA = Path(__file__).parent / "data"
SICK_GPU = {
    "power_limit_w": 500.0,
    "power_limit_requested_w": 500.0,
    "ecc_after_reboot": False,
    "remapped_rows": 2,
    "remapped_rows_pending": True,
    "persistence": False,
    "pcie_replays": 12,
    "neighbours": 1,
    "neighbours_busy": 1,
    "neighbours_power_most_w": 640.0,
    "nvlink_links": None,
    "nvlink_active": None,
    "fabric_state": None,
}
SICK_HOST = {
    "driver": "570.172.08",
    "cuda_driver": "12.8",
    "shm_mib": 64,
    "memlock_mib": 8,
    "exporters": "dcgm-exporter, nv-hostengine",
    "container": "docker",
    "hypervisor": True,
}
SICK_TORCH = {"version": "2.11.0+cu126", "cuda": "12.6", "architectures": ["sm_80", "sm_90"]}


@pytest.fixture(autouse=True)
def columns(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("COLUMNS", "100")


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch):
    """A machine whose probe answers so; the commands that were started."""
    commands: list[list[str]] = []

    def answers(stdout: str, returncode: int = 0, stderr: bytes = b""):
        def run(command, **_):
            commands.append(command)
            return SimpleNamespace(returncode=returncode, stdout=stdout.encode(), stderr=stderr)

        monkeypatch.setattr(subprocess, "run", run)
        return commands

    return answers


def screen_of(capsys, *arguments):
    status = exit_status(["doctor", *arguments])
    captured = capsys.readouterr()
    assert captured.err == ""
    assert max(map(len, captured.out.splitlines())) <= 100
    return status, captured.out


def sick_answer() -> str:
    first = gpu(SICK_GPU, {"pcie_generation": 4, "pcie_lanes": 8}, processes=2, processes_mib=31744)
    second = gpu({**SICK_GPU, "remapped_rows_pending": False, "ecc_after_reboot": True})
    return answer(first, second, host=SICK_HOST, torch=SICK_TORCH)


def test_a_fit_machine(capsys, asked):
    commands = asked(answer(gpu(), gpu()))
    status, screen = screen_of(capsys)
    assert status == ExitCode.DONE
    assert screen == (
        "2 × NVIDIA H200, driver 580.159.04, torch 2.11.0+cu130, CUDA 13.0\n\nfit to measure: nothing found\n"
    )
    assert [command[-2:] for command in commands] == [["harness.probe", "doctor"]]


def test_a_machine_with_many_findings(capsys, asked):
    asked(sick_answer())
    status, screen = screen_of(capsys)
    assert status == ExitCode.FAILED
    assert screen == (DATA / "doctor_sick.txt").read_text(encoding="utf-8")


def test_no_gpu_is_one_line_and_exit_2(capsys, asked):
    asked(answer(gpus=[], reason="the NVIDIA driver is not loaded"))
    assert exit_status(["doctor"]) == ExitCode.INCONCLUSIVE
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err == "ofpeak: no NVIDIA GPU here: the NVIDIA driver is not loaded. Nothing to judge.\n"


def test_key_findings_and_notes_leave_a_machine_fit(capsys, asked):
    asked(answer(gpu({"power_limit_w": 600.0, "persistence": False})))
    status, screen = screen_of(capsys)
    assert status == ExitCode.DONE
    assert screen.splitlines()[-1] == "fit to measure: 0 blockers, 1 key finding, 1 note"


def test_a_mismatch_of_driver_and_library_is_not_fit(capsys, asked):
    asked(answer(gpus=[], driver_problem="module and libraries are of different versions (NVML code 18)."))
    status, screen = screen_of(capsys)
    assert status == ExitCode.FAILED
    assert "cause   Module and libraries are of different versions (NVML code 18)." in screen


def test_json_holds_the_same_findings(capsys, asked):
    asked(sick_answer())
    status, text = exit_status(["doctor", "--format", "json"]), capsys.readouterr().out
    told = json.loads(text)
    assert (status, told["exit_code"], told["fit"]) == (1, 1, False)
    assert told["gpus"] == ["NVIDIA H200", "NVIDIA H200"]
    ecc = next(finding for finding in told["findings"] if finding["what"].startswith("ECC is on"))
    assert ecc == {
        "level": "blocker",
        "what": "ECC is on and will be off after a reboot",
        "cause": "The next reboot changes the memory's size and speed.",
        "remedy": "Reboot now, or set it back (`nvidia-smi -e 1`).",
        "gpus": [0],
    }
    assert {"what": "NVLink", "why": "Not Supported", "gpus": [0, 1]} in told["not_judged"]


def test_a_declared_clock_is_accepted(capsys, asked):
    asked(answer(gpu(load={"sm_clock_least_mhz": 1410, "sm_clock_most_mhz": 1410})))
    assert "SM clock stood at 1410 MHz" in screen_of(capsys)[1]
    assert screen_of(capsys, "--declare", "clocks=locked:1410")[1].endswith("fit to measure: nothing found\n")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--declare", "clocks=fast"], "unknown declaration 'clocks=fast'. Use clocks=locked:MHZ"),
        (["--format", "pdf"], "'--format'"),
        (["--frobnicate"], "No such option"),
    ],
)
def test_usage_is_exit_5_before_anything_is_asked(arguments, words, capsys, asked):
    commands = asked(answer())
    assert exit_status(["doctor", *arguments]) == ExitCode.USAGE
    assert words in capsys.readouterr().err
    assert commands == []


def test_a_probe_that_fails_is_told(capsys, asked):
    asked("", returncode=1, stderr=b"Traceback\nKeyError: 'x'\n")
    assert exit_status(["doctor"]) == ExitCode.INCONCLUSIVE
    assert capsys.readouterr().err == "ofpeak: the probe failed (exit 1): KeyError: 'x'\n"


def test_hostile_words_of_the_probe_cannot_move_the_cursor(capsys, asked):
    hostile = "\x1b[2J\u202e"
    told = gpu({"ecc": None, "fabric_health": hostile, "mig_compute_slices": 1, "mig_profile": hostile})
    told["facts"]["ecc"]["status"] = hostile
    told["name"] = f"NVIDIA {hostile}"
    asked(
        answer(
            told,
            host={"driver": hostile, "exporters": hostile, "container": hostile},
            torch={"version": hostile, "problem": hostile, "architectures": [hostile]},
            site_key_problem=hostile,
        )
    )
    _, screen = screen_of(capsys)
    assert "\x1b" not in screen
    assert "\u202e" not in screen
    assert screen.count("\\x1b[2J\\u202e") > 5


def test_a_reason_without_a_gpu_is_cleaned_too(capsys, asked):
    asked(answer(gpus=[], reason="\x1b[2J"))
    assert exit_status(["doctor"]) == ExitCode.INCONCLUSIVE
    assert "\x1b" not in capsys.readouterr().err


def test_long_words_are_folded_and_not_lost(capsys, asked):
    asked(answer(gpu(), host={"exporters": "x" * 150}))
    exit_status(["doctor"])
    assert "x" * 80 in capsys.readouterr().out.replace("\n", "").replace(" ", "")


def test_the_page_shows_the_screen_of_the_sick_machine():
    page = (Path(__file__).parents[1] / "docs" / "doctor.md").read_text(encoding="utf-8")
    assert (DATA / "doctor_sick.txt").read_text(encoding="utf-8") in page


def test_facts_of_the_hand_made_machine_are_named_as_the_probe_names_them():
    """A renamed fact would leave its check unjudged for ever."""
    from harness.probe.card_facts import card_facts, card_of, driver_facts
    from harness.probe.host_facts import host_facts
    from harness.probe.link_facts import link_facts
    from harness.probe.nvml import open_nvml
    from tests.hand_made_machines import GPU, HOST
    from tests.several_gpus import SeveralGpus

    nvml, _ = open_nvml(SeveralGpus(["a", "b"], fields={91: 1}))
    card = card_of(next(nvml.gpus()))
    told = {**card_facts(card), **link_facts(card, nvml)}
    assert set(facts(GPU)) <= set(told)
    assert set(facts(HOST)) <= set(host_facts() | driver_facts(nvml))
