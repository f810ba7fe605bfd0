"""Collectives in nccl-tests' columns: compared whole, and read back by the reader of nccl-tests' own output."""

from dataclasses import replace

from harness.importers import nccl_tests
from harness.model import Case, Check, Fact, Metric, Record, Telemetry, Work
from harness.report.nccl_columns import nccl_lines
from tests import hand_made

RIGHT = (Check("before", "exact", True, 0.0, 0.0), Check("after", "exact", True, 0.0, 0.0))


def record(op: str, size: int, time_us: float, telemetry: Telemetry | None = None, **params: str) -> Record:
    """Over four ranks, by the factor of an all-reduce."""
    works = (Work(1.5 * size, "B", None, "bus"), Work(size, "B", None, "algorithm"))
    case = Case(op, {"bytes": size, "dtype": "fp32", "impl": "nccl", "ranks": 4, **params}, works)
    rates = [
        Metric(name, amount / time_us * 1e6, "B/s") for name, amount in (("rate", 1.5 * size), ("rate.algorithm", size))
    ]
    metrics = (*rates, Metric("time", time_us * 1e-6, "s"))
    return Record(case.key, "collectives", case, "measured", checks=RIGHT, metrics=metrics, telemetry=telemetry)


RING = Telemetry(algorithm="ring", protocol="simple", channels=24)
LARGE = record("all_reduce", 2**30, 3267.65, RING)
SMALL = record("all_reduce", 8, 18.07, replace(RING, protocol="ll", channels=1))
GATHERS = [
    record("all_gather", 2**30, time_us, buffers=buffers, launch="graph")
    for buffers, time_us in (("out_of_place", 24692.1), ("in_place", 2e5))
]


def test_a_table_an_operation_and_launch_mode_with_both_places():
    run = hand_made.gpu_run(LARGE, SMALL, *GATHERS)
    heads = [
        "#                                                              out-of-place                         in-place",
        "#       size         count      type   redop    root     time   algbw   busbw  #wrong"
        "     time   algbw   busbw  #wrong  algorithm      protocol channels",
        "#        (B)    (elements)                               (us)  (GB/s)  (GB/s)"
        "             (us)  (GB/s)  (GB/s)",
    ]
    assert nccl_lines([run]) == [
        "",
        "# all_reduce, 4 ranks, nccl, launch queued",
        *heads,
        "           8             2     float     sum      -1                                 "
        "    18.07    0.00    0.00       0  ring           ll       1",
        "  1073741824     268435456     float     sum      -1                                 "
        "  3267.65  328.60  492.90       0  ring           simple   24",
        "",
        "# all_gather, 4 ranks, nccl, launch graph",
        *heads,
        "  1073741824      67108864     float    none      -1  24692.1   43.49   65.23       0"
        "   200000    5.37    8.05       0",
    ]


def test_the_reader_of_nccl_tests_reads_them_back():
    told = nccl_tests.parse("\n".join(nccl_lines([hand_made.gpu_run(LARGE, SMALL)])), "all_reduce")
    read = {
        figure.params["bytes"]: round(figure.seconds[0] * 1e6, 2)
        for figure in told.figures
        if figure.params["buffers"] == "in_place"
    }
    assert read == {2**30: 3267.65, 8: 18.07}


def test_each_setting_of_nccl_has_a_table_of_its_own():
    """Settings of one size stood in one row, as the median of what no setting had."""
    swept = [
        record("all_reduce", 64, time_us, world="own", **setting)
        for time_us, setting in ((10.0, {}), (20.0, {"nccl_algo": "Tree"}), (40.0, {"nccl_algo": "Ring"}))
    ]
    titles = [line for line in nccl_lines([hand_made.gpu_run(*swept)]) if line.startswith("# all_reduce")]
    assert titles == [
        "# all_reduce, 4 ranks, nccl, launch queued, ranks of its own: default",
        "# all_reduce, 4 ranks, nccl, launch queued, ranks of its own: NCCL_ALGO=Tree",
        "# all_reduce, 4 ranks, nccl, launch queued, ranks of its own: NCCL_ALGO=Ring",
    ]


def test_several_runs_are_their_median():
    runs = [hand_made.gpu_run(record("reduce", 64, time_us)) for time_us in (10.0, 30.0, 20.0)]
    assert nccl_lines(runs)[-1].split()[:7] == ["64", "16", "float", "sum", "0", "20.00", "0.00"]


def test_a_median_never_spans_two_machines():
    """Times of two drivers became one median that neither had."""
    runs = [hand_made.gpu_run(record("reduce", 64, time_us)) for time_us in (10.0, 20.0, 30.0)]
    environment = {**hand_made.ENVIRONMENT, "driver": Fact("570.1")}
    runs.append(replace(hand_made.gpu_run(record("reduce", 64, 90.0)), environment=environment))
    lines = nccl_lines(runs)
    assert [line for line in lines if line.startswith("# reduce")] == [
        "# reduce, 4 ranks, nccl, launch queued, on driver 580.1",
        "# reduce, 4 ranks, nccl, launch queued, on driver 570.1",
    ]
    assert [line.split()[5] for line in lines if line and not line.startswith("#")] == ["20.00", "90.00"]


def test_wrong_elements_that_nobody_counted_are_not_zero():
    unchecked = replace(LARGE, checks=())
    assert nccl_lines([hand_made.gpu_run(unchecked)])[-1].split()[8] == "N/A"


def test_what_is_no_collective_is_left_out():
    assert nccl_lines([hand_made.gpu_run(hand_made.copy_record())]) == []


def test_ranks_that_cannot_be_are_no_row():
    """A file's `ranks` of 0 divided by zero."""
    told = record("all_gather", 64, 10.0)
    for ranks in (0, -1, "two"):
        case = replace(told.case, params={**told.case.params, "ranks": ranks})
        assert nccl_lines([hand_made.gpu_run(replace(told, case=case))]) == []
