"""Noise files: one a GPU model, saved whole, found by the GPU's name, and read with suspicion. Floor 3 of the suite."""

import functools
import json
import math
import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from harness.errors import HarnessError
from harness.export import write_whole
from harness.model import to_plain
from harness.noise import LEAST_RUNS, NOISE_SCHEMA_VERSION, CardNoise, CaseNoise, NoiseFile, Spread

if TYPE_CHECKING:
    from pydantic import TypeAdapter

SIZE_LIMIT_BYTES = 16 * 2**20
_ROOT = Path(__file__).resolve().parents[1]
_LONGEST_SLUG = 80


def default_folder() -> Path:
    """Where noise files lie: in this checkout's results/noise; below the working folder where there is no checkout."""
    return (_ROOT if (_ROOT / "benches").is_dir() else Path()) / "results" / "noise"


def file_name(gpu: str) -> str:
    """The name of a GPU model's noise file: 'NVIDIA H200' -> 'nvidia-h200.json'."""
    slug = re.sub(r"[^a-z0-9]+", "-", gpu.lower()).strip("-")[:_LONGEST_SLUG]
    if not slug:
        raise HarnessError(f"the GPU's name {gpu[:40]!r} makes no file name. Name a file with -o.")
    return f"{slug}.json"


def to_text(noise: NoiseFile) -> str:
    """What a noise file holds; the same runs give the same text."""
    # ASCII: no character of a foreign file reaches a terminal as itself.
    return json.dumps(to_plain(noise), indent=1, allow_nan=False) + "\n"


def save(noise: NoiseFile, path: Path) -> None:
    """Write a noise file whole or not at all."""
    write_whole(to_text(noise).encode(), path)


def find_noise(gpu: str, folder: Path | None = None) -> NoiseFile | None:
    """The known noise of a GPU model, or `None` where there is no file of it."""
    path = (folder or default_folder()) / file_name(gpu)
    if not path.is_file():
        return None
    noise = load(path)
    if noise.gpu != gpu:
        raise HarnessError(f"{path} holds the noise of {_one_line(repr(noise.gpu))}, not of {_one_line(repr(gpu))}.")
    return noise


def load(path: Path) -> NoiseFile:
    """Read and validate a noise file; whatever is wrong with it is one line of `HarnessError`."""
    data = _read(path)
    try:
        document = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise HarnessError(f"{path} is not a whole JSON file: {_one_line(error)}. Make it again.") from error
    version = document.get("noise_schema_version") if isinstance(document, dict) else None
    if type(version) is not int or version < 1:
        raise HarnessError(f"{path} is not a noise file: it has no noise_schema_version. Name another file.")
    if version > NOISE_SCHEMA_VERSION:
        raise HarnessError(f"{path} has schema {version}, this ofpeak reads up to {NOISE_SCHEMA_VERSION}.")
    try:
        noise: NoiseFile = _adapter().validate_json(b"[" + data + b"]")[0]
    except ValueError as error:  # pydantic's ValidationError is one
        raise HarnessError(f"{path} is not a noise file: {_first_problem(error)}") from error
    problem = next(_problems(noise), "")
    if problem:
        raise HarnessError(f"{path}: {_one_line(problem)}. The file is damaged; make it again.")
    return noise


def _read(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            data = file.read(SIZE_LIMIT_BYTES + 1)
    except OSError as error:
        raise HarnessError(f"cannot read {path}: {error.strerror}. Name a noise file.") from error
    if len(data) > SIZE_LIMIT_BYTES:
        raise HarnessError(f"{path} is larger than {SIZE_LIMIT_BYTES // 2**20} MiB; noise files stay under 1 MiB.")
    return data


@functools.cache
def _adapter() -> "TypeAdapter[list[NoiseFile]]":
    """Pydantic's validator; in a list, because settings reach standard dataclasses only from outside."""
    try:
        from pydantic import ConfigDict, TypeAdapter
    except ImportError as error:
        raise HarnessError("reading noise files needs pydantic: pip install 'pydantic>=2.7'.") from error
    return TypeAdapter(list[NoiseFile], config=ConfigDict(strict=True, extra="forbid", allow_inf_nan=False))


def _first_problem(error: ValueError) -> str:
    from pydantic import ValidationError

    if not isinstance(error, ValidationError):
        return _one_line(error)
    problem = error.errors(include_url=False, include_input=False)[0]
    place = ".".join(str(part) for part in problem["loc"][1:])
    return _one_line(f"{place}: {problem['msg']}")


def _problems(noise: NoiseFile) -> Iterator[str]:
    """What types cannot say: figures of enough runs, none of them negative, no case twice."""
    for group in noise.groups:
        seen = set()
        for case in group.cases:
            if (case.key, case.source) in seen:
                yield f"{case.key} is there twice"
            seen.add((case.key, case.source))
            yield from (f"{case.key}: {problem}" for problem in _problems_of(case))


def _problems_of(case: CaseNoise) -> Iterator[str]:
    if not case.cards or len({(card.site_key, card.card) for card in case.cards}) != len(case.cards):
        yield "it has no card, or one twice"
    if case.time.sd_ratio is None:
        yield "its spread is unknown"
    for spread in (case.time, *(spread for card in case.cards for spread in (card.time, card.energy, card.cycles))):
        yield from _problems_of_spread(spread)
    for card in case.cards:
        yield from _problems_of_card(card)


def _problems_of_spread(spread: Spread) -> Iterator[str]:
    low, sd, high = spread.low_ratio, spread.sd_ratio, spread.high_ratio
    if sd is None:
        if not spread.reason:
            yield "a spread is unknown without a reason"
    elif low is None or high is None or not 0 <= low <= sd <= high or not 1 <= spread.freedom < spread.runs:
        yield f"a spread of {sd} ({low} to {high}) over {spread.runs} runs cannot be"


def _problems_of_card(card: CardNoise) -> Iterator[str]:
    if card.runs < LEAST_RUNS or card.time.sd_ratio is None or card.time.runs != card.runs:
        yield f"{card.runs} runs of a card make no spread"
    if not (math.isfinite(card.seconds_per_launch) and card.seconds_per_launch > 0):
        yield f"a launch of {card.seconds_per_launch} s cannot be"
    if any(not name.isdecimal() or difference < 0 for name, difference in card.detectable.items()):
        yield "a detectable difference is negative, or of no number of runs"
    if min(vars(card.counts).values()) < 0:
        yield "a count is negative"


def _one_line(text: object) -> str:
    """Foreign text fit for a terminal: one line, printable, short."""
    return "".join(c if c.isprintable() else "?" for c in " ".join(str(text).split())[:200])
