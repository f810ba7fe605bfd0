"""`ofpeak import`: what other tools measured, or others published, as run files that every verb reads."""

from collections.abc import Sequence
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from harness.importers.recording import Recording
    from harness.model import Run


class Tool(StrEnum):
    """What wrote the recordings."""

    AUTO = "auto"
    NVBANDWIDTH = "nvbandwidth"
    NCCL_TESTS = "nccl-tests"
    PUBLISHED = "published"


def import_(
    out: Annotated[
        Path, typer.Option("--out", "-o", metavar="OUT.json", help="The run file; for all of 'published', a folder.")
    ],
    files: Annotated[
        list[Path] | None,
        typer.Argument(
            metavar="FILE...", help="Recordings of one machine, as they are: text or JSON.", show_default=False
        ),
    ] = None,
    tool: Annotated[
        Tool, typer.Option("--from", help="What wrote them; 'published' needs no file: figures that others published.")
    ] = Tool.AUTO,
    gpu: Annotated[
        str, typer.Option(metavar="NAME", help="The GPU as nvidia-smi names it.", show_default="as the recording says")
    ] = "",
    label: Annotated[str, typer.Option(metavar="TEXT", help="Your own name for the machine.", show_default=False)] = "",
    buffer_mib: Annotated[
        int, typer.Option(min=0, max=2**20, metavar="MIB", help="nvbandwidth's --bufferSize.", show_default="512, said")
    ] = 0,
    collective: Annotated[
        str, typer.Option(metavar="NAME", help="What nccl-tests ran, where its output lacks it.", show_default=False)
    ] = "",
) -> None:
    """Make run files of what nvbandwidth and nccl-tests wrote, with their own byte convention and protocol."""
    from harness.cli.output import write

    if tool is Tool.PUBLISHED:
        write("".join(_save(run, path) for run, path in _published(files or [], gpu, label, out)))
        return
    write(_save(_imported(files or [], tool, gpu, label, buffer_mib, collective), out))


def _published(files: Sequence[Path], gpu: str, label: str, out: Path) -> "list[tuple[Run, Path]]":
    from harness.errors import HarnessError
    from harness.importers import published

    if files or label:
        raise HarnessError("--from published takes no file and no --label: its figures come with ofpeak.")
    if gpu:
        return [(published.published_run(gpu), out / published.file_name(gpu) if out.is_dir() else out)]
    if out.suffix == ".json":
        raise HarnessError(f"{out} is one file, published figures are of several GPUs. Name a folder, or add --gpu.")
    return [(published.published_run(name), out / published.file_name(name)) for name in published.gpus()]


def _imported(files: Sequence[Path], tool: Tool, gpu: str, label: str, buffer_mib: int, collective: str) -> "Run":
    from harness.errors import HarnessError
    from harness.importers.nccl_tests import FACTORS
    from harness.importers.recording import build_run, choose_gpu

    if not files:
        raise HarnessError("nothing to import: name a recording of nvbandwidth or nccl-tests.")
    if collective and collective not in FACTORS:
        raise HarnessError(f"unknown collective '{collective}'. Use one of {', '.join(FACTORS)}.")
    recordings = [recording for file in files for recording in _recordings(file, tool, buffer_mib, collective)]
    name = choose_gpu(gpu, recordings)
    now = datetime.now(UTC).isoformat(timespec="seconds")
    return build_run(recordings, gpu=name, created_at=now, label=label)


def _recordings(file: Path, tool: Tool, buffer_mib: int, collective: str) -> "list[Recording]":
    """What a file holds: of one tool, or with 'auto' of whichever wrote into it."""
    from harness.errors import HarnessError
    from harness.importers import nccl_tests, nvbandwidth
    from harness.importers.recording import read_text

    text = read_text(file)
    found = []
    if tool is Tool.NVBANDWIDTH or (tool is Tool.AUTO and nvbandwidth.is_ours(text)):
        found.append(nvbandwidth.parse(text, buffer_mib))
    if tool is Tool.NCCL_TESTS or (tool is Tool.AUTO and nccl_tests.is_ours(text)):
        found.append(nccl_tests.parse(text, collective))
    found = [recording for recording in found if recording.figures]
    if not found:
        expected = [nvbandwidth.EXPECTED] if tool is not Tool.NCCL_TESTS else []
        expected += [nccl_tests.EXPECTED] if tool is not Tool.NVBANDWIDTH else []
        raise HarnessError(f"{file} holds no figure that can be imported. Expected {'; or '.join(expected)}.")
    return found


def _save(run: "Run", path: Path) -> str:
    from harness import store
    from harness.errors import HarnessError
    from harness.report.text import clean, counted

    try:
        store.save(run, path)
    except OSError as error:
        raise HarnessError(f"cannot write {path}: {error.strerror}. Name another file with -o.") from error
    without = f", {counted(len(run.not_measured), 'case')} without one" if run.not_measured else ""
    partial = f" ({clean(run.partial)})" if run.partial else ""
    return f"{path}: {counted(len(run.measured), 'figure')}{without} of '{clean(run.device.name)}'{partial}\n"
