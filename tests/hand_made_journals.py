"""Journals made by hand: of a run of three copies, whole or as far as a kill let it come."""

import json
from dataclasses import replace
from pathlib import Path

from harness import __version__
from harness.journal import Event
from harness.model import Order, Record, Run, Samples, to_plain
from tests.hand_made import GPU, SHEET, copy_record, gpu_run

BYTES = (1024, 2048, 4096)
KEYS = tuple(f"copy/bytes={size},impl=torch" for size in BYTES)


def record(size: int) -> Record:
    """A copy of so many bytes in 2 ms."""
    whole = copy_record()
    case = replace(whole.case, params={"bytes": size, "impl": "torch"})
    return replace(whole, key=case.key, case=case, samples=Samples((0.002, 0.002), 10, 0.04, "events", "stream"))


def run_of_three(run_id: str = "r1") -> Run:
    """The run as it is when nothing goes wrong."""
    return gpu_run(*(record(size) for size in BYTES), run_id=run_id)


def events(run_id: str = "r1", driver: str = "580.1") -> list[Event]:
    """All events of the whole run: an order, a plan, and a start and an end for each case."""
    order = {
        "event": "order",
        "run_id": run_id,
        "created_at": "2026-01-02T03:04:05Z",
        "order": to_plain(Order(profile="quick", only=("copy*",))),
        "suite_version": __version__,
        "source_hash": {"memory": "m1"},
    }
    plan = {
        "event": "plan",
        "worker": 0,
        "started_at": "2026-01-02T03:04:06Z",
        "device": to_plain(GPU),
        "sheet": to_plain(SHEET),
        "environment": {"driver": {"value": driver, "status": "ok", "role": "match"}},
        "site_key": "abc",
        "cases": [{"family": r.family, "key": r.key, "case": to_plain(r.case)} for r in run_of_three().records],
    }
    told: list[Event] = [order, plan]
    for finished in run_of_three().records:
        told.append({"event": "started", "worker": 0, "key": finished.key, "limit_s": 90.0})
        told.append({"event": "finished", "worker": 0, "record": to_plain(finished)})
    return [*told, {"event": "ended", "worker": 0, "how": "finished"}]


def write(path: Path, told: list[Event]) -> Path:
    """A journal of these events."""
    path.write_text("".join(json.dumps(event, separators=(",", ":")) + "\n" for event in told))
    return path
