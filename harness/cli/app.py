"""The command `ofpeak`: its verbs, its version, and how errors become exit codes."""

import errno
import signal
import sys
import traceback
from collections.abc import Sequence
from typing import Annotated

import typer
import typer.main

import harness
from harness.cli.claims import claims
from harness.cli.compare import compare
from harness.cli.doctor import doctor
from harness.cli.export import export
from harness.cli.gate import gate, spread_sets
from harness.cli.gate_selftest import gate_selftest
from harness.cli.history import history
from harness.cli.import_ import import_
from harness.cli.noise import noise
from harness.cli.peak import peak
from harness.cli.recover import recover
from harness.cli.report import report
from harness.cli.run import run
from harness.cli.selfcheck import selfcheck
from harness.cli.show import show
from harness.cli.specs import specs_app
from harness.cli.whoami import whoami
from harness.errors import ExitCode, HarnessError
from harness.report.text import clean

app = typer.Typer(
    name="ofpeak",
    help="How much of a GPU its owner gets: measured rates beside what the data sheet promises.",
    epilog="Exit codes: 0 done, 1 some cases failed, 2 nothing measured, 5 usage or unreadable input, 70 our own bug, "
    "128 + n ended by signal n. gate, doctor, selfcheck, peak, recover and specs check say their own in their help.",
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
app.command("run", short_help="Measure this machine, print the table, save the run file.")(run)
app.command(
    "recover",
    short_help="Make run files of the journals of killed runs.",
    epilog="Exit codes: 0 done, 2 no journal tells of a plan, 5 usage or a damaged journal.",
)(recover)
app.command("show", short_help="Print runs: a line a case, and what has no figure.")(show)
app.command("compare", short_help="Put sets of any hardware side by side.")(compare)
app.command(
    "gate",
    short_help="May an upgrade go out? Judge runs before and after it.",
    epilog="Exit codes: 0 pass, 1 regression, 2 inconclusive, 3 not comparable, 4 missing, 5 usage; the last line says "
    "all that apply, and 5, 3, 1, 4, 2, 0 is the order in which they decide.",
)(gate)
app.command("gate-selftest", short_help="How often the gate is right on your own runs.")(gate_selftest)
app.command("report", short_help="Write one HTML page about sets.")(report)
app.command(
    "doctor",
    short_help="Is this machine fit to measure? Findings and remedies.",
    epilog="Exit codes: 0 fit, 1 not fit (a blocker), 2 no GPU, 5 usage.",
)(doctor)
app.command("selfcheck", short_help="Is the instrument itself in order? Takes minutes.")(selfcheck)
app.command(
    "peak",
    short_help="Find the shape at which a GEMM is fastest here.",
    epilog="Exit codes: 0 done, 1 a shape's result was wrong, 2 no GPU or nothing measured, 5 usage.",
)(peak)
app.command("noise", short_help="How far runs differ when nothing was changed.")(noise)
app.command("history", short_help="Where a case's level changed, and what else did.")(history)
app.command("whoami", short_help="Map this machine's cards to the hashes in run files.")(whoami)
app.add_typer(specs_app, name="specs", short_help="What data sheets promise, and how sure that is.")
app.command("claims", short_help="What circulates about Hopper and Blackwell, judged.")(claims)
app.command("import", short_help="Make run files of nvbandwidth's and nccl-tests' output.")(import_)
app.command("export", short_help="Write runs as Parquet, CSV or OpenMetrics.")(export)

# typer carries its own copy of click since 0.2x and used the package before; both have this ancestry.
_UsageProblem: type[Exception] = typer.BadParameter.__mro__[2]  # ClickException


# A full disk may be met anywhere that something is written, also where the output goes.
_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS)


def _print_version(is_wanted: bool) -> None:
    if is_wanted:
        typer.echo(f"ofpeak {harness.__version__}")
        raise typer.Exit()


@app.callback(invoke_without_command=True)
def top(
    context: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and leave.")
    ] = False,
) -> None:
    """How much of a GPU its owner gets: measured rates beside what the data sheet promises."""
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())
        # An empty variable in a script must not look like success.
        raise typer.Exit(ExitCode.USAGE)


def exit_status(arguments: Sequence[str]) -> int:
    """Run the command; the exit code that it promises, with one line on stderr for what a user can fix."""
    command = typer.main.get_command(app)
    try:
        spread = spread_sets(arguments) if arguments[:1] == ["gate"] else list(arguments)
        returned = command.main(args=spread, prog_name="ofpeak", standalone_mode=False)
    except HarnessError as error:
        _complain(str(error))
        return error.exit_code
    except _UsageProblem as error:
        _complain(_usage_message(error))
        return ExitCode.USAGE
    except (KeyboardInterrupt, typer.Abort):
        return 128 + signal.SIGINT
    except SystemExit:
        # Only a closed pipe comes here: typer would leave with 1, which means failed cases.
        return 128 + signal.SIGPIPE
    except OSError as error:
        if error.errno not in _NO_ROOM:
            traceback.print_exc()
            return ExitCode.INTERNAL
        _complain(f"cannot write {error.filename or 'the output'}: {error.strerror}. Make room, or use another disk.")
        return ExitCode.USAGE
    except Exception:
        traceback.print_exc()
        return ExitCode.INTERNAL
    return returned if isinstance(returned, int) else ExitCode.DONE


def _usage_message(error: Exception) -> str:
    format_message = getattr(error, "format_message", None)
    # typer of late lets pydantic judge values, which puts this before what is wrong with them.
    said = (format_message() if callable(format_message) else str(error)).replace("Value error, ", "").rstrip(".")
    context = getattr(error, "ctx", None)
    path = context.command_path if context is not None else "ofpeak"
    return f"{said}{'' if said.endswith('?') else '.'} See '{path} --help'."


def _complain(message: str) -> None:
    sys.stderr.write(f"ofpeak: {clean(message)}\n")
