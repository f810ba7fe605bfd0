"""`ofpeak`, the same as `python -m harness`."""

import io
import os
import sys

from harness import packages
from harness.errors import ExitCode


def main() -> None:
    """Run the command line and leave with its exit code."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a terminal that cannot print ± still gets its table
    if packages.lacking(packages.STARTING):
        is_run = sys.argv[1:2] == ["run"]
        sys.stderr.write(f"ofpeak: {packages.lacking(packages.MEASURING if is_run else packages.READING)}\n")
        sys.exit(ExitCode.USAGE)
    from harness.cli.app import exit_status

    status = exit_status(sys.argv[1:])
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        # The interpreter would flush once more at its end, and complain.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    sys.exit(status)


if __name__ == "__main__":
    main()
