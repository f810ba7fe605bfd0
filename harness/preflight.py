"""Before anything is downloaded: can this machine run what the virtual environment pins? Run as a script, stdlib only.

A CUDA build of torch carries its CUDA runtime; the driver must be new enough for it. Whoever learns that after the
download has lost a few gigabytes and ten minutes.
"""

from __future__ import annotations  # so that a Python too old for the rest gets as far as saying so

import re
import subprocess
import sys
from pathlib import Path

# torch 2.13's default Linux build is for CUDA 13.0, whose runtime needs driver 580 or later; the builds for CUDA 12
# run on 525 and later by minor-version compatibility (NVIDIA, "CUDA Compatibility", table of minimum drivers).
PINNED_TORCH = "2.13.0"
PINNED_CUDA = "13.0"
LEAST_DRIVER = 580
FALLBACK_BUILD = "cu126"
FALLBACK_LEAST_DRIVER = 525
LEAST_PYTHON = (3, 11)

_VERSION_FILE = Path("/proc/driver/nvidia/version")


def main() -> int:
    """Print what does not fit and how to go on; 0 if everything does."""
    problem = python_problem(sys.version_info[:2]) or driver_problem(driver_version())
    if problem:
        sys.stderr.write(f"ofpeak: {problem}\n")
    return 5 if problem else 0


def python_problem(version: tuple[int, int]) -> str:
    """Why this interpreter is not enough, or nothing."""
    if version >= LEAST_PYTHON:
        return ""
    return (
        f"Python {version[0]}.{version[1]} is too old: {LEAST_PYTHON[0]}.{LEAST_PYTHON[1]} or later is needed. "
        "Name another with BASE_PYTHON=."
    )


def driver_version() -> str:
    """The NVIDIA driver's version as the kernel module or nvidia-smi tells it; empty without either."""
    try:
        told = _VERSION_FILE.read_text()
    except OSError:
        told = _ask_nvidia_smi()
    found = re.search(r"\b(\d{3}\.\d+(?:\.\d+)?)\b", told)
    return found.group(1) if found else ""


def driver_problem(version: str) -> str:
    """Why the pinned torch would not run on that driver, and the build that does; nothing without a driver."""
    if not version or int(version.split(".", maxsplit=1)[0]) >= LEAST_DRIVER:
        return ""
    told = (
        f"driver {version} is too old for the pinned torch {PINNED_TORCH} (CUDA {PINNED_CUDA} needs driver "
        f"{LEAST_DRIVER} or later). Nothing was downloaded."
    )
    if int(version.split(".", maxsplit=1)[0]) < FALLBACK_LEAST_DRIVER:
        return f"{told} Upgrade the driver: no build of torch {PINNED_TORCH} runs on it."
    return (
        f"{told} Install the '{FALLBACK_BUILD}' build of torch {PINNED_TORCH} into an environment of your own (see "
        "pytorch.org, 'Previous versions'; Blackwell needs the newer driver) and run `make bench PYTHON=<its python>`, "
        "or upgrade the driver."
    )


def _ask_nvidia_smi() -> str:
    command = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    try:
        answer = subprocess.run(command, capture_output=True, text=True, timeout=20, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return answer.stdout if answer.returncode == 0 else ""


if __name__ == "__main__":
    sys.exit(main())
