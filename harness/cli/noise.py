"""`ofpeak noise`: how far runs differ when nothing was changed, kept in one file a GPU model."""

from collections.abc import Iterable, Sequence
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from harness.errors import HarnessError

if TYPE_CHECKING:
    from harness.model import Run
    from harness.noise import NoiseFile


class Format(StrEnum):
    """How known noise is printed."""

    TEXT = "text"
    JSON = "json"


def noise(
    paths: Annotated[list[Path], typer.Argument(metavar="SET...", help="Folders of run files, or single run files.")],
    output: Annotated[
        Path | None,
        typer.Option(
            "-o", "--output", metavar="FILE", help="The file to write.", show_default="results/noise/<gpu>.json"
        ),
    ] = None,
    format: Annotated[Format, typer.Option("--format", help="Tables, or what the files hold.")] = Format.TEXT,
) -> None:
    """Keep how far runs differ when nothing was changed, and print it with the least slowdown that they can show."""
    from harness import noise_files, store
    from harness.cli.show import run_files
    from harness.noise_finding import noise_of

    files = run_files(paths)
    sets = sets_by_gpu(files, store.load_set(files))
    if output is not None and len(sets) > 1:
        raise HarnessError(f"-o names one file, and these are runs of {len(sets)} GPU models. Leave it out.")
    found = [noise_of(*sets[gpu]) for gpu in sorted(sets)]
    places = [output or noise_files.default_folder() / noise_files.file_name(one.gpu) for one in found]
    if len(set(places)) != len(places):
        raise HarnessError(f"two GPU models would share {places[0].parent}'s file. Name one at a time, with -o.")
    for one, place in zip(found, places, strict=True):
        noise_files.save(one, place)
    write_noise(found, places, format)


def sets_by_gpu(files: Sequence[Path], runs: "Iterable[Run]") -> "dict[str, list[list[Run]]]":
    """Runs by GPU model and set. Files of one folder are one set, however they were named."""
    found: dict[str, dict[Path, list[Run]]] = {}
    for file, run in zip(files, runs, strict=True):
        found.setdefault(run.device.name, {}).setdefault(file.absolute().parent, []).append(run)
    return {gpu: list(by_folder.values()) for gpu, by_folder in found.items()}


def write_noise(found: "Sequence[NoiseFile]", places: Sequence[Path], format: Format) -> None:
    """Write the tables and where the files are, or a JSON list of what they hold."""
    from harness import noise_files
    from harness.cli.output import write, write_page
    from harness.report import sections
    from harness.report.noise_table import noise_sections

    if format is Format.JSON:
        held = ",\n".join(noise_files.to_text(one).rstrip() for one in found)
        write(f"[\n{held}\n]\n")
        return
    shown = [section for one in found for section in noise_sections(one)]
    write_page(lambda console: sections.print_sections(shown, console))
    write("\n" + "".join(f"noise file: {place}\n" for place in places))
