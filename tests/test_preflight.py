"""What a fresh machine is told before anything is downloaded; messages are compared whole."""

import subprocess
import sys
from types import SimpleNamespace

import pytest

from harness import preflight

KERNEL_MODULE = """\
NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.159.04  Release Build  (root@host)  Mon Nov 3
GCC version:  gcc version 12.2.0 (Debian 12.2.0-14)
"""


@pytest.mark.parametrize("version", [(3, 11), (3, 12), (3, 13), (4, 0)])
def test_python_3_11_or_later_is_enough(version):
    assert preflight.python_problem(version) == ""


@pytest.mark.parametrize("version", [(3, 10), (3, 9), (2, 7)])
def test_older_python_is_told_with_the_way_out(version):
    assert preflight.python_problem(version) == (
        f"Python {version[0]}.{version[1]} is too old: 3.11 or later is needed. Name another with BASE_PYTHON=."
    )


@pytest.mark.parametrize("version", ["", "580.95", "580.159.04", "590.1"])
def test_new_driver_or_none_is_no_problem(version):
    assert preflight.driver_problem(version) == ""


@pytest.mark.parametrize("version", ["570.124.06", "525.60.13"])
def test_driver_for_cuda_12_is_told_the_build_that_fits(version):
    assert preflight.driver_problem(version) == (
        f"driver {version} is too old for the pinned torch 2.13.0 (CUDA 13.0 needs driver 580 or later). "
        "Nothing was downloaded. Install the 'cu126' build of torch 2.13.0 into an environment of your own (see "
        "pytorch.org, 'Previous versions'; Blackwell needs the newer driver) and run `make bench PYTHON=<its python>`, "
        "or upgrade the driver."
    )


def test_driver_before_cuda_12_must_be_upgraded():
    assert preflight.driver_problem("470.256.02") == (
        "driver 470.256.02 is too old for the pinned torch 2.13.0 (CUDA 13.0 needs driver 580 or later). "
        "Nothing was downloaded. Upgrade the driver: no build of torch 2.13.0 runs on it."
    )


def test_driver_is_read_from_the_kernel_module(tmp_path, monkeypatch):
    (tmp_path / "version").write_text(KERNEL_MODULE)
    monkeypatch.setattr(preflight, "_VERSION_FILE", tmp_path / "version")
    assert preflight.driver_version() == "580.159.04"


@pytest.fixture
def without_module(tmp_path, monkeypatch):
    monkeypatch.setattr(preflight, "_VERSION_FILE", tmp_path / "none")

    def answer_with(told, returncode=0):
        answer = SimpleNamespace(stdout=told, returncode=returncode)
        monkeypatch.setattr(subprocess, "run", lambda *_, **__: answer)

    return answer_with


def test_driver_is_asked_of_nvidia_smi_without_the_module(without_module):
    without_module("570.124.06\n570.124.06\n")
    assert preflight.driver_version() == "570.124.06"


def test_nvidia_smi_that_fails_means_no_driver(without_module):
    without_module("NVIDIA-SMI has failed, version 570.124.06", returncode=9)
    assert preflight.driver_version() == ""


@pytest.mark.parametrize("error", [FileNotFoundError("nvidia-smi"), subprocess.TimeoutExpired("nvidia-smi", 20)])
def test_machine_without_nvidia_smi_has_no_driver(without_module, monkeypatch, error):
    def fail(*_, **__):
        raise error

    monkeypatch.setattr(subprocess, "run", fail)
    without_driver = preflight.driver_version()
    assert without_driver == ""


def test_main_says_nothing_where_all_fits(monkeypatch, capsys):
    monkeypatch.setattr(preflight, "driver_version", lambda: "")
    assert preflight.main() == 0
    assert capsys.readouterr() == ("", "")


def test_main_tells_the_problem_in_one_line(monkeypatch, capsys):
    monkeypatch.setattr(preflight, "driver_version", lambda: "470.1")
    assert preflight.main() == 5
    assert capsys.readouterr().err == f"ofpeak: {preflight.driver_problem('470.1')}\n"


def test_main_tells_of_python_first(monkeypatch, capsys):
    monkeypatch.setattr(preflight, "driver_version", lambda: "470.1")
    monkeypatch.setattr(preflight, "LEAST_PYTHON", (9, 9))
    assert preflight.main() == 5
    told = f"Python {sys.version_info[0]}.{sys.version_info[1]} is too old"
    assert capsys.readouterr().err.startswith(f"ofpeak: {told}")
