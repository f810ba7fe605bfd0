"""The run that a journal tells: events in, a `Run` out, also from a journal that a crash cut short. Floor 3.

It needs no pydantic, so that a GPU node can print what it has just measured.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from harness.errors import ExitCode, HarnessError
from harness.journal import Event
from harness.model import Case, DeviceFacts, Fact, Order, PeakSheet, Record, Ruler, Run, Worker, from_plain
from harness.store import SCHEMA_VERSION, SUITE_NAME


def run_from_events(events: Iterable[Event]) -> Run:
    """The run that a journal tells, also of one that a crash cut short; cases without an end become `not_run`."""
    story = _Story()
    try:
        for event in events:
            story.add(event)
        return _run_of(story)
    except (KeyError, TypeError, AttributeError, ValueError, IndexError, OverflowError) as error:
        told = " ".join(repr(error).split())[:200]
        raise HarnessError(f"the journal is damaged or of another version of {SUITE_NAME}: {told}") from error


def order_of(events: Iterable[Event]) -> Order | None:
    """What the journal says was ordered, also where nothing was planned; `None` where it does not say."""
    try:
        return next((from_plain(Order, event["order"]) for event in events if event["event"] == "order"), None)
    except (KeyError, TypeError, AttributeError):
        return None


@dataclass
class _Story:
    """A journal's events, sorted by what they tell; kinds that a later version adds are passed over."""

    order: Event | None = None
    plans: list[Event] = field(default_factory=list)
    warmed: dict[int, Event] = field(default_factory=dict)
    started: dict[str, int] = field(default_factory=dict)
    finished: dict[str, Record] = field(default_factory=dict)
    ended: dict[int, str] = field(default_factory=dict)
    soaking: dict[str, Event] = field(default_factory=dict)
    interrupted: str | None = None

    def add(self, event: Event) -> None:
        """Take in one event; of two ends of one case the later counts."""
        match event["event"]:
            case "order":
                self.order = self.order or event
            case "plan":
                self.plans.append(event)
            case "warmed":
                self.warmed[event["worker"]] = event
            case "started":
                self.started[event["key"]] = event["worker"]
                self.soaking.pop(event["key"], None)  # a resumed run begins it anew
            case "soaking":
                self.soaking[event["key"]] = event
            case "finished":
                record = from_plain(Record, event["record"])
                self.finished.pop(record.key, None)
                self.finished[record.key] = record
            case "ended":
                self.ended[event["worker"]] = event["how"]
            case "discarded":
                # What a worker measured until it was found to be on another driver or card.
                self.finished = {k: r for k, r in self.finished.items() if r.worker != event["worker"]}
            case "interrupted":
                self.interrupted = event["reason"]
            case "resumed":
                self.interrupted = None


def _run_of(story: _Story) -> Run:
    if story.order is None:
        raise HarnessError("the journal holds no order: nothing was started.", ExitCode.INCONCLUSIVE)
    if not story.plans:
        ends = ", ".join(f"worker {n}: {how}" for n, how in story.ended.items()) or story.interrupted or "no end told"
        raise HarnessError(f"the journal holds no plan, so nothing was measured ({ends}).", ExitCode.INCONCLUSIVE)
    first = story.plans[0]
    device = from_plain(DeviceFacts, first["device"])
    _refuse_other_devices(story.plans, device)
    _refuse_unplanned(story)
    records = (*story.finished.values(), *_not_run(story))
    return Run(
        run_id=story.order["run_id"],
        created_at=story.order["created_at"],
        schema_version=SCHEMA_VERSION,
        suite_version=story.order["suite_version"],
        order=from_plain(Order, story.order["order"]),
        device=device,
        sheet=from_plain(PeakSheet, first["sheet"]),
        environment={name: from_plain(Fact, fact) for name, fact in first["environment"].items()},
        workers=_workers(story),
        records=records,
        partial=_why_partial(story, records),
        site_key=first["site_key"],
        source_hash=story.order["source_hash"],
    )


def _refuse_other_devices(plans: Sequence[Event], device: DeviceFacts) -> None:
    for plan in plans:
        name = plan["device"]["name"]
        if name != device.name:
            raise HarnessError(
                f"worker {plan['worker']} found '{name}', the run began on '{device.name}'. A run is of one device."
            )


def _refuse_unplanned(story: _Story) -> None:
    planned = {entry["key"] for plan in story.plans for entry in plan["cases"]}
    unplanned = next((key for key, record in story.finished.items() if {key, record.case.key} - planned), None)
    if unplanned is not None:
        raise ValueError(f"it tells the end of '{unplanned}', which was never planned")


def _workers(story: _Story) -> tuple[Worker, ...]:
    started_at = {plan["worker"]: plan["started_at"] for plan in story.plans}
    numbers = sorted({*started_at, *story.warmed, *story.ended})
    return tuple(_worker(n, started_at.get(n, ""), story.ended.get(n, ""), story.warmed.get(n, {})) for n in numbers)


def _worker(number: int, started_at: str, ended: str, warmed: Mapping[str, Any]) -> Worker:
    ruler = warmed.get("ruler")
    return Worker(
        number,
        started_at,
        ended,
        preheat=warmed.get("preheat", {}),
        idle=warmed.get("idle", {}),
        ruler=None if ruler is None else from_plain(Ruler, ruler),
    )


def _not_run(story: _Story) -> list[Record]:
    """A record for every planned case that never finished, in the order of the plan."""
    planned: dict[str, tuple[Event, int]] = {
        entry["key"]: (entry, plan["worker"]) for plan in story.plans for entry in plan["cases"]
    }
    return [
        Record(
            key=key,
            family=entry["family"],
            case=from_plain(Case, entry["case"]),
            outcome="not_run",
            reason=_why_not_run(story, key, worker),
            worker=story.started.get(key, worker),
        )
        for key, (entry, worker) in planned.items()
        if key not in story.finished
    ]


def _why_not_run(story: _Story, key: str, worker: int) -> str:
    come = f", {said_of_soak(story.soaking[key])}" if key in story.soaking else ""
    if key in story.started and story.interrupted is not None:
        return f"interrupted while it was measured: {story.interrupted}{come}"
    if key in story.started:
        worker = story.started[key]
        return f"worker {worker} ended ({story.ended.get(worker) or 'no end told'}) while it was measured{come}"
    if story.interrupted is not None:
        return f"interrupted: {story.interrupted}"
    return f"worker {worker} ended ({story.ended.get(worker) or 'no end told'}) before it was reached"


def said_of_soak(event: Event) -> str:
    """How far a soak had come, and what the card drew and how warm it was by then."""
    known = {"W": event.get("power_w"), "°C": event.get("temperature_c")}
    said = [f"{value:.0f} {unit}" for unit, value in known.items() if value is not None]
    return ", ".join([f"{event['elapsed_s']:.0f} of {event['load_s']:.0f} s into its load", *said])


def _why_partial(story: _Story, records: Sequence[Record]) -> str:
    """One sentence where a run lacks cases or was interrupted; empty for a whole run."""
    lacking = [record for record in records if record.outcome == "not_run"]
    if lacking:
        return f"{len(lacking)} of {len(records)} cases were not run; the first: {lacking[0].reason}"
    return "" if story.interrupted is None else f"interrupted: {story.interrupted}"
