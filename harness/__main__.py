"""`ofpeak`, the same as `python -m harness`."""

import io
import os
import sys


def main() -> None:
    """Run the command line and leave with its exit code."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a terminal that cannot print ± still gets its table
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
