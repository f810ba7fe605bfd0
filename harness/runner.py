"""From an order to runs: which GPUs, which set, how often. Every event is yielded as it happens. Floor 3."""

import datetime
import queue
import re
import signal
import threading
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from harness import packages
from harness.asking import ask_probe, read_answer
from harness.errors import HarnessError
from harness.journal import Event
from harness.model import Order
from harness.packages import BENCHES
from harness.sets import locked, make_writable, plan_resume, plan_run
from harness.supervisor import ROOT, Stop, supervise

RESULTS = ROOT / "results" / "runs"

_PROBE_TIMEOUT_S = 120
_POLL_S = 0.05
_GRACE_S = 5.0


def execute(
    order: Order,
    runs: int = 1,
    out: Path | None = None,
    resume: Path | None = None,
    benches: Path = BENCHES,
) -> Iterator[Event]:
    """Measure: `runs` fresh processes for each GPU that the order names, or the rest of an unfinished run.

    Yields journal events, and `saved` with the path of each run file; where several GPUs are measured, every event
    says which `gpu` it is about. Raises HarnessError for what the user can fix, `Interrupted` after a signal.
    """
    require_packages(benches)
    stop = Stop()
    if resume is not None:
        with _stopped_by_signals(stop), locked(resume):
            yield from supervise(plan_resume(resume, benches), stop)
        return
    machine = probe_devices(order.device)
    gpus = _gpu_indices(order.gpu, machine["gpus"])
    if order.concurrent > 1:
        order = replace(order, concurrent=len(gpus))
    base = out or default_folder(machine, "_injected" if order.inject else "")
    with _stopped_by_signals(stop):
        if len(gpus) == 1:
            yield from _series(replace(order, gpu=str(gpus[0])), runs, base, benches, stop)
            return
        each = [
            _naming_gpu(gpu, _series(replace(order, gpu=str(gpu)), runs, base / f"gpu{gpu}", benches, stop))
            for gpu in gpus
        ]
        if order.concurrent > 1:
            yield from _all_at_once(each, stop)
            return
        for series in each:
            yield from series


def require_packages(benches: Path = BENCHES) -> None:
    """Raise unless this interpreter can measure; everything that is missing is named at once."""
    problem = packages.no_checkout(benches) or packages.lacking(packages.MEASURING)
    if problem:
        raise HarnessError(problem)


def probe_devices(device: str) -> dict[str, Any]:
    """The machine's GPUs by NVML, asked in a process of its own: names, driver, and why there are none."""
    if device != "auto":
        return {"gpus": [], "driver": None, "reason": f"DEVICE={device}", "device": device}
    return read_answer(ask_probe("devices", _PROBE_TIMEOUT_S), "devices")


def default_folder(machine: Mapping[str, Any], ending: str = "") -> Path:
    """results/runs/<gpu>/<UTC>_driver-<version>, and what the runs are where they are no usual ones."""
    name = machine["gpus"][0] if machine["gpus"] else machine.get("device", "cpu").rpartition(".")[2]
    slug = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-") if name != "auto" else "cpu"
    stamp = datetime.datetime.now(datetime.UTC).strftime("%Y%m%dT%H%M%SZ")
    return RESULTS / slug / f"{stamp}_driver-{machine['driver'] or 'none'}{ending}"


def _gpu_indices(wanted: str, names: Sequence[str]) -> list[int]:
    count = max(1, len(names))
    indices = list(range(count)) if wanted == "all" else list(dict.fromkeys(int(part) for part in wanted.split(",")))
    absent = ", ".join(str(index) for index in indices if index >= count)
    if absent and not names:
        raise HarnessError(f"GPU {absent} is not there: this machine has no GPU to choose. Leave GPUS unset.")
    if absent:
        raise HarnessError(f"GPU {absent} is not there: this machine shows {len(names)}, from 0 to {len(names) - 1}.")
    return indices


def _series(order: Order, runs: int, folder: Path, benches: Path, stop: Stop) -> Generator[Event]:
    make_writable(folder)
    with locked(folder):
        for _ in range(runs):
            yield from supervise(plan_run(order, folder, benches), stop)


def _naming_gpu(gpu: int, series: Generator[Event]) -> Generator[Event]:
    with closing(series):
        for event in series:
            yield {**event, "gpu": gpu}


def _all_at_once(series: Sequence[Iterator[Event]], stop: Stop) -> Iterator[Event]:
    """Several series in parallel, their events in the order in which they come; when one fails, all are stopped."""
    events: queue.Queue[Event | BaseException | None] = queue.Queue()

    def drain(one: Iterator[Event]) -> None:
        try:
            for event in one:
                events.put(event)
        except BaseException as error:
            events.put(error)
        events.put(None)

    threads = [threading.Thread(target=drain, args=(one,), daemon=True) for one in series]
    for thread in threads:
        thread.start()
    running = len(threads)
    try:
        while running:
            stop.check()
            try:
                event = events.get(timeout=_POLL_S)
            except queue.Empty:
                continue
            if event is None:
                running -= 1
            elif isinstance(event, BaseException):
                raise event
            else:
                yield event
    finally:
        stop.set(signal.SIGTERM)
        for thread in threads:
            thread.join(3 * _GRACE_S)


@contextmanager
def _stopped_by_signals(stop: Stop) -> Iterator[None]:
    """SIGINT, SIGTERM and SIGHUP end the runs in order, with everything finished saved.

    A signal that is ignored stays ignored: `nohup make bench` outlives its terminal.
    """
    names = [
        name for name in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP) if signal.getsignal(name) != signal.SIG_IGN
    ]
    previous = {name: signal.signal(name, lambda signum, _: stop.set(signum)) for name in names}
    try:
        yield
    finally:
        for name, handler in previous.items():
            signal.signal(name, handler)
