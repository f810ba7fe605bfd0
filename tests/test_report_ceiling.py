"""What `show` says of the pipe's ceiling below the kernels' table."""

from dataclasses import replace

from harness.report.ceiling import ceiling_remark
from harness.report.summary import summarize
from tests import page_runs


def with_pipe(factor=1.25):
    """A run whose GEMMs stand below a pipe of so much more than torch's bf16."""
    run, gemm = page_runs.full_source().runs[0], page_runs.gemm("torch")
    case = replace(gemm.case, op="pipe", params={"dtype": "bf16"})
    metrics = tuple(replace(m, value=m.value * factor) if m.name == "rate" else m for m in gemm.metrics)
    return replace(
        run, records=(*run.records, replace(gemm, key="pipe/dtype=bf16", family="pipe", case=case, metrics=metrics))
    )


def test_the_best_kernel_is_held_against_the_pipe():
    run = with_pipe()
    best = max(r.metric("rate").value for r in run.measured if r.family == "gemm")
    pipe = page_runs.gemm("torch").metric("rate").value * 1.25
    said = ceiling_remark([run], "gemm")
    assert said.startswith("the pipe's own ceiling under this power limit: bf16 ")
    assert f"of which {100 * best / pipe:.1f} % is reached at best" in said
    tables = {table.family: table for table in summarize([run])[0].tables}
    assert said in tables["gemm"].remarks
    assert not any("ceiling" in remark for name, table in tables.items() if name != "gemm" for remark in table.remarks)


def test_several_runs_count_by_their_median():
    said = ceiling_remark([with_pipe(1.0), with_pipe(1.25), with_pipe(2.0)], "gemm")
    assert said == ceiling_remark([with_pipe(1.25)], "gemm")


def test_nothing_is_said_without_a_pipe_or_of_a_family_without_its_format():
    assert ceiling_remark([page_runs.full_source().runs[0]], "gemm") == ""
    assert ceiling_remark([with_pipe()], "memory") == ""
    assert ceiling_remark([with_pipe()], "pipe") == ""
