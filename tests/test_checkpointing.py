"""Checkpointed steps beside plain ones, with times and bytes that can be divided in the head."""

import math

import pytest

from harness.checkpointing import find_checkpointed
from harness.model import Case, Metric, Record, Work

MODEL = Work(3.0, "FLOP", "bf16", "model FLOP")
HARDWARE = Work(4.0, "FLOP", None, "hardware FLOP", "recomputing is no part of the model")


def record(checkpointing, time_s, held=None, peak=None, *, batch=1, outcome="measured", op="transformer_block"):
    params = {"batch": batch, "checkpointing": checkpointing}
    works = (MODEL,) if checkpointing == "none" else (MODEL, HARDWARE)
    values = {"time": time_s, "memory.held": held, "memory.peak": peak}
    metrics = tuple(Metric(name, value, "", reason="" if value else "not read") for name, value in values.items())
    case = Case(op, params, works, defaults={"checkpointing": "none"})
    return Record(case.key, "transformer", case, outcome, metrics=metrics)


def test_a_step_that_computes_again_stands_beside_the_one_that_keeps_all():
    (found,) = find_checkpointed([record("none", 10.0, 80.0, 100.0), record("block", 12.5, 8.0, 60.0)])
    assert (found.key, found.part) == ("transformer_block/batch=1,checkpointing=block", "block")
    assert (found.time_ratio, found.flop_ratio) == (1.25, 4.0 / 3.0)
    assert (found.held_bytes, found.plain_held_bytes, found.peak_ratio) == (8.0, 80.0, 0.6)


def test_each_size_has_its_own_plain_step_and_the_runs_order_is_kept():
    records = [record("mlp", 4.0, batch=2), record("block", 3.0), record("none", 1.0), record("none", 2.0, batch=2)]
    assert [(step.part, step.time_ratio) for step in find_checkpointed(records)] == [("mlp", 2.0), ("block", 3.0)]


def test_memory_that_nobody_counted_is_unknown():
    (found,) = find_checkpointed([record("none", 1.0), record("block", 2.0)])
    assert (found.held_bytes, found.plain_held_bytes, found.peak_ratio) == (None, None, None)


@pytest.mark.parametrize(
    "plain",
    [
        record("none", 1.0, batch=2),
        record("none", 1.0, outcome="failed"),
        record("none", 1.0, op="other"),
        record("none", None),
        record("none", math.inf),
        record("none", -1.0),
    ],
)
def test_a_step_without_a_plain_one_beside_it_is_left_out(plain):
    assert find_checkpointed([plain, record("block", 2.0)]) == ()
