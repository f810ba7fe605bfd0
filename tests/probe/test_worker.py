"""A worker's plan and records, on a scripted device and without pytest's part."""

import dataclasses
import json

import pytest

from harness.assembly import run_from_events
from harness.errors import ExitCode, HarnessError
from harness.journal import read_events
from harness.model import (
    Case,
    DeviceFacts,
    Metric,
    Order,
    Record,
    Ruler,
    RulerPart,
    Samples,
    Telemetry,
    Work,
    from_plain,
    to_plain,
)
from harness.probe import device as probe_device
from harness.probe import worker
from harness.probe.measure import CheckFailedError, Measurement, Subject
from harness.probe.ranks import ANSWER_LIMIT_S, START_LIMIT_S, RankError
from harness.probe.worker import DuplicateKeyError, Task, WorkerSession, is_wanted, one_line, open_session, read_task
from tests.doubles import MeasuredDevice, ScriptedChecker, ScriptedDevice
from tests.soaks import SoakedDevice, soak_case

BYTES = Work(1e9, "B", None, "read", no_peak="scripted")
GIB = 2**30


def case(n=1, op="copy", **more):
    return Case(op, {"n": n}, (BYTES,), **more)


def ranks_case(ranks=2):
    return Case("all_reduce", {"ranks": ranks}, (BYTES,))


def session(order=None, facts=None, **task):
    device = ScriptedDevice()
    device.facts = dataclasses.replace(device.facts, **(facts or {}))
    order = order or Order(profile="smoke")
    return WorkerSession(Task(order, **task), device, device.checker, device.environment())


# --- the plan --------------------------------------------------------------------------------------------------------


def test_plan_keeps_the_order_of_the_family():
    assert [c.key for c in session().plan("memory", [case(2), case(1)])] == ["copy/n=2", "copy/n=1"]


def test_family_that_comes_last_is_planned_behind_the_others(tmp_path):
    running = session(journal=str(tmp_path / "j"))
    running.plan("driver", [case(1)], is_last=True)
    running.plan("memory", [case(2)])
    running.plan("gemm", [case(3)])
    running.announce()
    (plan,) = read_events(tmp_path / "j")
    assert [entry["key"] for entry in plan["cases"]] == ["copy/n=2", "copy/n=3", "copy/n=1"]


@pytest.mark.parametrize(
    ("only", "wanted"),
    [
        ((), False),
        (("*",), True),
        (("protocols",), True),
        (("copy",), False),
        (("copy*",), False),
        (("copy/n=1",), True),
        (("copy/*n=*",), True),
        (("copy/n=2",), False),
        (("memory", "proto*"), True),
    ],
)
def test_family_that_must_be_asked_for_waits_for_its_name_or_its_parameters(only, wanted):
    planned = session(Order(only=only)).plan("protocols", [case(1)], is_asked_for=True)
    assert bool(planned) is wanted


def test_two_cases_of_one_key_are_an_error_that_names_both_families():
    planned = session()
    planned.plan("memory", [case(1)])
    with pytest.raises(DuplicateKeyError) as told:
        planned.plan("other", [case(1)])
    assert str(told.value) == "two cases have the key 'copy/n=1' (families other and memory)"


def test_figures_of_a_result_stand_before_those_of_its_time():
    quality = Case("error", {}, (), "quality")
    figure = Metric("quality", 28.5, "dB", "higher")
    samples = Samples((0.5,), 1, 0.5, "scripted", "host", shots=1)
    record = session().record(quality, Measurement((), samples, Telemetry(), figures=(figure,)))
    assert record.outcome == "measured"
    assert record.metrics[0] == figure
    assert record.metric("time").value == 0.5


def test_cases_that_differ_only_by_a_default_have_one_key():
    same = Case("copy", {"n": 1, "cache": "rotate"}, (BYTES,), defaults={"cache": "rotate"})
    with pytest.raises(DuplicateKeyError):
        session().plan("memory", [case(1), same])


def test_case_that_nobody_wants_is_not_planned():
    planned = session(Order(only=("copy/n=2",)))
    assert [c.key for c in planned.plan("memory", [case(1), case(2)])] == ["copy/n=2"]
    assert list(planned.planned) == ["copy/n=2"]


def test_case_that_is_done_already_stays_in_the_plan_and_is_not_measured():
    planned = session(skip=("copy/n=1",))
    assert [c.key for c in planned.plan("memory", [case(1), case(2)])] == ["copy/n=2"]
    assert list(planned.planned) == ["copy/n=1", "copy/n=2"]


@pytest.mark.parametrize(
    ("only", "wanted"),
    [
        ((), True),
        (("memory",), True),
        (("mem*",), True),
        (("copy",), True),
        (("copy/*",), True),
        (("copy/n=1",), True),
        (("*n=1*",), True),
        (("gemm", "copy"), True),
        (("gemm",), False),
        (("cop",), False),
        (("Memory",), False),
        (("copy/n=",), False),
    ],
)
def test_pattern_names_a_family_an_op_or_a_key(only, wanted):
    assert is_wanted("memory", "copy/n=1", only) is wanted


# --- what the device cannot do ---------------------------------------------------------------------------------------


def reason(order=None, facts=None, **of_case):
    return session(order, facts).plan("memory", [case(**of_case)])[0].not_applicable


def test_memory_that_the_device_lacks_is_told_apart_from_memory_that_is_taken():
    assert reason(memory_bytes=6 * GIB) == ""
    assert reason(memory_bytes=7 * GIB) == (
        "needs 7.0 GiB of memory, 6.0 of 8.0 GiB are free: another process holds the rest"
    )
    assert reason(memory_bytes=9 * GIB) == "needs 9.0 GiB of memory, the device has 8.0 GiB"


def test_device_that_does_not_tell_its_memory_is_tried():
    assert reason(facts={"memory_bytes": None}, memory_bytes=2**60) == ""


def test_reason_of_the_family_stands():
    assert reason(memory_bytes=2**60, not_applicable="this card has no fp8") == "this card has no fp8"


@pytest.mark.parametrize(
    ("order", "told"),
    [
        (Order(gpu="0"), ""),
        (Order(gpu="3"), "all GPUs are its ranks: it is in the run of GPU 0"),
        (Order(gpu="0", concurrent=4), "every GPU is busy with a run of its own"),
        (Order(gpu="3", concurrent=4), "every GPU is busy with a run of its own"),
    ],
)
def test_ranks_run_with_gpu_0_and_only_if_no_gpu_is_busy(order, told):
    assert session(order).plan("collectives", [ranks_case()])[0].not_applicable == told


@pytest.mark.parametrize(
    ("order", "told"),
    [
        (Order(gpu="0"), ""),
        (Order(gpu="1"), "it works on pairs of GPUs: it is in the run of GPU 0"),
        (Order(gpu="0", concurrent=2), "every GPU is busy with a run of its own"),
    ],
)
def test_pairs_run_with_gpu_0_and_only_if_no_gpu_is_busy(order, told):
    pair = Case("peer_copy", {"from": 0, "to": 1}, (BYTES,))
    assert session(order).plan("peers", [pair])[0].not_applicable == told


def test_case_on_several_gpus_is_measured_on_them_and_not_on_the_workers_own():
    pair, own, asked = Case("peer_copy", {"from": 2, "to": 1}, (BYTES,)), session(), []
    (planned,) = own.plan("peers", [pair])
    own.device.among = lambda gpus: asked.append(gpus) or ScriptedDevice()
    own.device.start = None
    record = own.measure(planned, dataclasses.replace(copying(), gpus=(2, 1)))
    assert (record.outcome, asked) == ("measured", [(2, 1)])


def test_ranks_that_the_machine_lacks_keep_their_own_reason():
    alone = dataclasses.replace(ranks_case(1), not_applicable="needs two GPUs, this machine has 1")
    planned = session(Order(gpu="3")).plan("collectives", [alone])
    assert planned[0].not_applicable == "needs two GPUs, this machine has 1"


# --- the regime ------------------------------------------------------------------------------------------------------


def test_declared_regime_is_in_every_key():
    planned = session(Order(declare="clocks=locked:1410")).plan("memory", [case(1), case(2)])
    assert [c.key for c in planned] == ["copy/clocks=locked-1410,n=1", "copy/clocks=locked-1410,n=2"]


def test_concurrent_run_is_another_key():
    assert session(Order(concurrent=8)).plan("memory", [case()])[0].key == "copy/concurrent=8,n=1"


def test_plain_run_has_nothing_of_it_in_the_key():
    assert session().plan("memory", [case()])[0].key == "copy/n=1"


# --- the journal -----------------------------------------------------------------------------------------------------


def copying():
    source, out = [0.0], [0.0]

    def launch(_):
        out[0] = source[0]
        return 0.001

    return Subject(launch, [source], [out], lambda i: [(out[0], source[0])], exact=True)


def test_journal_tells_plan_start_and_finish(tmp_path):
    path = tmp_path / "j"
    running = session(journal=str(path), worker=3)
    planned = running.plan("memory", [case(1)])
    running.announce()
    running.begin(planned[0])
    record = running.measure(planned[0], copying())
    running.finish(record)
    running.close()
    plan, started, finished = read_events(path)
    assert (plan["event"], plan["worker"], plan["site_key"]) == ("plan", 3, "abc123")
    assert [(c["family"], c["key"]) for c in plan["cases"]] == [("memory", "copy/n=1")]
    assert from_plain(Case, plan["cases"][0]["case"]) == planned[0]
    assert (started["event"], started["key"]) == ("started", "copy/n=1")
    assert started["limit_s"] == pytest.approx(3 * 0.2 + 90)
    again = from_plain(Record, finished["record"])
    assert again == record
    assert (again.outcome, again.family, again.worker) == ("measured", "memory", 3)
    assert again.metric("rate").value == pytest.approx(1e12)


@pytest.mark.parametrize(
    ("minutes", "seconds"), [(None, 240), (8.0, 240), (0.1, 3), (0.01, "0.3"), (1 / 3, 10), (0.0117, "0.351")]
)
def test_minutes_of_an_order_are_shared_by_the_soaks_of_a_run(minutes, seconds):
    planned = session(Order(profile="soak", minutes=minutes)).plan("soak", [soak_case(), soak_case("soak_copy")])
    assert [one.params["seconds"] for one in planned] == [seconds, seconds]
    assert f"seconds={seconds}" in planned[0].key


def test_soak_that_is_asked_for_alone_has_its_share():
    running = session(Order(profile="soak", minutes=8.0, only=("soak_copy",)))
    (alone,) = running.plan("soak", [soak_case(), soak_case("soak_copy")])
    assert (alone.op, alone.params["seconds"]) == ("soak_copy", 240)


def test_soak_is_awaited_until_it_tells_how_far_it_has_come(tmp_path):
    running = session(Order(profile="soak", minutes=24 * 60.0), journal=str(tmp_path / "j"))
    (one,) = running.plan("soak", [soak_case()])
    running.begin(one)
    told = Telemetry(power_w=694.2, temperature_end_c=63.0)
    running._mention_soak(one, 90.04, 86400.0, told)
    running.close()
    *_, started, soaking = read_events(tmp_path / "j")
    assert started["limit_s"] == 30 + 90
    assert soaking == {
        "event": "soaking",
        "worker": 0,
        "key": one.key,
        "elapsed_s": 90.0,
        "load_s": 86400.0,
        "power_w": 694.2,
        "temperature_c": 63.0,
        "limit_s": 90.0,
    }


def test_soak_tells_its_journal_how_far_it_has_come(tmp_path):
    running = session(Order(profile="soak", minutes=0.01), journal=str(tmp_path / "j"))
    running.device = SoakedDevice()
    (one,) = running.plan("soak", [soak_case()])
    running.begin(one)
    record = running.measure(one, copying())
    running.close()
    assert [e["event"] for e in read_events(tmp_path / "j")][-2:] == ["started", "soaking"]
    assert record.metric("first_throttle").reason == "never in 1 s"


def test_record_names_its_predecessor():
    running = session(last_key="gemm/m=1")
    first, second = running.plan("memory", [case(1), case(2)])
    told = []
    for one in (first, second):
        running.begin(one)
        told.append(running.failed(one, "why"))
        running.finish(told[-1])
    assert [record.predecessor for record in told] == ["gemm/m=1", "copy/n=1"]


def test_device_is_warmed_once_and_not_for_smoke():
    for profile, preheats in (("quick", 1), ("smoke", 0)):
        running = session(Order(profile=profile))
        for one in running.plan("memory", [case(1), case(2)]):
            running.begin(one)
        assert running.device.preheats == preheats


def test_warming_is_told_before_it_begins(tmp_path):
    running = session(Order(profile="quick"), journal=str(tmp_path / "j"))
    running.begin(running.plan("memory", [case(1)])[0])
    running.close()
    assert [e["event"] for e in read_events(tmp_path / "j")] == ["warming", "warmed", "started"]


def measured_session(tmp_path, order=None):
    device = MeasuredDevice()
    order = order or Order(profile="quick")
    return WorkerSession(Task(order, journal=str(tmp_path / "j")), device, device.checker, device.environment())


def test_rest_ends_before_the_ruler_begins_and_the_ruler_is_concluded_on_a_warm_card(tmp_path):
    running = measured_session(tmp_path)
    for one in running.plan("memory", [case(1), case(2)]):
        running.begin(one)
    assert running.device.story == ["end_rest", "ruler", "preheat", "conclude"]
    assert running.device.flop_per_clock_per_sm == running.sheet.flop_per_clock_per_sm


def test_nothing_heats_a_card_before_its_soak(tmp_path):
    running = measured_session(tmp_path, Order(profile="soak"))
    running.begin(running.plan("soak", [soak_case()])[0])
    assert running.device.story == ["end_rest", "ruler", "stay_cold 6 s", "conclude"]
    assert read_events(tmp_path / "j")[1]["preheat"] == {}


def test_journal_tells_preheat_rest_and_ruler(tmp_path):
    running = measured_session(tmp_path)
    running.begin(running.plan("memory", [case(1)])[0])
    running.close()
    warming, warmed, started = read_events(tmp_path / "j")
    assert (warming["event"], warmed["event"], started["event"]) == ("warming", "warmed", "started")
    assert warmed["preheat"]["end_c"] == 40.0
    assert warmed["idle"] == {"power_w": 120.0, "seconds": 2.0, "temperature_c": 35.0, "reason": ""}
    assert from_plain(Ruler, warmed["ruler"]) == running.device.found


def test_ruler_that_is_off_is_told_and_the_run_goes_on(tmp_path):
    running = measured_session(tmp_path)
    running.device.found = Ruler("off", (RulerPart("spin_20us", False, 3e-6, "s"),), "out of bounds: spin_20us")
    planned = running.plan("memory", [case(1)])[0]
    running.begin(planned)
    assert running.measure(planned, copying()).outcome == "measured"
    assert read_events(tmp_path / "j")[1]["ruler"]["status"] == "off"


def test_smoke_neither_rests_nor_reads_the_ruler_of_a_card(tmp_path):
    running = measured_session(tmp_path, Order(profile="smoke"))
    running.begin(running.plan("memory", [case(1)])[0])
    running.close()
    assert running.device.story == []
    assert [e["event"] for e in read_events(tmp_path / "j")] == ["started"]


@pytest.mark.parametrize(("profile", "story"), [("quick", ["begin_rest"]), ("smoke", [])])
def test_rest_is_watched_while_the_worker_plans_but_not_where_nobody_ends_it(monkeypatch, profile, story):
    """A smoke run on a GPU was watched at 25 Hz from its first case to its last."""
    device = MeasuredDevice()
    monkeypatch.setattr(probe_device, "discover", lambda *_: device)
    open_session(Task(Order(profile=profile)), torch_checker=list)
    assert device.story == story


def test_cpu_run_stores_its_clock_as_information(tmp_path, monkeypatch):
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    monkeypatch.setattr(probe_device.CpuDevice, "__init__", lambda self: None)
    monkeypatch.setattr(probe_device.CpuDevice, "facts", DeviceFacts("cpu", "Test CPU", "cpu"), raising=False)
    order = Order(profile="standard")
    running = WorkerSession(Task(order, journal=str(tmp_path / "j")), probe_device.CpuDevice(), ScriptedChecker(), {})
    planned = running.plan("memory", [case(1)])
    running.announce()
    running.begin(planned[0])
    running.close()
    told = read_events(tmp_path / "j")
    assert [event["event"] for event in told] == ["plan", "warmed", "started"]
    ordered = {"event": "order", "run_id": "r", "created_at": "", "suite_version": "0", "source_hash": {}}
    run = run_from_events([{**ordered, "order": to_plain(order)}, *told])
    assert (run.ruler.status, run.ruler.reason) == ("information", "nothing is gated on a CPU")
    assert {part.passed for part in run.ruler.parts} == {None}
    assert (run.workers[0].idle, run.workers[0].preheat) == ({}, {})


def test_checked_case_has_no_figures():
    running = session()
    planned = running.plan("memory", [case(checked_only="interpreter")])[0]
    record = running.measure(planned, copying())
    assert (record.outcome, record.reason, record.samples, record.metrics) == ("checked", "interpreter", None, ())
    assert [check.when for check in record.checks] == ["before"]


def test_case_that_cannot_run_here_keeps_its_reason():
    record = session().not_applicable(case(not_applicable="no fp8"), "skipped")
    assert (record.outcome, record.reason, record.wall_s, record.started_at) == ("not_applicable", "no fp8", None, "")


def test_ranks_have_the_time_to_start_and_to_give_up_by_themselves(tmp_path):
    """The supervisor killed a worker while its ranks were still starting: the case failed without a reason."""
    path = tmp_path / "j"
    running = session(journal=str(path))
    running.begin(running.plan("collectives", [ranks_case()])[0])
    running.close()
    started = read_events(path)[-1]
    assert started["limit_s"] == pytest.approx(3 * 0.2 + 90 + 2 * START_LIMIT_S + ANSWER_LIMIT_S)


def test_what_nccl_chose_is_in_the_record(monkeypatch):
    class World:
        """Ranks that do nothing."""

        def __init__(self, ranks, device, variables, meeting):
            pass

        def close(self):
            """Gone."""

    samples = Samples((1.0, 1.0), 1, 2.0, "cuda_event", "stream")
    monkeypatch.setattr(worker, "World", World)
    monkeypatch.setattr(worker, "measure_on_ranks", lambda *_: Measurement((), samples, Telemetry(power_w=1.0)))
    running = session()
    planned = running.plan("collectives", [ranks_case()])[0]

    def complete(case, telemetry, body, how, own):
        return dataclasses.replace(telemetry, algorithm=f"ring of {body}")

    monkeypatch.setattr(running._witness, "complete", complete)
    assert running.measure_on_ranks(planned, "body", {}).telemetry.algorithm == "ring of body"


def test_world_that_failed_is_closed_and_the_next_case_gets_a_new_one(monkeypatch):
    made, closed = [], []

    class World:
        """Ranks that do nothing."""

        def __init__(self, ranks, device, variables, meeting):
            made.append((ranks, device, variables))

        def close(self):
            """Gone."""
            closed.append(True)

    def fail(*_):
        raise RankError("rank 1 of 2 died in 'run' (exit code -9)")

    monkeypatch.setattr(worker, "World", World)
    monkeypatch.setattr(worker, "measure_on_ranks", fail)
    running = session()
    planned = running.plan("collectives", [ranks_case()])[0]
    for number in (1, 2):
        with pytest.raises(RankError):
            running.measure_on_ranks(planned, "kernels.collectives.all_reduce", {})
        assert (len(made), len(closed)) == (number, number)


def test_setting_that_was_refused_is_not_tried_at_the_next_size(monkeypatch):
    made = []

    class World:
        """Ranks of a setting."""

        def __init__(self, ranks, device, variables, meeting):
            made.append(variables)

        def close(self):
            """Gone."""

    def refuse(*_):
        raise RankError("rank 0 of 2 failed in 'check': no algorithm/protocol available for function AllReduce")

    monkeypatch.setattr(worker, "World", World)
    monkeypatch.setattr(worker, "measure_on_ranks", refuse)
    running = session()
    swept = [
        dataclasses.replace(ranks_case(), params={"bytes": size, "nccl_algo": "PAT", "ranks": 2, "world": "own"})
        for size in (8, 64)
    ]
    for planned in running.plan("nccl_sweep", swept):
        with pytest.raises(
            worker.NotApplicableError, match=r"^NCCL refuses NCCL_ALGO=PAT: no algorithm/protocol avail"
        ):
            running.measure_on_ranks(planned, "body", {})
    assert made == [{"NCCL_DEBUG": "INFO", "NCCL_DEBUG_SUBSYS": "TUNING,P2P,SHM,NET", "NCCL_ALGO": "PAT"}]


# --- starting --------------------------------------------------------------------------------------------------------


def test_task_is_read_from_its_file(tmp_path):
    path = tmp_path / "task.json"
    path.write_text(json.dumps({"order": {"profile": "quick", "only": ["copy"]}, "worker": 2, "skip": ["copy/n=1"]}))
    assert read_task(str(path)) == Task(Order("quick", ("copy",)), worker=2, skip=("copy/n=1",))
    assert read_task("") == Task()


def test_session_takes_the_checker_of_its_device():
    opened = open_session(Task(Order(device="tests.doubles.ScriptedDevice")), torch_checker=lambda: 1 // 0)
    assert opened.facts.kind == "scripted"


def test_refusal_is_journalled_before_it_is_raised(tmp_path, monkeypatch):
    def refuse(*_):
        raise HarnessError("found a GPU that torch cannot use", ExitCode.INCONCLUSIVE)

    monkeypatch.setattr(probe_device, "discover", refuse)
    with pytest.raises(HarnessError):
        open_session(Task(worker=1, journal=str(tmp_path / "j")), torch_checker=list)
    assert read_events(tmp_path / "j") == [
        {"event": "refused", "worker": 1, "message": "found a GPU that torch cannot use", "exit_code": 2}
    ]


# --- one line --------------------------------------------------------------------------------------------------------


def caught(error):
    try:
        raise error
    except type(error) as raised:
        return raised


def test_error_is_one_line_with_its_place():
    told = one_line(caught(RuntimeError("the kernel did\n  not compile")))
    assert told.startswith("RuntimeError: the kernel did not compile (test_worker.py:")


def test_finding_of_the_suite_speaks_alone():
    assert one_line(caught(CheckFailedError("wrong result"))) == "wrong result"
    assert one_line(caught(RankError("rank 1 of 2 died"))) == "rank 1 of 2 died"


def test_error_that_was_never_raised_has_no_place():
    assert one_line(ValueError("a")) == "ValueError: a"


def test_error_without_words_is_its_name():
    assert one_line(KeyboardInterrupt()) == "KeyboardInterrupt"


def test_long_error_is_cut():
    assert one_line(ValueError("x" * 1000)) == "ValueError: " + "x" * 300


# --- slowed down on purpose ------------------------------------------------------------------------------------------


def injected_session(*inject, **task):
    running = session(Order(profile="smoke", inject=inject), **task)
    running.plan("memory", [case(1), case(2)])
    return running


def test_record_of_an_injected_case_says_so_and_that_of_another_does_not():
    running = injected_session("memory=2%", "copy/n=1=10%")
    subject = Subject(lambda i: 0.001, [], [], lambda i: [(0, 0)], exact=True)
    one, two = (running.measure(case(n), subject) for n in (1, 2))
    assert one.warnings[0] == (
        "injected: 10 % more was done than is counted, as --inject asked. It is no figure of this device."
    )
    assert two.warnings[0].startswith("injected: 2 % more")
    assert one.metric("rate").value == pytest.approx(1e9 / 0.001 / 1.1)
    untouched = injected_session("copy/n=1=10%").measure(case(2), subject)
    assert untouched.warnings == ()
    assert untouched.metric("rate").value == pytest.approx(1e12)


def test_injection_is_in_no_key():
    assert list(injected_session("memory=2%").planned) == ["copy/n=1", "copy/n=2"]


def test_injection_that_names_no_case_is_told():
    assert injected_session("memory=2%", "gemn=3%").aimless_injection() == "gemn=3%"
    assert injected_session("memory=2%", "copy/*=3%").aimless_injection() == ""


@pytest.mark.parametrize(
    ("params", "expected"),
    [({"ranks": 4}, {0, 1, 2, 3}), ({"from": 2, "to": 5}, {2, 5}), ({"n": 1}, set())],
    ids=["ranks", "a pair", "its own"],
)
def test_gpus_at_work_are_those_that_a_case_names(params, expected):
    """A pair's second GPU was not watched."""
    assert set(worker.gpus_at_work(Case("copy", params, (), "latency"))) == expected
