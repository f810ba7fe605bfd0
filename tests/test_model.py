"""Keys, and data that survive the way to JSON and back."""

import dataclasses
import json

import pytest

from harness.model import (
    Case,
    Check,
    DeviceFacts,
    Fact,
    Metric,
    Order,
    Peak,
    PeakSheet,
    Record,
    Ruler,
    RulerPart,
    Run,
    Samples,
    Telemetry,
    Work,
    Worker,
    from_plain,
    to_plain,
)

READ = Work(1e9, "B", "memory", "read")
CPU = DeviceFacts(kind="cpu", name="CPU", torch_device="cpu")


def there_and_back(data):
    """Through JSON, as a journal does it."""
    return from_plain(type(data), json.loads(json.dumps(to_plain(data), allow_nan=False)))


def test_key_is_sorted_by_parameter():
    case = Case("gemm", {"n": 3, "dtype": "bf16", "m": 1, "k": 2}, (READ,))
    assert case.key == "gemm/dtype=bf16,k=2,m=1,n=3"


def test_key_leaves_out_parameters_at_their_default():
    case = Case("gemm", {"m": 1, "layout": "tn"}, (READ,), defaults={"layout": "tn"})
    assert case.key == "gemm/m=1"


def test_key_shows_a_parameter_that_leaves_its_default():
    case = Case("gemm", {"m": 1, "layout": "nn"}, (READ,), defaults={"layout": "tn"})
    assert case.key == "gemm/layout=nn,m=1"


def test_new_parameter_at_its_default_keeps_the_key():
    before = Case("copy", {"bytes": 8}, (READ,))
    after = Case("copy", {"bytes": 8, "cache": "rotate"}, (READ,), defaults={"cache": "rotate"})
    assert after.key == before.key


def test_number_that_equals_its_default_as_text_is_shown():
    assert Case("copy", {"n": 1}, (READ,), defaults={"n": "1"}).key == "copy/n=1"


@pytest.mark.parametrize("value", ["a,b", "a=b", "a/b", "a b", "", "é", "[bold]", "a\n", "*"])
def test_value_that_cannot_stand_in_a_key_is_refused(value):
    with pytest.raises(ValueError, match=r"cannot stand in a key: use letters, digits and _\.\+- only"):
        Case("copy", {"impl": value}, (READ,))


def test_name_that_cannot_stand_in_a_key_is_refused():
    with pytest.raises(ValueError, match="cannot stand in a key"):
        Case("copy", {"a b": 1}, (READ,))


def test_op_that_cannot_stand_in_a_key_is_refused():
    with pytest.raises(ValueError, match="op='all reduce' cannot stand in a key"):
        Case("all reduce", {"n": 1}, (READ,))


def test_throughput_without_work_is_refused():
    with pytest.raises(ValueError, match="copy/n=1: a throughput case declares its work"):
        Case("copy", {"n": 1}, ())


def test_quality_needs_no_work():
    assert Case("sqnr", {"n": 1}, (), kind="quality").key == "sqnr/n=1"


def test_capability_compares_as_a_version():
    hopper = dataclasses.replace(CPU, kind="cuda", compute_capability=(9, 0))
    assert hopper.at_least(9)
    assert hopper.at_least(8, 9)
    assert not hopper.at_least(9, 1)
    assert not CPU.at_least(1)


def test_buffer_sets_fill_twenty_times_l2():
    device = dataclasses.replace(CPU, l2_bytes=50)
    assert device.sets(1000) == 1
    assert device.sets(100) == 10
    assert device.sets(300) == 4  # 3.3 rounded up
    assert device.sets(10, l2_multiples=1) == 5


def test_unknown_l2_takes_two_sets():
    assert CPU.sets(1) == 2


def test_seconds_per_launch_is_total_time_over_total_launches():
    samples = Samples((1.0, 3.0), launches_per_sample=5, window_s=20.0, timer="scripted", queue="stream")
    assert samples.launches == 10
    assert samples.seconds_per_launch == 2.0


@pytest.mark.parametrize(
    ("kind", "expected_s"), [("throughput", 4.0), ("latency", 1.0)], ids=["mean of the window", "median call"]
)
def test_runs_are_compared_by_the_mean_of_a_window_and_by_the_median_of_calls(kind, expected_s):
    samples = Samples((1.0, 1.0, 10.0), launches_per_sample=1, window_s=12.0, timer="scripted", queue="host")
    case = Case("copy", {}, (READ,), kind)
    assert Record("k", "f", case, "measured", samples=samples).compared_s == expected_s
    assert Record("k", "f", case, "failed").compared_s is None


def test_metric_is_found_by_name():
    record = Record("k", "f", Case("copy", {}, (READ,)), "measured", metrics=(Metric("rate", 1.0, "B/s"),))
    assert record.metric("rate") == Metric("rate", 1.0, "B/s")
    assert record.metric("power") is None


def test_run_tells_measured_from_not_measured():
    case = Case("copy", {}, (READ,))
    outcomes = ("measured", "checked", "not_applicable", "failed", "not_run", "measured")
    records = tuple(Record(str(i), "f", case, outcome) for i, outcome in enumerate(outcomes))
    run = Run("id", "t", 1, "0", Order(), CPU, PeakSheet(None, "none"), {}, (), records)
    assert [r.key for r in run.measured] == ["0", "5"]
    assert [r.key for r in run.not_measured] == ["1", "2", "3", "4"]


def run_of_workers(*statuses):
    """A run whose workers' rulers are so; `None` where a worker checked none."""
    rulers = [None if status is None else Ruler(status, reason=f"{i}") for i, status in enumerate(statuses)]
    workers = tuple(Worker(i, "now", ruler=ruler) for i, ruler in enumerate(rulers))
    return Run("id", "t", 1, "0", Order(), CPU, PeakSheet(None, "none"), {}, workers, ())


@pytest.mark.parametrize(
    ("statuses", "worst"),
    [
        (("ok", "off", "ok"), "off"),
        (("ok", "unknown"), "unknown"),
        (("ok", "information"), "information"),
        (("unknown", "off"), "off"),
        ((None, "ok"), "ok"),
    ],
)
def test_ruler_of_a_run_is_the_worst_of_its_workers(statuses, worst):
    assert run_of_workers(*statuses).ruler.status == worst


def test_of_rulers_that_are_equally_bad_the_first_worker_tells():
    assert run_of_workers("ok", "off", "off").ruler.reason == "1"


@pytest.mark.parametrize("statuses", [(), (None, None)])
def test_run_without_a_check_has_no_ruler(statuses):
    assert run_of_workers(*statuses).ruler is None


def test_part_of_a_ruler_is_found_by_name():
    tick = RulerPart("tick", True, 32e-9, "s")
    assert Ruler("ok", (tick,)).part("tick") is tick
    assert Ruler("ok", (tick,)).part("pipe_fp8") is None


def test_only_a_recalled_peak_is_unverified():
    told = {p: Peak(1.0, "B", p, "") for p in ("read", "second_hand", "recalled", "derived")}
    assert [p for p, peak in told.items() if not peak.is_verified] == ["recalled"]


def test_plain_leaves_out_only_defaults_that_are_empty():
    """An order of all defaults was written as {}: a later release's defaults would have changed what it says."""
    asked = {"profile": "standard", "device": "auto", "gpu": "0", "concurrent": 1}
    assert to_plain(Order()) == asked
    assert to_plain(Order(profile="quick", only=("copy",))) == {**asked, "profile": "quick", "only": ["copy"]}
    assert to_plain(Telemetry()) == {"limited_by": "unknown"}


def test_plain_keeps_false_where_the_default_is_unknown():
    assert to_plain(Telemetry(settled=False, power_w=0.0, limited_by="none")) == {
        "settled": False,
        "power_w": 0.0,
        "limited_by": "none",
    }


def test_plain_of_a_mapping_has_text_for_names():
    assert to_plain({1: (1, 2)}) == {"1": [1, 2]}


def test_plain_of_a_class_is_the_class_itself():
    assert to_plain(Order) is Order


@pytest.mark.parametrize(
    "data",
    [
        Case(
            "gemm",
            {"m": 1, "dtype": "bf16"},
            (READ, Work(2.0, "FLOP", None, "2·m", no_peak="none known")),
            kind="latency",
            defaults={"m": 2},
            deterministic=True,
            not_applicable="no",
        ),
        DeviceFacts("cuda", "GPU", "cuda:0", compute_capability=(9, 0), max_sm_clock_mhz=1980.0, mig=True),
        Samples((0.1, 0.2), 10, 3.0, "cuda_event", "graph", starved=1),
        Telemetry(
            settled=False,
            power_w=600.0,
            throttle_ratio={"power_cap": 0.5},
            timeline={"time_s": (0.0, 0.1), "power_w": (None, 600.0)},
            missing={"sm_clock_mhz": "no stamps"},
        ),
        Check("after", "sqnr_db", True, None, 50.0),
        Worker(1, "now", preheat={"seconds": 1.0, "steady": True, "start_c": None, "why": "asked"}),
        Worker(0, "now", idle={"power_w": None, "reason": "no counter"}, ruler=Ruler("unknown", reason="not judged")),
        Ruler("off", (RulerPart("tick", False, None, "s", 0.0, 2e-6, "stands still"), RulerPart("a", None, 0.0, "s"))),
        Fact(None, "Not Supported", "informative"),
        Fact(False),
        PeakSheet(
            "GPU", "exact", peaks={"memory": Peak(1e12, "B", "read", "sheet")}, flop_per_clock_per_sm={"bf16": 8}
        ),
        Order(),
    ],
    ids=lambda data: type(data).__name__,
)
def test_data_come_back_from_json_equal(data):
    assert there_and_back(data) == data


def test_whole_run_comes_back_from_json_equal():
    case = Case("copy", {"bytes": 8}, (READ,))
    record = Record(
        case.key,
        "memory",
        case,
        "measured",
        samples=Samples((0.1,), 1, 0.1, "t", "host"),
        telemetry=Telemetry(timeline={"power_w": (None, 1.0)}),
        checks=(Check("before", "exact", True, 0.0, 0.0), Check("repeat", "exact", True, 0.0, 0.0)),
        metrics=(Metric("rate", 1e9, "B/s", "higher", low=0.9e9, high=1.1e9),),
        warnings=("unsettled: 15 s",),
        wall_s=1.5,
    )
    facts = {"driver": Fact("580.1"), "ecc": Fact(True), "nvml": Fact(None, "no driver")}
    run = Run(
        "id",
        "t",
        1,
        "0.1",
        Order("quick"),
        CPU,
        PeakSheet(None, "none", "a CPU"),
        facts,
        (Worker(0, "t", "finished"),),
        (record, Record("k", "f", case, "failed", "why")),
        source_hash={"kernels/gemm.py": "abc"},
    )
    again = there_and_back(run)
    assert again == run
    assert isinstance(again.records, tuple)
    assert isinstance(again.records[0].telemetry.timeline["power_w"], tuple)


def test_pair_of_numbers_comes_back_as_a_tuple():
    again = there_and_back(DeviceFacts("cuda", "GPU", "cuda:0", compute_capability=(8, 9)))
    assert again.compute_capability == (8, 9)
    assert isinstance(again.compute_capability, tuple)


def test_field_that_the_model_lacks_is_refused():
    with pytest.raises(KeyError, match="nonsense"):
        from_plain(Order, {"nonsense": 1})


@pytest.mark.parametrize(
    ("params", "gpus"), [({}, 1), ({"ranks": 4}, 4), ({"from": 0, "to": 3}, 2), ({"from": 1, "to": 1}, 1)]
)
def test_case_counts_the_gpus_that_are_at_work(params, gpus):
    assert Case("copy", params, (READ,)).gpus == gpus
