"""Structural mutations of real run files: types, nesting, numbers, duplicates, truncation. Seeded, so repeatable."""

import copy
import json
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
_KEPT_BENCHMARKS = 2
_KEPT_ITEMS = 6

STRANGE: tuple[Any, ...] = (
    *(None, True, False, 0, -1, 1, 2**53, -(2**63), 10**18, 0.0, -0.0, 1e-300, 1e308, -1e308, 5e-324),
    *("", "x", "NaN", "\x1b[31mred\x1b[0m", "<script>alert(1)</script>", "[bold]b[/bold]", "../../etc/passwd"),
    *("\u202e", "\x00", "é" * 300, "a/b=c", "|", "`", "\ud800", "9" * 400),
    *([], {}, [[]], [None], {"": None}, {"a": {"b": {"c": []}}}),
)


def real_files() -> tuple[list[Path], list[Path]]:
    """Every committed run file: those of runs, and those of figures that others took."""
    figures = [file for name in ("imported", "published") for file in sorted((ROOT / "results" / name).glob("*.json"))]
    return sorted((ROOT / "results" / "baselines").rglob("run-*.json")), figures


def real_documents() -> list[dict[str, Any]]:
    """Every committed run file, runs first, thinned to a few cases with short series: what is left has every field."""
    runs, figures = real_files()
    return [_thinned(json.loads(path.read_text()), number) for number, path in enumerate([*runs, *figures])]


def _thinned(document: dict[str, Any], seed: int) -> dict[str, Any]:
    rng = random.Random(seed)
    for name in ("benchmarks", "not_measured"):
        kept = sorted(rng.sample(range(len(document[name])), min(_KEPT_BENCHMARKS, len(document[name]))))
        document[name] = [document[name][i] for i in kept]
    for benchmark in document["benchmarks"]:
        record, stats = benchmark["extra_info"], benchmark["stats"]
        stats["data"] = stats["data"][:_KEPT_ITEMS]
        samples = record["samples"]
        samples["starved"] = 0
        samples["window_s"] = sum(stats["data"]) * samples["launches_per_sample"]
        for name in ("timeline", "burst"):
            columns = record.get("telemetry", {}).get(name, {})
            record.get("telemetry", {})[name] = {key: column[:_KEPT_ITEMS] for key, column in columns.items()}
    return document


@dataclass(frozen=True)
class Mutant:
    """A damaged text, and which of the documents it was made of."""

    text: str
    of: int


def mutants(seed: int, documents: Sequence[dict[str, Any]]) -> Iterator[Mutant]:
    """Texts without end: one of the documents with one to four things changed, sometimes as text."""
    rng = random.Random(seed)
    while True:
        of = rng.choice(range(len(documents)))
        document = copy.deepcopy(documents[of])
        for _ in range(rng.choice((1, 1, 1, 2, 4))):
            rng.choice(_CHANGES)(rng, document, documents)
        text = json.dumps(document)
        yield Mutant(rng.choice(_TEXT_CHANGES)(rng, text) if rng.random() < 0.1 else text, of)


def _places(container: Any) -> Iterator[tuple[Any, Any]]:
    for key, value in list(container.items() if isinstance(container, dict) else enumerate(container)):
        yield container, key
        if isinstance(value, dict | list):
            yield from _places(value)


def _somewhere(rng: random.Random, document: Any) -> tuple[Any, Any]:
    """A place of the document; each depth as likely as the next, since most leaves are samples."""
    container, key = document, rng.choice(list(document))
    while isinstance(container[key], dict | list) and container[key] and rng.random() < 0.75:
        container = container[key]
        key = rng.choice(list(container) if isinstance(container, dict) else range(len(container)))
    return container, key


def _replace(rng: random.Random, document: Any, _: Any) -> None:
    container, key = _somewhere(rng, document)
    container[key] = copy.deepcopy(rng.choice(STRANGE))


def _remove(rng: random.Random, document: Any, _: Any) -> None:
    container, key = _somewhere(rng, document)
    if len(document) > 1 or container is not document:
        del container[key]


def _add(rng: random.Random, document: Any, _: Any) -> None:
    container, _key = _somewhere(rng, document)
    value = copy.deepcopy(rng.choice(STRANGE))
    if isinstance(container, dict):
        container[rng.choice(("x", "", "seconds", "key", "schema_version", "\x1b[2J"))] = value
    else:
        container.insert(rng.randrange(len(container) + 1), value)


def _duplicate(rng: random.Random, document: Any, _: Any) -> None:
    lists = [c[k] for c, k in _places(document) if isinstance(c[k], list) and c[k]]
    if lists:
        chosen = rng.choice(lists)
        chosen.append(copy.deepcopy(rng.choice(chosen)))


def _scale(rng: random.Random, document: Any, _: Any) -> None:
    numbers = [(c, k) for c, k in _places(document) if type(c[k]) in (int, float)]
    container, key = rng.choice(numbers)
    container[key] = rng.choice((-container[key], container[key] * 1e6, container[key] * 1e-9, int(container[key])))


def _nest(rng: random.Random, document: Any, _: Any) -> None:
    container, key = _somewhere(rng, document)
    for _i in range(rng.choice((1, 2, 20, 30, 200))):
        container[key] = [container[key]] if rng.random() < 0.5 else {"x": container[key]}


def _move(rng: random.Random, document: Any, _: Any) -> None:
    (to, to_key), (of, of_key) = _somewhere(rng, document), _somewhere(rng, document)
    to[to_key] = copy.deepcopy(of[of_key])


def _graft(rng: random.Random, document: Any, documents: Sequence[Any]) -> None:
    """A whole part of another file: every value is right, and together they are not."""
    other = rng.choice(documents)
    key = rng.choice(list(document))
    if key in other:
        document[key] = copy.deepcopy(other[key])


def _truncate(rng: random.Random, document: Any, _: Any) -> None:
    lists = [(c, k) for c, k in _places(document) if isinstance(c[k], list) and c[k]]
    if lists:
        container, key = rng.choice(lists)
        container[key] = container[key][: rng.randrange(len(container[key]))]


_CHANGES = (_replace, _replace, _remove, _add, _duplicate, _scale, _nest, _move, _graft, _truncate)


def _cut_text(rng: random.Random, text: str) -> str:
    return text[: rng.randrange(len(text))]


def _double_key(rng: random.Random, text: str) -> str:
    return text.replace('{"', '{"key": 1, "key": 2, "', 1) if rng.random() < 0.5 else text.replace(", ", ", , ", 1)


def _odd_number(rng: random.Random, text: str) -> str:
    odd = rng.choice(("NaN", "Infinity", "-Infinity", "1e999", "1" * 5000, "-0", "1E400", "01"))
    at = rng.choice([i for i, c in enumerate(text[:-1]) if c == ":"])
    end = min((i for i in (text.find(",", at), text.find("}", at)) if i > 0), default=len(text))
    return f"{text[:at]}: {odd}{text[end:]}"


def _deep_text(rng: random.Random, text: str) -> str:
    depth = rng.choice((50, 2000, 100_000))
    return text.replace(": ", ": " + "[" * depth + "]" * depth + ', "x": ', 1)


_TEXT_CHANGES = (_cut_text, _double_key, _odd_number, _deep_text)
