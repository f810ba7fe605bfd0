"""The one error that a user can fix, and the exit codes that the command promises."""

from enum import IntEnum


class ExitCode(IntEnum):
    """What the command's exit status means; promised for `ofpeak`, not for make."""

    DONE = 0
    FAILED = 1
    INCONCLUSIVE = 2
    NOT_COMPARABLE = 3
    MISSING = 4
    USAGE = 5
    INTERNAL = 70


class HarnessError(Exception):
    """Something the user can fix: printed as one line, without a traceback.

    `exit_code` is USAGE unless nothing could be measured at all (INCONCLUSIVE).
    """

    def __init__(self, message: str, exit_code: ExitCode = ExitCode.USAGE) -> None:
        super().__init__(message)
        self.exit_code = exit_code
