"""Progress: events in, lines out; no terminal and no waiting."""

import io
import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
from rich.console import Console

from harness.model import to_plain
from harness.report.progress import Progress, ProgressState, finished_line, status_bar
from tests import hand_made
from tests.soaks import soak_case

OTHER = hand_made.gemm_case(impl="triton")
ORDER = {"event": "order", "order": {"profile": "quick"}}
PLAN = {
    "event": "plan",
    "worker": 0,
    "cases": [
        {"family": "memory", "key": hand_made.COPY.key, "case": {}},
        {"family": "gemm", "key": hand_made.GEMM.key, "case": {}},
        {"family": "gemm", "key": OTHER.key, "case": {}},
    ],
}
WARMING = {"event": "warming", "worker": 0, "limit_s": 150.0}
WARMED = {"event": "warmed", "worker": 0, "preheat": {}}


def started(key: str) -> dict[str, Any]:
    return {"event": "started", "worker": 0, "key": key, "limit_s": 120}


def finished(record: object) -> dict[str, Any]:
    return {"event": "finished", "record": to_plain(record)}


class Clock:
    """Tells the time that a test sets."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def after(*events: Mapping[str, Any]) -> ProgressState:
    state = ProgressState()
    for event in events:
        state.apply(event, 0.0)
    return state


def test_before_a_plan_the_run_is_starting():
    assert after(ORDER).status(2.0) == ("0 of 0 cases, 2.0 s elapsed", "starting, 2.0 s")


def test_the_warm_up_is_said():
    assert after(ORDER, PLAN, WARMING).status(5.0) == ("0 of 3 cases, 5.0 s elapsed", "warming up, 5.0 s")


def test_a_running_case_shows_its_number_and_its_limit():
    how_far, doing = after(ORDER, PLAN, WARMING, WARMED, started(hand_made.COPY.key)).status(2.0)
    assert how_far == "0 of 3 cases, 2.0 s elapsed, about 16.0 s left"  # 3 cases of quick's 6 s, 2 s done
    assert doing == f"case 1 of 3: {hand_made.COPY.key}, 2.0 s of at most 2 min"


SOAK_PLAN = {
    "event": "plan",
    "worker": 0,
    "cases": [
        {"family": "soak", "key": case.key, "case": to_plain(case)} for case in (soak_case(), soak_case("soak_copy"))
    ],
}


def soaking(**told: Any) -> dict[str, Any]:
    return {"event": "soaking", "key": soak_case().key, "elapsed_s": 95.0, "load_s": 240, **told}


def test_a_soak_shows_how_far_it_has_come_and_what_the_card_draws():
    events = (ORDER, SOAK_PLAN, started(soak_case().key), soaking(power_w=694.4, temperature_c=63))
    how_far, doing = after(*events).status(100.0)
    assert how_far == "0 of 2 cases, 1 min 40 s elapsed, about 6 min 20 s left"
    assert doing == f"case 1 of 2: {soak_case().key}, 1 min 35 s of 4 min under load, 694 W, 63 °C"


def test_a_soak_of_which_nothing_is_watched_shows_its_time_alone():
    events = (ORDER, SOAK_PLAN, started(soak_case().key), soaking(power_w=None, temperature_c=None))
    assert after(*events).status(100.0)[1].endswith("seconds=240, 1 min 35 s of 4 min under load")


def test_before_a_soak_has_told_anything_its_limit_is_shown():
    events = (ORDER, SOAK_PLAN, soaking(), started(soak_case().key))
    assert after(*events).status(5.0)[1].endswith("seconds=240, 5.0 s of at most 2 min")


def test_a_cpu_is_not_expected_to_take_a_gpus_windows():
    """Ten cases of a second each were announced as two minutes."""
    state = ProgressState()
    state.apply({"event": "order", "order": {"profile": "standard", "device": "cpu"}}, 0.0)
    state.apply(PLAN, 0.0)
    assert state.left_s(0.0) == pytest.approx(3 * 1.0)


def test_time_left_comes_from_finished_cases_of_the_same_family():
    state = after(ORDER, PLAN, WARMING, WARMED, finished(hand_made.gemm_record()))
    assert state.left_s(0.0) == pytest.approx(6.0 + 8.2)


def test_a_second_worker_does_not_count_cases_twice():
    rest = {**PLAN, "worker": 1, "cases": PLAN["cases"][1:]}
    state = after(ORDER, PLAN, WARMING, WARMED, finished(hand_made.copy_record()), rest)
    assert (state.finished, state.total) == (1, 3)


def test_a_worker_that_was_killed_is_said():
    assert after(ORDER, PLAN).apply({"event": "ended", "worker": 0, "how": "signal 9"}, 0.0) == [
        "worker 0 ended: signal 9"
    ]


def test_a_second_run_starts_counting_again():
    state = ProgressState(runs=2)
    assert state.apply(ORDER, 0.0) == ["run 1 of 2"]
    state.apply(PLAN, 0.0)
    state.apply(finished(hand_made.copy_record()), 0.0)
    assert state.apply(ORDER, 9.0) == ["run 2 of 2"]
    assert state.status(9.0)[0] == "run 2 of 2, 0 of 0 cases, 9.0 s elapsed"


def test_a_finished_case_is_one_line():
    assert finished_line(hand_made.gemm_record(), 3, 38) == (
        f"[ 3/38] {hand_made.GEMM.key}  670.0 TFLOP/s  67.0 %  1343 MHz  695 W  "
        "unsettled  3 of 50 samples throttled  unverified peak  (8.2 s)"
    )


def test_a_case_of_a_cpu_shows_no_row_of_dashes():
    """Three dashes without a head stood behind every rate."""
    record = hand_made.cpu_copy_record()
    assert finished_line(record, 1, 2) == f"[1/2] {record.key}  10.00 GB/s  (4.0 s)"


def test_a_failed_case_says_why_in_one_line():
    record = hand_made.without_figure(hand_made.COPY, "memory", "failed", "out of\nmemory \x1b[31m")
    assert finished_line(record, 1, 1) == f"[1/1] {hand_made.COPY.key}  failed: out of memory \\x1b[31m"


def test_without_a_terminal_there_is_a_plain_line_a_case():
    out = io.StringIO()
    with Progress(Console(file=out, width=20, color_system=None), clock=Clock()) as progress:
        for event in (ORDER, PLAN, WARMING, WARMED, started(hand_made.COPY.key), finished(hand_made.copy_record())):
            progress.handle(event)
    assert out.getvalue() == (f"warming up\n[1/3] {hand_made.COPY.key}  3.000 TB/s  75.0 %  1979 MHz  600 W  (4.0 s)\n")


@pytest.mark.parametrize("width", [1, 2, 7, 30, 61, 64, 80, 200])
def test_a_terminal_of_any_width_is_drawn(width: int):
    out = io.StringIO()
    console = Console(file=out, width=width, height=5, force_terminal=True)
    with Progress(console, clock=Clock()) as progress:
        for event in (ORDER, PLAN, WARMING, WARMED, started(hand_made.GEMM.key), finished(hand_made.gemm_record())):
            progress.handle(event)
    assert hand_made.GEMM.key in re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]|\s", "", out.getvalue())


def test_the_bar_disappears_where_there_is_no_room():
    assert status_bar(1, 2, 20) == ""
    assert status_bar(0, 0, 100) == ""
    assert status_bar(1, 2, 68) == "████░░░░"


def test_odd_events_are_passed_over():
    state = after(ORDER, {"event": "something new"}, {"event": "interrupted", "reason": "signal 15"})
    assert state.total == 0


def test_an_unplanned_record_is_counted_too():
    state = after(ORDER, PLAN, finished(replace(hand_made.all_reduce_record(), wall_s=None)))
    assert (state.finished, state.total) == (1, 4)


def of_gpu(gpu: int, *events: Mapping[str, Any]) -> list[dict[str, Any]]:
    return [{**event, "gpu": gpu} for event in events]


def test_gpus_measured_at_once_are_counted_and_named_apart():
    """Events of several GPUs fell into one state, whose numbers were those of none of them."""
    out = io.StringIO()
    first = of_gpu(0, ORDER, PLAN, WARMING, WARMED, finished(hand_made.copy_record()))
    second = of_gpu(1, ORDER, PLAN, WARMING, WARMED, finished(hand_made.copy_record()))
    with Progress(Console(file=out, width=20, color_system=None), clock=Clock()) as progress:
        for pair in zip(first, second, strict=True):
            for event in pair:
                progress.handle(event)
    done = f"[1/3] {hand_made.COPY.key}  3.000 TB/s  75.0 %  1979 MHz  600 W  (4.0 s)\n"
    assert out.getvalue() == f"GPU 0: warming up\nGPU 1: warming up\nGPU 0: {done}GPU 1: {done}"


def test_each_gpu_has_its_own_status_until_its_run_is_saved():
    progress = Progress(Console(file=io.StringIO(), width=50), clock=Clock())
    for event in (*of_gpu(0, ORDER, PLAN, WARMING, WARMED), *of_gpu(1, ORDER, PLAN, WARMING)):
        progress.handle(event)
    assert progress.status_text().plain == (
        "GPU 0: 0 of 3 cases, 0.0 s elapsed, about 18.0 s left\n"
        "GPU 1: 0 of 3 cases, 0.0 s elapsed\n"
        "GPU 1: warming up, 0.0 s"
    )
    progress.handle({"event": "saved", "gpu": 1})
    assert progress.status_text().plain == "GPU 0: 0 of 3 cases, 0.0 s elapsed, about 18.0 s left"


def test_a_gpu_whose_second_run_begins_is_shown_again():
    progress = Progress(Console(file=io.StringIO(), width=50), runs=2, clock=Clock())
    for event in (ORDER, PLAN, {"event": "saved"}):
        progress.handle(event)
    assert progress.status_text().plain == ""
    progress.handle(ORDER)
    assert progress.status_text().plain == "run 2 of 2, 0 of 0 cases, 0.0 s elapsed\nstarting, 0.0 s"


def test_a_cpu_run_says_nothing_of_warming_up():
    """A CPU has nothing to pre-heat, and the line "warming up" stood there all the same."""
    assert after(ORDER, PLAN).status(5.0)[1] == ""
