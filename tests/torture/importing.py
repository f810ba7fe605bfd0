"""Recordings of other tools, damaged at random, through the importers: figures or a refusal, never a traceback.

The corpus is tests/corpus: recordings, and in its folder `found` what fuzzing by coverage made of them.
tests/torture/atheris_importers.py uses the same target and corpus where atheris is there.
"""

import random
import time
from collections.abc import Sequence
from pathlib import Path

from harness import store
from harness.errors import HarnessError
from harness.importers import nccl_tests, nvbandwidth
from harness.importers.recording import build_run
from tests.torture.decisions import last_frame

CORPUS = Path(__file__).parents[1] / "corpus"
GPU = "NVIDIA H200"
_ODD = (
    *("\x00", "\x1b[31m", "\r", "\n", "\t", "|", "{", "}", "[", "]", '"', ":", ",", "-", "e", ".", "#", " ", "N/A"),
    *("nan", "inf", "1e999", "0", "-1", "9" * 400, "[" * 300, "\u202e", "é", "all_reduce_perf", "float", "sum"),
)


def take(text: str) -> bool:
    """Import a text by every importer; whether any found figures. What is imported must make a valid run file."""
    found = False
    for parse in (nvbandwidth.parse, nccl_tests.parse):
        try:
            recording = parse(text)
            if recording.figures:
                found = True
                store.check(build_run([recording], gpu=GPU, created_at="2026-01-02T03:04:05Z"), Path("imported.json"))
        except HarnessError:
            continue
    nvbandwidth.is_ours(text)
    nccl_tests.is_ours(text)
    return found


def corpus() -> list[str]:
    """The committed recordings."""
    return _texts(CORPUS)


def found() -> list[str]:
    """What reaches lines that recordings do not."""
    return _texts(CORPUS / "found")


def _texts(folder: Path) -> list[str]:
    return [path.read_bytes().decode("utf-8", "replace") for path in sorted(folder.iterdir()) if path.is_file()]


def mutate(rng: random.Random, texts: Sequence[str]) -> str:
    """A recording with a few lines, words and characters lost, doubled, swapped, or replaced by what is odd."""
    text = rng.choice(texts)
    for _ in range(rng.choice((1, 1, 2, 4, 8))):
        text = rng.choice((_lines, _words, _characters, _splice))(rng, text, texts)
    return text


def _lines(rng: random.Random, text: str, _: Sequence[str]) -> str:
    lines = text.split("\n")
    first, second = rng.randrange(len(lines)), rng.randrange(len(lines))
    match rng.randrange(4):
        case 0:
            del lines[first]
        case 1:
            lines[first], lines[second] = lines[second], lines[first]
        case 2:
            lines.insert(first, lines[second])
        case _:
            lines = lines[:first]
    return "\n".join(lines)


def _words(rng: random.Random, text: str, _: Sequence[str]) -> str:
    words = text.split(" ")
    at = rng.randrange(len(words))
    words[at] = rng.choice((rng.choice(words), rng.choice(_ODD), words[at] * 2, ""))
    return " ".join(words)


def _characters(rng: random.Random, text: str, _: Sequence[str]) -> str:
    at = rng.randrange(len(text) + 1)
    return text[:at] + rng.choice(_ODD) + text[at + rng.randrange(3) :]


def _splice(rng: random.Random, text: str, texts: Sequence[str]) -> str:
    other = rng.choice(texts)
    return text[: rng.randrange(len(text) + 1)] + other[rng.randrange(len(other) + 1) :]


def fuzz(seconds: float, seed: int) -> tuple[int, int, list[str]]:
    """How many texts were tried, how many gave figures, and what went wrong: what was found first, as it is."""
    rng, recordings, others = random.Random(seed), corpus(), found()
    tried, taken, problems = 0, 0, []
    ends_s = time.monotonic() + seconds
    while time.monotonic() < ends_s:
        as_found = tried < len(others)
        text = others[tried] if as_found else mutate(rng, rng.choice((recordings, others)))
        tried += 1
        try:
            taken += take(text)
        except Exception:
            problems.append(f"{last_frame()}: {text[:60]!r}")
    return tried, taken, problems
