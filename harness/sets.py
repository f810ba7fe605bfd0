"""A set: a folder with the runs of one card in one environment; what goes into it next, and what may not. Floor 3."""

import fcntl
import json
import re
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness import assembly
from harness.errors import HarnessError
from harness.journal import Event, read_events
from harness.model import Order
from harness.store import UNFINISHED_SUFFIX

_RUN_FILE = re.compile(r"run-(\d+)\.json")
_JOURNAL = re.compile(r"run-(\d+)\.jsonl")
_LOCK = ".lock"


@dataclass(frozen=True)
class Plan:
    """What one run is to do and where its files go."""

    order: Order
    folder: Path
    number: int
    benches: Path
    skip: tuple[str, ...] = ()
    first_worker: int = 0
    last_key: str = ""
    is_resumed: bool = False

    @property
    def stem(self) -> Path:
        """The run's files without their ending: `.json` the run, `.jsonl` its journal, `.log` what workers printed."""
        return self.folder / f"run-{self.number:03d}"

    @property
    def run_file(self) -> Path:
        """Where the run file will be."""
        return self.stem.with_suffix(".json")

    @property
    def journal(self) -> Path:
        """The journal beside it."""
        return self.stem.with_suffix(".jsonl")

    @property
    def log(self) -> Path:
        """What the workers print."""
        return self.stem.with_suffix(".log")


def plan_run(order: Order, folder: Path, benches: Path) -> Plan:
    """The next run of a set: its numbering is continued."""
    numbers = [int(m.group(1)) for p in folder.iterdir() if (m := re.match(r"run-(\d+)\.", p.name))]
    plan = Plan(order, folder, max(numbers, default=0) + 1, benches)
    for facts in _earlier_facts(plan):  # a foreign file is refused before anything starts
        if facts["inject"] != order.inject:
            was, wanted = (
                f"with --inject {' '.join(one)}" if one else "clean" for one in (facts["inject"], order.inject)
            )
            raise HarnessError(
                f"{facts['in']} was measured {was}, this run is to be {wanted}. Name another folder with OUT=."
            )
    return plan


def plan_resume(folder: Path, benches: Path) -> Plan:
    """The rest of the set's last run: what it planned and did not finish, as its journal tells."""
    journals = numbered_journals(folder)
    if not journals:
        raise HarnessError(f"nothing to resume: {folder} holds no journal of a run (run-NNN.jsonl).")
    number = max(journals)
    events = read_events(journals[number])
    if not any(event["event"] == "plan" for event in events):
        # Killed before anything was planned: the order is known, everything is missing.
        return Plan(_order_of(events, journals[number]), folder, number, benches, is_resumed=True)
    run = assembly.run_from_events(events)
    if not run.partial:
        raise HarnessError(f"nothing to resume: {journals[number]} finished all {len(run.records)} cases.")
    finished = tuple(r.key for r in run.records if r.outcome != "not_run")
    return Plan(
        order=run.order,
        folder=folder,
        number=number,
        benches=benches,
        skip=finished,
        first_worker=1 + max((w.number for w in run.workers), default=-1),
        last_key=finished[-1] if finished else "",
        is_resumed=True,
    )


def _order_of(events: Sequence[Event], journal: Path) -> Order:
    order = assembly.order_of(events)
    if order is None:
        raise HarnessError(f"nothing to resume: {journal} does not tell what was ordered. Start the run anew.")
    return order


def numbered_journals(folder: Path) -> dict[int, Path]:
    """The journals of a set by the number of their run."""
    return _numbered(folder, _JOURNAL)


def _numbered(folder: Path, name: re.Pattern[str]) -> dict[int, Path]:
    return {int(match.group(1)): path for path in folder.iterdir() if (match := name.fullmatch(path.name))}


def make_writable(folder: Path) -> None:
    """Make the folder, or raise: better before measuring than after."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder) as file:
            file.write(b"0")  # a full disk makes files and refuses bytes
    except OSError as error:
        raise HarnessError(f"cannot write to {folder}: {error.strerror}. Name another folder with OUT=.") from error


@contextmanager
def locked(folder: Path, is_written: bool = True) -> Iterator[None]:
    """One run at a time in a set: the lock goes with this process, however it ends.

    Where nothing `is_written`, a folder that is read-only or was never locked is taken as it is.
    """
    if not folder.is_dir():
        raise HarnessError(f"there is no set at {folder}. Name a folder that `make bench` wrote.")
    try:
        lock = (folder / _LOCK).open("a+" if is_written else "r")
    except OSError as error:
        if not is_written:
            yield
            return
        raise HarnessError(f"cannot write to {folder}: {error.strerror}. Name another folder with OUT=.") from error
    with lock:
        try:
            fcntl.flock(lock, (fcntl.LOCK_EX if is_written else fcntl.LOCK_SH) | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise HarnessError(
                f"another run is writing into {folder}. Wait for it, or name another folder with OUT=."
            ) from error
        except OSError as error:
            raise HarnessError(
                f"cannot lock {folder}: {error.strerror}. Name a folder on another file system with OUT=."
            ) from error
        if is_written:
            _remove_unfinished(folder)
        yield


def _remove_unfinished(folder: Path) -> None:
    """Remove what a killed run was about to rename; under the lock nobody else writes here."""
    for path in folder.glob(f".run-*.json.*{UNFINISHED_SUFFIX}"):
        with suppress(OSError):
            path.unlink()


def refuse_mixed_set(plan: Plan, event: Event) -> None:
    """Raise if the set already holds a run of another card or environment, or this one began in another.

    A worker that follows another may find a driver that was exchanged in between.
    """
    before = _earlier_facts(plan)
    before.append(next(e for e in read_events(plan.journal) if e["event"] == "plan") | {"in": plan.journal})
    for facts in before:
        differing = differences(facts, event)
        if differing:
            raise HarnessError(
                f"this machine is not what {facts['in']} was measured on: {'; '.join(differing[:6])}. "
                "A set holds one card and one environment: name another folder with OUT=."
            )


def _earlier_facts(plan: Plan) -> list[dict[str, Any]]:
    """What the set's last run but this one was measured on; nothing for the first."""
    earlier = {n: path for n, path in _numbered(plan.folder, _RUN_FILE).items() if n != plan.number}
    return [_facts_of_run_file(earlier[max(earlier)])] if earlier else []


def _facts_of_run_file(path: Path) -> dict[str, Any]:
    """The part of a run file that tells what it was measured on, and where that stands."""
    try:
        document = json.loads(path.read_text())
        facts = {
            "device": document["device"],
            "environment": document["environment"],
            "inject": tuple(document["order"].get("inject", ())),
            "in": path,
        }
        differences(facts, facts)
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise HarnessError(f"{path} is not a run file of this suite. Name another folder with OUT=.") from error
    return facts


def differences(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """Facts that must match and do not, as `name old -> new`; both are plain run files or plan events."""
    found = []
    if before["device"]["name"] != now["device"]["name"]:
        found.append(f"device {before['device']['name']} -> {now['device']['name']}")
    old, new = before["environment"], now["environment"]
    for name in sorted(old.keys() | new.keys()):
        facts = old.get(name, {}), new.get(name, {})
        if any(fact.get("role", "match") != "match" for fact in facts):
            continue
        if facts[0].get("value") != facts[1].get("value"):
            found.append(f"{name} {facts[0].get('value')} -> {facts[1].get('value')}")
    return found
