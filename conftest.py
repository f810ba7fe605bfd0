"""pytest glue: families under benches/ become tests, one a case; records go to the journal and to pytest-benchmark.

`pytest benches --profile quick --only 'gemm*'` works by itself; `ofpeak run` drives the same through a task file.
"""

import traceback
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from harness.errors import ExitCode, HarnessError
from harness.injection import read_injection
from harness.journal import JournalError
from harness.model import PROFILES, SOAK, Case, DeviceFacts, Order, Record
from harness.probe import worker
from harness.probe.measure import Reference, Subject
from harness.probe.ranges import named_range

ROOT = Path(__file__).parent
SESSION = pytest.StashKey[worker.WorkerSession]()
RECORD = pytest.StashKey[Record]()
COLLECT_ERRORS = pytest.StashKey[list[str]]()


class DeviceClock:
    """pytest-benchmark's timer while samples are replayed: it stands where the last replayed sample ended."""

    __name__ = "device"

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        """Seconds on the replayed clock."""
        return self.now


CLOCK = DeviceClock()


def pytest_addoption(parser: pytest.Parser) -> None:
    """The run's options; a supervisor's task file overrides them."""
    group = parser.getgroup("ofpeak")
    group.addoption("--profile", choices=(*PROFILES, SOAK), default="smoke", help="which cases (default: smoke)")
    group.addoption("--only", action="append", default=[], metavar="GLOB", help="families or keys to measure")
    group.addoption("--device", default="auto", help="auto, cpu, or the dotted path of a scripted device")
    group.addoption("--inject", action="append", default=[], metavar="GLOB=PERCENT", help="a slowdown on purpose")
    group.addoption("--ofpeak-task", default="", metavar="FILE", help="what a supervisor asks of this worker")


def pytest_configure(config: pytest.Config) -> None:
    """A supervised worker dies with its supervisor, from its first moment on."""
    task = worker.read_task(config.getoption("--ofpeak-task"))
    if task.parent:
        worker.die_with_parent(task.parent)


def _session_of(config: pytest.Config) -> worker.WorkerSession:
    """The worker's session, made when the first family is collected: tests of the suite never make one."""
    if SESSION not in config.stash:
        task = worker.read_task(config.getoption("--ofpeak-task"))
        if not task.journal:
            wanted = tuple(config.getoption("--only"))
            inject = tuple(config.getoption("--inject"))
            order = Order(config.getoption("--profile"), wanted, config.getoption("--device"), inject=inject)
            task = replace(task, order=order)
        try:
            for text in task.order.inject:
                read_injection(text)
            config.stash[SESSION] = worker.open_session(task, _torch_checker)
        except HarnessError as error:
            pytest.exit(str(error), returncode=int(error.exit_code))
        if config.stash[SESSION].facts.triton == "interpreted":
            from kernels import interpreter

            interpreter.enable()
    return config.stash[SESSION]


def _torch_checker() -> Any:
    from kernels.checker import TorchChecker

    return TorchChecker()


def pytest_collect_file(file_path: Path, parent: pytest.Collector) -> None:
    """Choose the device before a family is imported: without a GPU its kernels must be made for the interpreter."""
    if file_path.name.startswith("bench_"):
        _session_of(parent.config)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """One test a case of the family."""
    if "measure" not in metafunc.fixturenames or "case" not in metafunc.fixturenames:
        return
    session = _session_of(metafunc.config)
    family = Path(metafunc.module.__file__).stem.removeprefix("bench_")
    profile = session.task.order.profile
    is_part = profile != SOAK or getattr(metafunc.module, "SOAK", False)
    declared = metafunc.module.cases(profile, session.facts) if is_part else ()
    try:
        is_last, is_asked_for = (getattr(metafunc.module, name, False) for name in ("LAST", "ASKED"))
        cases = session.plan(family, declared, is_last, is_asked_for)
    except worker.DuplicateKeyError as error:
        raise pytest.UsageError(str(error)) from error
    metafunc.parametrize("case", cases, ids=[case.key for case in cases])


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put the families that say `LAST` behind the others, and give every case the replayed clock.

    The closest marker wins and markers do not merge, so they are merged here.
    """
    items.sort(key=lambda item: getattr(getattr(item, "module", None), "LAST", False))
    for item in items:
        if "measure" in getattr(item, "fixturenames", ()):
            merged: dict[str, Any] = {}
            for marker in reversed(list(item.iter_markers("benchmark"))):
                merged.update(marker.kwargs)
            item.add_marker(pytest.mark.benchmark(**{**merged, "timer": CLOCK}), append=False)


def pytest_collection_finish(session: pytest.Session) -> None:
    """Everything is planned: tell the supervisor before anything runs."""
    worker_session = session.config.stash.get(SESSION, None)
    if worker_session is None or session.config.option.collectonly:
        return
    if session.testsfailed:
        # Half a plan would look like a whole one.
        problems = "; ".join(session.config.stash.get(COLLECT_ERRORS, ["see the log"]))
        worker_session.refuse(f"a family cannot be collected: {problems}")
        return
    aimless = worker_session.aimless_injection()
    if aimless:
        message = f"--inject {aimless} names no case of this run. Name a family or a key that it measures."
        worker_session.refuse(message)
        pytest.exit(message, returncode=int(ExitCode.USAGE))
    with _leaving_without_room():
        worker_session.announce()


@contextmanager
def _leaving_without_room() -> Iterator[None]:
    """A worker that cannot keep what it measures measures nothing more, and its supervisor is told by the status."""
    try:
        yield
    except JournalError as error:
        pytest.exit(str(error), returncode=JournalError.WORKER_STATUS)


@pytest.fixture
def device(request: pytest.FixtureRequest) -> DeviceFacts:
    """What a family needs to know of the device."""
    return request.config.stash[SESSION].facts


@pytest.fixture
def resident_loop() -> Callable[..., Any]:
    """The tensor pipe's resident loop, for the family that measures it as a case: see harness.probe.pipe."""
    from harness.probe.pipe import ResidentLoop

    return ResidentLoop


@pytest.fixture
def measure(request: pytest.FixtureRequest, case: Case, benchmark: Any) -> Callable[..., Record]:
    """`measure(launch, inputs=..., outputs=..., reference=...)`: see harness.probe.measure.Subject."""
    session = request.config.stash[SESSION]
    if case.not_applicable:
        pytest.skip(case.not_applicable)
    session.begin(case)

    def run(
        launch: Callable[..., object] | str,
        inputs: Sequence[object] = (),
        outputs: Sequence[object] = (),
        reference: Reference | None = None,
        **how: Any,
    ) -> Record:
        if isinstance(launch, str):
            try:
                record = session.measure_on_ranks(case, launch, how)
            except worker.NotApplicableError as refusal:
                pytest.skip(str(refusal))
        else:
            assert reference is not None, "a case without a reference is not timed"
            with named_range(case.key, session.facts.kind == "cuda"):
                record = session.measure(case, Subject(launch, inputs, outputs, reference, **how))
        request.node.stash[RECORD] = record
        _replay(record, benchmark)
        return record

    return run


def _replay(record: Record, benchmark: Any) -> None:
    """Hand the samples to pytest-benchmark through its public timer and `pedantic`, so that its options work."""
    if record.samples is None or not benchmark.enabled:
        return
    samples = iter(record.samples.seconds)

    def replay_one() -> None:
        CLOCK.now += next(samples)

    # The clock restarts at zero for every sample: summing would cost the sixteenth digit.
    benchmark.pedantic(replay_one, setup=lambda: setattr(CLOCK, "now", 0.0), rounds=len(record.samples.seconds))
    benchmark.extra_info["outcome"] = record.outcome


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(
    collector: pytest.Collector,
) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    """Keep why a family could not be collected, for the supervisor."""
    report = yield
    if report.failed:
        lines = [line[2:].strip() for line in str(report.longrepr).splitlines() if line.startswith("E ")]
        problem = lines[-1] if lines else " ".join(str(report.longrepr).split())
        collector.config.stash.setdefault(COLLECT_ERRORS, []).append(f"{report.nodeid}: {problem}")
    return report


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Turn what pytest saw of a case into a record in the journal."""
    report = yield
    case = getattr(item, "callspec", None) and item.callspec.params.get("case")  # type: ignore[attr-defined]
    if not isinstance(case, Case) or SESSION not in item.config.stash or report.when == "teardown":
        return report
    session = item.config.stash[SESSION]
    if report.when == "call" or not report.passed:
        with _leaving_without_room():
            session.finish(_record_of(session, case, item, call, report))
        if report.failed:
            _leave_if_lost(session, case, call)
        session.device.release()
    return report


def _leave_if_lost(session: worker.WorkerSession, case: Case, call: pytest.CallInfo[None]) -> None:
    """Drop what a failed case held; where the device is lost with it, every further call of it would raise."""
    if call.excinfo is not None:
        traceback.clear_frames(call.excinfo.tb)  # frames hold tensors, and the next case needs the memory
    if not session.device.is_usable():
        pytest.exit(f"the device does not answer any more after {case.key}", returncode=3)


def _record_of(
    session: worker.WorkerSession,
    case: Case,
    item: pytest.Item,
    call: pytest.CallInfo[None],
    report: pytest.TestReport,
) -> Record:
    if report.skipped:
        return session.not_applicable(case, _reason_of_skip(report))
    if report.failed and call.excinfo is not None:
        return session.failed(case, call.excinfo.value)
    return item.stash.get(RECORD, None) or session.failed(case, "the benchmark returned without calling measure()")


def _reason_of_skip(report: pytest.TestReport) -> str:
    text = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
    return text.removeprefix("Skipped: ")


def pytest_unconfigure(config: pytest.Config) -> None:
    """End the ranks and close the journal."""
    if SESSION in config.stash:
        config.stash[SESSION].close()


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Families are collected only when they are named, on the command line or by a supervisor."""
    named: Iterable[str] = config.invocation_params.args
    if collection_path.name.startswith("bench_") and not any("bench" in str(argument) for argument in named):
        return True
    return None
