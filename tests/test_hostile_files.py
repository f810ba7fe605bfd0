"""Run files from elsewhere: whatever text they hold, it is printed as text, and no path in them is ever opened."""

import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from harness import store
from harness.cli.app import exit_status
from harness.errors import HarnessError
from tests import hand_made
from tests.hand_made_journals import record
from tests.test_store import places

pytest.importorskip("pydantic")

HOSTILE = "\x1b[31m<script>alert(1)</script>[bold]b[/bold]|`x`\u202e\x9b2J&lt;"
VERBS = {
    "show": ["show", "{file}"],
    "show as Markdown": ["show", "{file}", "--format", "md"],
    "compare": ["compare", "{file}", "{other}", "--no-cache"],
    "compare as Markdown": ["compare", "{file}", "{other}", "--no-cache", "--format", "md"],
    "compare as JSON": ["compare", "{file}", "{other}", "--no-cache", "--format", "json"],
    "compare a fleet": ["compare", "--fleet", "{fleet}", "--no-cache"],
    "report": ["report", "{file}", "{other}", "-o", "{out}"],
    "noise": ["noise", "{set}", "-o", "{out}"],
    "export": ["export", "{file}", "-o", "{out}", "--format", "openmetrics"],
}


def filled(text: str, path: Path) -> int:
    """Write a run file with that text wherever the store takes it; how many places those are."""
    absent = hand_made.full_run().not_measured
    document = json.loads(json.dumps(store.compose(hand_made.gpu_run(record(1024), record(2048), *absent))))
    count = 0
    for container, key in list(places(document)):
        kept = container[key]
        if not isinstance(kept, str):
            continue
        container[key] = text
        path.write_text(json.dumps(document))
        try:
            store.load(path)
            count += 1
        except HarnessError:
            container[key] = kept
    path.write_text(json.dumps(document))
    return count


Names = dict[str, Path]


def siblings(file: Path) -> Names:
    """What verbs ask for besides one file: another run, three on one card, one on each of five cards."""
    folder = file.parent / f"of-{file.stem}"
    names = {"file": file, "other": folder / "other.json", "set": folder / "set", "fleet": folder / "fleet"}
    document = json.loads(file.read_text())
    for name in ("set", "fleet"):
        names[name].mkdir(parents=True)
    names["other"].write_text(json.dumps(document | {"run_id": "another"}))
    # The noise of runs is that of a time, and not that of a slowdown put in.
    document["datetime"], document["order"]["inject"] = "2026-01-02T03:04:05Z", []
    for benchmark in document["benchmarks"]:
        benchmark["extra_info"].pop("started_at", None)
    for number in range(3):
        (names["set"] / f"{number}.json").write_text(json.dumps(document | {"run_id": f"r{number}"}))
    for number in range(5):
        document["environment"]["card"]["value"] = f"card {number}"
        (names["fleet"] / f"{number}.json").write_text(json.dumps(document | {"run_id": f"r{number}"}))
    return names


@pytest.fixture(scope="module")
def hostile(tmp_path_factory: pytest.TempPathFactory) -> Names:
    """Files full of hostile text."""
    file = tmp_path_factory.mktemp("hostile") / "a.json"
    assert filled(HOSTILE, file) > 40
    return siblings(file)


def said(verb: str, names: Names, out: Path, capsys: pytest.CaptureFixture[str]) -> tuple[int, str]:
    """The exit code, and all that the verb prints and writes."""
    arguments = [part.format(**names, out=out) for part in VERBS[verb]]
    status = exit_status(arguments)
    captured = capsys.readouterr()
    written = out.read_text() if out.exists() else ""
    return status, captured.out + captured.err + written


@pytest.mark.parametrize("verb", VERBS)
def test_text_of_a_file_moves_no_cursor_and_is_no_markup(
    verb: str, hostile: Names, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    status, text = said(verb, hostile, tmp_path / "out.html", capsys)
    assert status == 0, text
    assert not [part for part in ("\x1b[31m", "\x9b2J", "`x`\u202e") if part in text]
    if verb != "report":  # whose own scripts hold other characters
        assert not {c for c in text if not c.isprintable()} - {"\n"}
    if verb in ("report", "show as Markdown", "compare as Markdown"):
        assert "<script>alert" not in text
    if "Markdown" not in verb and verb != "report":
        assert "[bold]" in text or verb in ("export", "noise")  # it was not read as markup


@pytest.mark.parametrize("verb", ["report", "noise", "export"])
def test_a_device_or_pipe_is_never_replaced_by_a_file(verb: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    """`export -o /dev/null` of root put a regular file in place of the device."""
    store.save(hand_made.gpu_run(record(1024)), tmp_path / "a.json")
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    names = siblings(tmp_path / "a.json")
    assert exit_status([part.format(**names, out=pipe) for part in VERBS[verb]]) == 5
    assert capsys.readouterr().err == (
        f"ofpeak: {pipe} is a device or a pipe, not a file; it is kept. Name another file with -o.\n"
    )
    assert pipe.is_fifo()
    with pytest.raises(HarnessError, match="is a device or a pipe"):
        store.save(hand_made.gpu_run(record(1024)), pipe)


@pytest.fixture
def opened() -> Iterator[list[str]]:
    """Every path that is opened meanwhile; an audit hook cannot be taken away, so it is told to stop."""
    paths: list[str] = []
    is_watching = True

    def watch(event: str, arguments: Any) -> None:
        if is_watching and event in ("open", "os.listdir", "os.scandir"):
            paths.append(str(arguments[0]))

    sys.addaudithook(watch)
    yield paths
    is_watching = False


def test_no_path_in_a_file_is_ever_opened(tmp_path: Path, opened: list[str], capsys: pytest.CaptureFixture[str]):
    bait = tmp_path / "bait"
    bait.mkdir()
    for number, text in enumerate((str(bait), f"../{bait.name}", str(bait / "x.json"))):
        file = tmp_path / f"a{number}.json"
        assert filled(text, file) > 40
        names = siblings(file)
        for verb in VERBS:
            said(verb, names, tmp_path / "out.html", capsys)
    assert [path for path in opened if path.endswith(".json")]  # the hook does watch
    assert not [path for path in opened if "bait" in path]
