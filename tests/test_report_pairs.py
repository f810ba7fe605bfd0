"""What is measured between pairs of GPUs as matrices, on a terminal and as Markdown, compared whole."""

import io

from rich.console import Console

from harness.model import Case, Metric, Record, Telemetry, Work
from harness.report.markdown import to_markdown
from harness.report.pairs import pair_matrices
from harness.report.summary import summarize
from harness.report.terminal import print_summary
from tests import hand_made


def copy(source, destination, gb_per_s, ways="one"):
    label = "one way" if ways == "one" else "both ways together"
    params = {"bytes": 2**29, "from": source, "to": destination, "impl": "ce", "access": "write", "ways": ways}
    case = Case("peer_copy", params, (Work(2.0**29, "B", None, label, no_peak="no sheet"),), defaults={"ways": "one"})
    telemetry = Telemetry(power_w=200.0)
    metrics = (hand_made.rate(gb_per_s * 1e9, label=label), Metric("power", 200.0, "W"))
    return Record(case.key, "peers", case, "measured", metrics=metrics, telemetry=telemetry)


def latency(source, destination, ns):
    case = Case("peer_latency", {"bytes": 2**21, "from": source, "to": destination}, (), kind="latency")
    return Record(case.key, "peers", case, "measured", metrics=(Metric("time_p50", ns * 1e-9, "s", "lower"),))


RECORDS = (copy(0, 1, 396.4), copy(1, 0, 394.1), copy(0, 1, 784, "both"), latency(0, 1, 829), latency(0, 0, 145.25))


def test_each_kind_of_case_is_a_matrix():
    told = pair_matrices([hand_made.gpu_run(*RECORDS, hand_made.copy_record())])
    assert [(matrix.title, matrix.unit, matrix.heads) for matrix in told] == [
        ("peer_copy/access=write,bytes=536870912,impl=ce", "GB/s", ("0", "1")),
        ("peer_copy/access=write,bytes=536870912,impl=ce,ways=both", "GB/s", ("0", "1")),
        ("peer_latency/bytes=2097152", "ns", ("0", "1")),
    ]
    assert [matrix.rows for matrix in told] == [
        (("0", "–", "396.4"), ("1", "394.1", "–")),
        (("0", "–", "784.0"), ("1", "–", "–")),
        (("0", "145.2", "829.0"), ("1", "–", "–")),
    ]


def test_cells_of_several_runs_are_medians():
    runs = [hand_made.gpu_run(copy(0, 1, rate)) for rate in (100, 300, 200)]
    assert pair_matrices(runs)[0].rows[0] == ("0", "–", "200.0")


def test_runs_without_pairs_have_no_matrix():
    assert pair_matrices([hand_made.full_run()]) == ()


def test_matrices_stand_below_the_tables_on_a_terminal():
    (summary,) = summarize([hand_made.gpu_run(*RECORDS)])
    out = io.StringIO()
    print_summary(summary, Console(file=out, width=100, color_system=None))
    text = out.getvalue()
    assert (
        text[text.index("\nbetween") :]
        == """
between pairs of GPUs  row: from, column: to; bytes are counted once for each direction, ways=both adds them up
peer_copy/access=write,bytes=536870912,impl=ce (GB/s)
         0      1
  0      –  396.4
  1  394.1      –
peer_copy/access=write,bytes=536870912,impl=ce,ways=both (GB/s)
     0      1
  0  –  784.0
  1  –      –
peer_latency/bytes=2097152 (ns)
         0      1
  0  145.2  829.0
  1      –      –
"""
    )


def test_matrices_stand_below_the_tables_in_markdown():
    (summary,) = summarize([hand_made.gpu_run(copy(0, 1, 396.4))])
    text = to_markdown(summary)
    assert text[text.index("### Between") :] == (
        "### Between pairs of GPUs\n\n"
        "Row: from, column: to; bytes are counted once for each direction, ways=both adds them up\n\n"
        "`peer_copy/access=write,bytes=536870912,impl=ce`, GB/s\n\n"
        "| from \\ to | 0 | 1 |\n| ---: | ---: | ---: |\n| 0 | – | 396.4 |\n| 1 | – | – |\n"
    )


def test_power_is_said_to_be_that_of_both():
    (summary,) = summarize([hand_made.gpu_run(copy(0, 1, 396.4))])
    assert "W is the power of all 2 GPUs together" in summary.tables[0].remarks


def test_power_of_a_gpu_alone_is_not_said_to_be_that_of_both():
    alone = latency(0, 0, 145)
    told = Record(alone.key, "peers", alone.case, "measured", metrics=(*alone.metrics, Metric("power", 100.0, "W")))
    (summary,) = summarize([hand_made.gpu_run(copy(0, 1, 396.4), told)])
    remark = "W is the power of all GPUs at work together: one in some cases, 2 in others"
    assert remark in summary.tables[0].remarks
