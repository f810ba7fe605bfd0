"""Exports: what other programs read. OpenMetrics is read back by prometheus-client, Parquet by pandas."""

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from harness import store
from harness.cli.app import exit_status
from harness.errors import ExitCode, HarnessError
from harness.export import to_csv, to_openmetrics, to_parquet, write_whole
from harness.model import Fact
from tests import hand_made

COPY = hand_made.COPY.key
RUN = hand_made.gpu_run(
    hand_made.copy_record(), hand_made.without_figure(hand_made.GEMM, "gemm", "failed", 'wrong: "10" dB')
)

LABELS = 'gpu="NVIDIA Test",card="c0ffee",key="copy/bytes=4294967296,impl=torch",family="memory",driver="580.1"'
FAILED = (
    'gpu="NVIDIA Test",card="c0ffee",key="gemm/dtype=bf16,impl=torch,k=8192,m=8192,n=8192",family="gemm",driver="580.1"'
)
OPENMETRICS = f"""\
# HELP ofpeak_case_measured 1 where the newest run has figures, else 0.
# TYPE ofpeak_case_measured gauge
ofpeak_case_measured{{{LABELS}}} 1.0
ofpeak_case_measured{{{FAILED}}} 0.0
# HELP ofpeak_rate_bytes_per_second Rate of the case's work; `convention` says what is counted.
# TYPE ofpeak_rate_bytes_per_second gauge
# UNIT ofpeak_rate_bytes_per_second bytes_per_second
ofpeak_rate_bytes_per_second{{{LABELS},convention="read + write"}} 3000000000000.0
# HELP ofpeak_time_seconds Mean device time of one launch.
# TYPE ofpeak_time_seconds gauge
# UNIT ofpeak_time_seconds seconds
ofpeak_time_seconds{{{LABELS}}} 0.002
# HELP ofpeak_spec_ratio Rate over the data sheet's dense peak, 0 to 1.
# TYPE ofpeak_spec_ratio gauge
# UNIT ofpeak_spec_ratio ratio
ofpeak_spec_ratio{{{LABELS}}} 0.75
# HELP ofpeak_energy_joules_per_byte Energy per byte or FLOP of the case's work.
# TYPE ofpeak_energy_joules_per_byte gauge
# UNIT ofpeak_energy_joules_per_byte joules_per_byte
ofpeak_energy_joules_per_byte{{{LABELS}}} 2e-10
# EOF
"""

CSV = """\
run_id,created_at,suite_version,gpu,card,driver,label,inject,key,family,op,kind,outcome,reason,worker,settled,limited_by,\
metric,value,unit,better,low,high,convention,metric_reason,param.bytes,param.impl,param.dtype,param.k,param.m,param.n
r1,2026-01-02T03:04:05Z,0.1.0,NVIDIA Test,c0ffee,580.1,,,"copy/bytes=4294967296,impl=torch",memory,copy,throughput,\
measured,,0,True,none,rate,3000000000000.0,B/s,higher,2997000000000.0,3003000000000.0,read + write,,4294967296,torch,,,,
r1,2026-01-02T03:04:05Z,0.1.0,NVIDIA Test,c0ffee,580.1,,,"copy/bytes=4294967296,impl=torch",memory,copy,throughput,\
measured,,0,True,none,at_clock_ratio,,ratio,higher,,,,not compute-bound,4294967296,torch,,,,
r1,2026-01-02T03:04:05Z,0.1.0,NVIDIA Test,c0ffee,580.1,,,"gemm/dtype=bf16,impl=torch,k=8192,m=8192,n=8192",gemm,gemm,\
throughput,failed,"wrong: ""10"" dB",0,,,,,,,,,,,,torch,bf16,8192,8192,8192
"""


def with_units(run):
    """The hand-made figures with the units that `metrics` gives."""
    units = {"spec_ratio": "ratio", "at_clock_ratio": "ratio", "l2_ratio": "ratio", "energy_per_work": "J/B"}
    records = tuple(
        replace(r, metrics=tuple(replace(m, unit=units.get(m.name, m.unit)) for m in r.metrics if m.name != "l2_ratio"))
        for r in run.records
    )
    return replace(run, records=records)


RUN = with_units(RUN)


def test_openmetrics_text():
    assert to_openmetrics([RUN]).decode() == OPENMETRICS


def test_csv_text():
    record = RUN.records[0]
    rate = replace(record.metric("rate"), low=2.997e12, high=3.003e12)
    short = replace(record, metrics=(rate, record.metric("at_clock_ratio")))
    assert to_csv([replace(RUN, records=(short, RUN.records[1]))]).decode() == CSV


def parsed(content: bytes):
    parser = pytest.importorskip("prometheus_client.openmetrics.parser")
    return {family.name: family for family in parser.text_string_to_metric_families(content.decode())}


@pytest.mark.parametrize("folder", ["baselines", "published"])
def test_prometheus_reads_every_committed_run(folder):
    runs = store.load_set(sorted((Path(__file__).parents[1] / "results" / folder).rglob("*.json")))
    families = parsed(to_openmetrics(runs))
    assert families["ofpeak_rate_bytes_per_second"].type == "gauge"
    assert families["ofpeak_rate_flop_per_second"].unit == "flop_per_second"
    samples = [sample for family in families.values() for sample in family.samples]
    assert all(sample.value == sample.value for sample in samples)
    named = {(sample.name, *sorted(sample.labels.items())) for sample in samples}
    assert len(named) == len(samples)
    assert {"gpu", "card", "key", "family", "driver"} <= set(samples[0].labels)


def test_the_older_prometheus_format_reads_it_too():
    """A node exporter's textfile collector takes HELP and TYPE, and reads UNIT and EOF as comments."""
    parser = pytest.importorskip("prometheus_client.parser")
    families = list(parser.text_string_to_metric_families(OPENMETRICS))
    assert sum(len(family.samples) for family in families) == 6


def test_of_several_runs_the_newest_counts():
    older = replace(RUN, run_id="r0", created_at="2025-01-01T00:00:00Z", records=(hand_made.copy_record(1e12),))
    family = parsed(to_openmetrics([RUN, older]))["ofpeak_rate_bytes_per_second"]
    assert [sample.value for sample in family.samples] == [3e12]
    other = replace(older, environment={**RUN.environment, "card": Fact("beef")})
    family = parsed(to_openmetrics([RUN, other]))["ofpeak_rate_bytes_per_second"]
    assert sorted(sample.value for sample in family.samples) == [1e12, 3e12]


HOSTILE = 'x"} 1\n# EOF\\\x1b[2J\u202e'


def hostile_run():
    record = replace(hand_made.copy_record(), family=HOSTILE, key=HOSTILE)
    metrics = tuple(replace(m, label=HOSTILE, unit="B/s {") for m in record.metrics)
    environment = {"driver": Fact(HOSTILE), "card": Fact(HOSTILE)}
    device = replace(RUN.device, name=HOSTILE)
    return replace(RUN, records=(replace(record, metrics=metrics),), environment=environment, device=device)


def test_hostile_strings_stay_inside_their_labels():
    text = to_openmetrics([hostile_run()])
    families = parsed(text)
    assert families["ofpeak_case_measured"].samples[0].labels["driver"] == 'x"} 1?# EOF\\?[2J?'
    assert text.decode().count("# EOF\n") == 1


def test_hostile_strings_stay_inside_their_cells():
    assert to_csv([hostile_run()]).decode().isascii()
    assert to_parquet([hostile_run()])


def test_parquet_is_read_back_as_it_was(tmp_path):
    pandas = pytest.importorskip("pandas")
    mixed = hand_made.without_figure(hand_made.gemm_case(k="unknown"), "gemm", "not_run", "a reason")
    (tmp_path / "t.parquet").write_bytes(to_parquet([replace(RUN, records=(*RUN.records, mixed))]))
    table = pandas.read_parquet(tmp_path / "t.parquet")
    rate = table[(table["key"] == COPY) & (table["metric"] == "rate")].iloc[0]
    assert (rate["value"], rate["unit"], rate["card"], rate["param.bytes"]) == (3e12, "B/s", "c0ffee", 2**32)
    assert str(table["value"].dtype) == "float64"
    assert str(table["param.bytes"].dtype) == "Int64"
    assert set(table["param.k"].dropna()) == {"8192", "unknown"}
    assert list(table["outcome"]) == ["measured"] * 5 + ["failed", "not_run"]
    assert table["value"].isna().sum() == 3


def test_parquet_has_the_same_types_whatever_the_runs_lack(tmp_path):
    pandas = pytest.importorskip("pandas")
    cpu = with_units(hand_made.cpu_run(hand_made.checked_record()))
    for name, run in (("a", RUN), ("b", cpu)):
        (tmp_path / name).write_bytes(to_parquet([run]))
    a, b = (pandas.read_parquet(tmp_path / name).dtypes.astype(str) for name in "ab")
    shared = [name for name in a.index if name in b.index and not name.startswith("param.")]
    assert [(name, a[name]) for name in shared] == [(name, b[name]) for name in shared]


@pytest.mark.parametrize("format", ["parquet", "csv", "openmetrics"])
def test_the_verb_writes_a_set_at_once(format, tmp_path, capsys):
    store.save(RUN, tmp_path / "set" / "run-001.json")
    out = tmp_path / "new" / "figures"
    for _ in range(2):
        assert exit_status(["export", str(tmp_path / "set"), "--format", format, "-o", str(out)]) == ExitCode.DONE
    assert capsys.readouterr().out == 2 * f"{out}: 1 run\n"
    assert out.stat().st_size > 100
    assert os.listdir(out.parent) == ["figures"]  # noqa: PTH208  # hidden files count too


@pytest.mark.parametrize("written", [to_csv, to_parquet])
def test_runs_without_a_case_are_refused(written):
    """A table without a row had no columns, which ended in a traceback."""
    with pytest.raises(HarnessError, match="these runs hold no case"):
        written([hand_made.gpu_run()])


def test_what_cannot_be_written_is_one_line(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(HarnessError, match="cannot write"):
        write_whole(b"x", tmp_path / "file" / "out.csv")
    (tmp_path / "folder").mkdir()
    with pytest.raises(HarnessError, match="cannot write"):
        write_whole(b"x", tmp_path / "folder")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["file", "folder"]


def test_help_of_both_verbs_loads_nothing_heavy():
    code = (
        "import sys, harness.cli.app as app; app.exit_status(['export', '--help']); app.exit_status(['import', '-h']); "
        "print([n for n in ('pandas', 'numpy', 'pyarrow', 'plotly', 'torch', 'scipy') if n in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.splitlines()[-1] == "[]"


def test_figures_that_were_slowed_down_on_purpose_carry_a_label():
    injected = replace(RUN, order=replace(RUN.order, inject=("copy=3%",)))
    assert b"injected" not in to_openmetrics([RUN])
    assert to_openmetrics([injected]).count(b'injected="copy=3%"') == to_openmetrics([RUN]).count(b"{")
