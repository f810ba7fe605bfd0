"""Coverage-guided fuzzing: `python -m tests.torture.atheris_importers -max_total_time=600 FOLDER tests/corpus`.

New inputs go to FOLDER, the corpus is where it begins. Atheris is no dependency of the suite: it must be installed.
"""

import sys

import atheris  # type: ignore[import-not-found]  # nothing here needs it but this script

with atheris.instrument_imports(include=["harness.importers"]):
    from tests.torture.importing import take


def take_bytes(data: bytes) -> None:
    """One input, read as `ofpeak import` reads a file."""
    take(data.decode("utf-8", errors="replace"))


if __name__ == "__main__":
    atheris.Setup(sys.argv, take_bytes)
    atheris.Fuzz()
