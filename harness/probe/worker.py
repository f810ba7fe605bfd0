"""One worker process of a run: it plans the cases, measures them one by one, and journals what came of each.

pytest drives it (conftest.py); it knows nothing of pytest.
"""

import datetime
import json
import os
import time
import traceback
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from fractions import Fraction
from pathlib import Path
from typing import Any

from harness.cautions import card_changed, warnings_of
from harness.errors import ExitCode, HarnessError
from harness.injection import read_injection
from harness.journal import Journal
from harness.metrics import derive_metrics
from harness.model import PROFILES, SOAK, Case, DeviceFacts, Order, Record, Telemetry, from_plain, is_wanted, to_plain
from harness.nccl_settings import has_own_world, refusal_of, set_outside, settings_of, words_of
from harness.probe.card_watch import PATIENCE_MS, Cards
from harness.probe.load import Checker, Device
from harness.probe.measure import CheckFailedError, Measurement, Protocol, Subject, measure_case, protocol_for
from harness.probe.meeting import Meeting
from harness.probe.party import join, with_network
from harness.probe.protocols import PeerProtocols
from harness.probe.ranks import ANSWER_LIMIT_S, START_LIMIT_S, RankError, World, measure_on_ranks
from harness.probe.scripted import device_by_path
from harness.probe.witness import TELLING, Witness
from harness.specs import lookup
from harness.torchrun import place_of

# What a case may take beside its window: compiling kernels, filling and checking buffers, a slow first import.
_ALLOWANCE_S = 90.0
_LIMIT_FACTOR = 3.0
# The ruler holds the timer's rate against the host's for five seconds.
_STAY_COLD_S = 6.0


@dataclass(frozen=True)
class Task:
    """What the supervisor tells a worker, as a JSON file."""

    order: Order = field(default_factory=Order)
    worker: int = 0
    journal: str = ""
    skip: tuple[str, ...] = ()
    last_key: str = ""
    parent: int = 0


def read_task(path: str) -> Task:
    """The task in that file; a default one (everything, no journal) for an empty path."""
    return from_plain(Task, json.loads(Path(path).read_text())) if path else Task()


class DuplicateKeyError(Exception):
    """Two cases of a plan have the same key: neither could be told from the other in a run file."""


class NotApplicableError(Exception):
    """What only the attempt tells: this machine's libraries refuse the case. The text says so in their words."""


class WorkerSession:
    """The device, the plan, and the journal of one worker."""

    def __init__(
        self,
        task: Task,
        device: Device,
        checker: Checker,
        environment: Mapping[str, Any],
        meeting: Meeting | None = None,
    ) -> None:
        self.task = task
        self.device = device
        self.checker = checker
        self.sheet = with_network(lookup(device.facts), device.facts.party)
        self.planned: dict[str, tuple[str, Case]] = {}
        self._last: set[str] = set()
        self._environment = environment
        self._journal = Journal(Path(task.journal)) if task.journal else None
        self._predecessor = task.last_key
        self._started_s = 0.0
        self._started_at = ""
        self._is_warm = False
        self._world: tuple[str, World] | None = None
        self._refused: dict[str, str] = {}
        self._meeting = meeting
        self._witness = Witness(meeting)
        self._peers = PeerProtocols()
        self._cards: Cards | None = device.watch_cards() if hasattr(device, "watch_cards") else None
        if self._cards is not None:
            self._environment = {**environment, **self._cards.facts()}

    @property
    def facts(self) -> DeviceFacts:
        """What the families see of the device."""
        return self.device.facts

    def protocol(self, case: Case) -> Protocol:
        """How long this profile loads a case."""
        return protocol_for(case, self.task.order.profile, self.facts.kind == "cpu")

    def plan(self, family: str, cases: Iterable[Case], is_last: bool = False, is_asked_for: bool = False) -> list[Case]:
        """The cases of a family that this run is to measure, with what the device cannot do marked in them.

        A family that `is_last` comes behind all others: it leaves the card to rest, and they want it warm, or it leaves
        something in the process that they must not find. One that wants to be `is_asked_for` is left out unless the
        order names it, or parameters of its keys. Under torchrun a case of one GPU is measured only where it was asked
        for: the other GPUs would wait for nothing.
        """
        chosen = []
        if is_last:
            self._last.add(family)
        for declared in self._share_time(list(cases)):
            case = self._regime(self._fits(declared))
            if not is_wanted(family, case.key, self.task.order.only):
                continue
            if self.facts.party is not None and "ranks" not in case.params and not self.task.order.only:
                continue
            if is_asked_for and not is_asked(family, case.key, self.task.order.only):
                continue
            if case.key in self.planned:
                raise DuplicateKeyError(
                    f"two cases have the key {case.key!r} (families {family} and {self.planned[case.key][0]})"
                )
            self.planned[case.key] = (family, case)
            if case.key not in self.task.skip:
                chosen.append(case)
        return chosen

    def announce(self) -> None:
        """Journal the plan: from here on everyone knows N of N."""
        in_order = sorted(self.planned.items(), key=lambda entry: entry[1][0] in self._last)
        self._write(
            "plan",
            worker=self.task.worker,
            started_at=now(),
            device=to_plain(self.facts),
            sheet=to_plain(self.sheet),
            environment=to_plain(self._environment),
            site_key=str(self._environment["site_key"].value) if "site_key" in self._environment else "",
            cases=[{"family": f, "key": k, "case": to_plain(c)} for k, (f, c) in in_order],
        )

    def begin(self, case: Case) -> None:
        """Journal that a case starts; the supervisor's watchdog counts from here."""
        self._warm_up(self.protocol(case))
        if self._cards is not None:
            self._cards.begin(gpus_at_work(case))
        self._started_s, self._started_at = time.monotonic(), now()
        protocol = self.protocol(case)
        limit_s = _LIMIT_FACTOR * (protocol.settle_cap_s + protocol.window_s) + self._allowance_s
        if case.is_soak:
            limit_s = protocol.rest_s + self._allowance_s  # until it tells for the first time how far it has come
        if "ranks" in case.params:
            # Ranks have limits of their own, which end sooner and tell more: two worlds start, one answer fails.
            limit_s += 2 * START_LIMIT_S + ANSWER_LIMIT_S
        self._write("started", worker=self.task.worker, key=case.key, limit_s=limit_s)

    @property
    def _allowance_s(self) -> float:
        return float(getattr(self.device, "allowance_s", _ALLOWANCE_S))  # a scripted device needs less

    def measure(self, case: Case, subject: Subject) -> Record:
        """Measure a case on this worker's device. Raises what goes wrong; `fail` records it."""
        device = self.device.among(subject.gpus) if subject.gpus else self.device

        def tell(elapsed_s: float, load_s: float, telemetry: Telemetry) -> None:
            self._mention_soak(case, elapsed_s, load_s, telemetry)

        how = (self.protocol(case), self.injected(case), self._peers, tell)
        return self.record(case, measure_case(case, subject, device, self.checker, *how))

    def _mention_soak(self, case: Case, elapsed_s: float, load_s: float, telemetry: Telemetry) -> None:
        """How far a soak has come; the supervisor's watchdog counts anew from here."""
        if self._journal is not None:
            self._journal.mention(
                "soaking",
                worker=self.task.worker,
                key=case.key,
                elapsed_s=round(elapsed_s, 1),
                load_s=load_s,
                power_w=telemetry.power_w,
                temperature_c=telemetry.temperature_end_c,
                limit_s=self._allowance_s,
            )

    def measure_on_ranks(self, case: Case, body: str, how: Mapping[str, Any]) -> Record:
        """Measure a case on one rank a GPU. A world that failed is closed; the next case gets a new one.

        A setting that NCCL refuses is not tried again with another size.
        """
        setting = words_of(settings_of(case)) if has_own_world(case) else ""
        name = f"{self.planned[case.key][0]}/{case.params['ranks']}/{setting}"
        if name in self._refused:
            raise NotApplicableError(self._refused[name])
        try:
            world, injected = self._world_of(name, case), self.injected(case)
            measurement = measure_on_ranks(case, world, body, how, self.protocol(case), injected)
            if measurement.telemetry is not None:
                own = world if has_own_world(case) else None
                telemetry = self._witness.complete(case, measurement.telemetry, body, how, own)
                measurement = replace(measurement, telemetry=telemetry)
            return self.record(case, measurement)
        except RankError as error:
            self._close_world()
            if has_own_world(case) and (refusal := refusal_of(str(error))):
                self._refused[name] = f"NCCL refuses {setting}: {refusal}"
                raise NotApplicableError(self._refused[name]) from error
            raise

    def _world_of(self, name: str, case: Case) -> World:
        """The ranks of that name: those that run already, or new ones."""
        if self._world is None or self._world[0] != name:
            self._close_world()
            variables = {**TELLING, **settings_of(case)} if has_own_world(case) else None
            self._world = (name, World(int(case.params["ranks"]), self.facts.kind, variables, meeting=self._meeting))
        return self._world[1]

    def injected(self, case: Case) -> Fraction:
        """The share of work that the order adds to a case without counting it; of several, the last that names it."""
        family = self.planned[case.key][0] if case.key in self.planned else case.op
        asked = [read_injection(text) for text in self.task.order.inject]
        return next((one.extra for one in reversed(asked) if is_wanted(family, case.key, [one.pattern])), Fraction(0))

    def aimless_injection(self) -> str:
        """The first injection that names no case of the plan; empty where each names one."""
        for text in self.task.order.inject:
            pattern = read_injection(text).pattern
            if not any(is_wanted(family, key, [pattern]) for key, (family, _) in self.planned.items()):
                return text
        return ""

    def record(self, case: Case, measurement: Measurement) -> Record:
        """A measurement with its metrics and warnings, not yet journalled."""
        record = self._new_record(case, "checked", case.checked_only)
        record = replace(record, checks=measurement.checks)
        changes = self._cards.end() if self._cards is not None else ()
        if measurement.samples is None or measurement.telemetry is None:
            return replace(record, warnings=card_changed(changes))
        telemetry = replace(measurement.telemetry, changes=all_changes(measurement.telemetry.changes, changes))
        derived = derive_metrics(case, measurement.samples, telemetry, self.sheet, self.facts)
        metrics = (*measurement.figures, *derived)
        warnings = (
            *injection_warning(self.injected(case)),
            *warnings_of(case, measurement.samples, telemetry, self.sheet, metrics),
        )
        return replace(
            record,
            outcome="measured",
            samples=measurement.samples,
            telemetry=telemetry,
            metrics=(*metrics, *measurement.metrics),
            warnings=warnings,
        )

    def not_applicable(self, case: Case, reason: str) -> Record:
        """What this machine cannot do."""
        return self._new_record(case, "not_applicable", case.not_applicable or reason)

    def failed(self, case: Case, error: BaseException | str) -> Record:
        """A case that went wrong; the reason is one line, and tells what happened to the card meanwhile."""
        changes = self._cards.end(PATIENCE_MS) if self._cards is not None else ()
        reason = "; ".join((error if isinstance(error, str) else one_line(error), *changes))
        return replace(self._new_record(case, "failed", reason), checks=getattr(error, "checks", ()))

    def finish(self, record: Record) -> None:
        """Journal a record; it is on disk when this returns."""
        self._predecessor = record.key
        self._started_s, self._started_at = 0.0, ""
        self._write("finished", worker=self.task.worker, record=to_plain(record))

    def refuse(self, message: str, exit_code: ExitCode = ExitCode.USAGE) -> None:
        """Journal why this worker measures nothing."""
        self._write("refused", worker=self.task.worker, message=message, exit_code=int(exit_code))

    def close(self) -> None:
        """End the ranks, close the journal."""
        self._close_world()
        self._witness.close()
        if self._cards is not None:
            self._cards.close()
        if self._journal is not None:
            self._journal.close()

    def _close_world(self) -> None:
        if self._world is not None:
            self._world[1].close()
            self._world = None

    def _new_record(self, case: Case, outcome: Any, reason: str) -> Record:
        return Record(
            key=case.key,
            family=self.planned[case.key][0] if case.key in self.planned else case.op,
            case=case,
            outcome=outcome,
            reason=reason,
            worker=self.task.worker,
            predecessor=self._predecessor,
            started_at=self._started_at,
            wall_s=round(time.monotonic() - self._started_s, 3) if self._started_s else None,
        )

    def _warm_up(self, protocol: Protocol) -> None:
        """Once a worker, before its first case: rest, ruler, and load until the temperature stands still."""
        if self._is_warm:
            return
        self._is_warm = True
        if protocol.preheat_cap_s == 0 and not protocol.is_cold:
            ruler = getattr(self.device, "host_ruler", None)
            if ruler is not None:
                self._write("warmed", worker=self.task.worker, preheat={}, idle={}, ruler=to_plain(ruler()))
            return
        preheat = getattr(self.device, "preheat", None)
        if preheat is None:
            return
        self._write("warming", worker=self.task.worker, limit_s=protocol.preheat_cap_s + _ALLOWANCE_S)
        idle = self.device.end_rest() if hasattr(self.device, "end_rest") else {}
        check = self.device.ruler(self.sheet.flop_per_clock_per_sm) if hasattr(self.device, "ruler") else None
        warmed = self._stay_cold() if protocol.is_cold else preheat(protocol.preheat_cap_s)
        ruler = None if check is None else to_plain(check.conclude())
        self._write("warmed", worker=self.task.worker, preheat=warmed, idle=idle, ruler=ruler)

    def _stay_cold(self) -> dict[str, float | bool | str | None]:
        stay = getattr(self.device, "stay_cold", None)
        return {} if stay is None else dict(stay(_STAY_COLD_S))

    def _share_time(self, cases: list[Case]) -> list[Case]:
        """The minutes that the order gives a soak, in equal shares, in place of those that its family declares."""
        if self.task.order.minutes is None:
            return cases
        share_s = round(60 * self.task.order.minutes / max(1, len(cases)), 3)
        word = int(share_s) if share_s.is_integer() else str(share_s)
        return [replace(case, params={**case.params, "seconds": word}) if case.is_soak else case for case in cases]

    def _fits(self, case: Case) -> Case:
        facts = self.facts
        at_work = "all GPUs are its ranks" if "ranks" in case.params else "it works on pairs of GPUs"
        if ("ranks" in case.params or "from" in case.params) and not case.not_applicable:
            if self.task.order.concurrent > 1:
                return replace(case, not_applicable="every GPU is busy with a run of its own")
            if self.task.order.gpu != "0":
                return replace(case, not_applicable=f"{at_work}: it is in the run of GPU 0")
            if has_own_world(case) and (outside := set_outside(case, os.environ)):
                return replace(
                    case, not_applicable=f"{outside} is set in the environment: unset it to compare with the default"
                )
        if case.not_applicable or facts.memory_bytes is None or facts.free_bytes is None:
            return case
        needed, gib = case.memory_bytes, 2**30
        if needed > facts.memory_bytes:
            return replace(
                case,
                not_applicable=f"needs {needed / gib:.1f} GiB of memory, the device has "
                f"{facts.memory_bytes / gib:.1f} GiB",
            )
        if needed > facts.free_bytes:
            return replace(
                case,
                not_applicable=f"needs {needed / gib:.1f} GiB of memory, {facts.free_bytes / gib:.1f} "
                f"of {facts.memory_bytes / gib:.1f} GiB are free: another process holds the rest",
            )
        return case

    def _regime(self, case: Case) -> Case:
        """Put into the key what the operator declared and what runs at the same time: both change the answer."""
        order = self.task.order
        extra: dict[str, str | int] = {}
        if order.declare:
            name, _, value = order.declare.partition("=")
            extra[name] = value.replace(":", "-")
        if order.concurrent > 1:
            extra["concurrent"] = order.concurrent
        return replace(case, params={**case.params, **extra}) if extra else case

    def _write(self, event: str, **content: Any) -> None:
        if self._journal is not None:
            self._journal.write(event, **content)


def open_session(task: Task, torch_checker: Callable[[], Checker]) -> WorkerSession:
    """The session on the device that the task names; a refusal is journalled before it is raised."""
    try:
        device, environment = _open_device(task.order)
        checker = getattr(device, "checker", None) or torch_checker()
        meeting = None
        if (place := place_of(os.environ)) is not None:
            joined = join(place, device.facts, environment, START_LIMIT_S)
            device.facts = replace(device.facts, party=joined.party)
            meeting, environment = joined.meeting, {**environment, **joined.environment}
        return WorkerSession(task, device, checker, environment, meeting)
    except HarnessError as error:
        if task.journal:
            journal = Journal(Path(task.journal))
            journal.write("refused", worker=task.worker, message=str(error), exit_code=int(error.exit_code))
            journal.close()
        raise


def _open_device(order: Order) -> tuple[Device, Mapping[str, Any]]:
    own = device_by_path(order.device) if "." in order.device else None
    if own is not None and hasattr(own, "environment"):
        return own, own.environment()  # without torch, whose import takes longer than a scripted run

    from harness.probe.device import discover, environment_of

    device = own or discover(order.device, int(order.gpu))
    environment = environment_of(device)
    if order.profile != "smoke" and hasattr(device, "begin_rest"):
        device.begin_rest()  # smoke never ends it, and would be watched through all of its cases
    return device, environment


def injection_warning(injected: Fraction) -> tuple[str, ...]:
    """What stands with every figure of a case that was slowed down on purpose."""
    if not injected:
        return ()
    share = f"{float(100 * injected):g} %"
    return (f"injected: {share} more was done than is counted, as --inject asked. It is no figure of this device.",)


def gpus_at_work(case: Case) -> Collection[int]:
    """The GPUs of a case on several, as CUDA numbers them; none named for what runs on the worker's own alone."""
    if "ranks" in case.params:
        return range(int(case.params["ranks"]))
    return {int(case.params[end]) for end in ("from", "to") if end in case.params}


def all_changes(in_window: Sequence[str], around: Sequence[str]) -> tuple[str, ...]:
    """What the window's edges tell, and what else happened around it; a count in both is that of the window."""
    told = {change.lstrip("0123456789") for change in in_window}
    return (*in_window, *(change for change in around if change.lstrip("0123456789") not in told))


def is_asked(family: str, key: str, only: Sequence[str]) -> bool:
    """Whether a pattern names the family, or the key by a parameter or an op of its own: `gemm*` asks for no more."""
    named = [p for p in only if fnmatchcase(family, p) or "=" in p]
    return bool(named) and is_wanted(family, key, named)


def now() -> str:
    """The time as run files write it: UTC, to the second."""
    return datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def one_line(error: BaseException) -> str:
    """An exception as one line that says what happened and where; findings of the suite itself speak alone."""
    text = " ".join(str(error).split())
    if isinstance(error, CheckFailedError | RankError):
        return text
    frames = traceback.extract_tb(error.__traceback__)
    where = f" ({Path(frames[-1].filename).name}:{frames[-1].lineno})" if frames else ""
    name = type(error).__name__
    return f"{name}: {text[:300]}{where}" if text else f"{name}{where}"


def known_profile(profile: str) -> bool:
    """Whether the suite has a profile of that name."""
    return profile in (*PROFILES, SOAK)


def die_with_parent(parent: int) -> None:
    """Ask the kernel to kill this process when the supervisor dies, however it dies (Linux)."""
    import ctypes
    import signal

    pr_set_pdeathsig = 1
    ctypes.CDLL(None, use_errno=True).prctl(pr_set_pdeathsig, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)
