"""Imports: other tools' figures keep their convention, whatever happened to the text on its way here.

The two recordings in data/ were made on two NVIDIA H200, driver 580.159.04; host name, PCI ids and pids were replaced.
"""

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from harness import store
from harness.cli.app import exit_status
from harness.errors import ExitCode, HarnessError
from harness.importers import nccl_tests, nvbandwidth, published
from harness.importers.recording import build_run, choose_gpu, plain_lines, read_text
from harness.model import Run

ROOT = Path(__file__).parents[1]
DATA = Path(__file__).parent / "data"
NVBANDWIDTH = (DATA / "nvbandwidth_2x_h200.json").read_text()
NCCL = (DATA / "nccl_tests_2x_h200.txt").read_text()
PRIVATE = ("machine", "12345", "1b:00", "43:00", "/home/", "/mnt/")

H2D = "memcpy/bytes=536870912,counted=one_way,direction=h2d,gpu=0,impl=ce,protocol=nvbandwidth"
LOCAL = "copy/bytes=536870912,counted=one_way,gpu=0,impl=ce,protocol=nvbandwidth"
ALL_REDUCE = "all_reduce/buffers=in_place,bytes=8589934592,dtype=fp32,impl=nccl,protocol=nccl-tests,ranks=2"

TEXT = """\
nvbandwidth Version: v0.6
Built from Git version: v0.6

CUDA Runtime Version: 12040
CUDA Driver Version: 12040
Driver Version: 550.127.08

machine
Device 0: NVIDIA H200 (00000000:1b:00)
Device 1: NVIDIA H200 (00000000:43:00)

Running host_to_device_memcpy_ce.
memcpy CE CPU(row) -> GPU(column) bandwidth (GB/s)
           0         1
 0     54.85     54.87

SUM host_to_device_memcpy_ce 109.73

Running device_to_device_memcpy_read_ce.
memcpy CE GPU(row) -> GPU(column) bandwidth (GB/s)
           0         1
 0       N/A    394.07
 1       N/A       N/A

SUM device_to_device_memcpy_read_ce 394.07

Running device_to_device_bidirectional_memcpy_write_ce.
memcpy CE GPU(row) <-> GPU(column) Write1 bandwidth (GB/s)
           0         1
 0       N/A    391.77
 1    391.86       N/A

SUM device_to_device_bidirectional_memcpy_write_ce_write1 783.63

memcpy CE GPU(row) <-> GPU(column) Total bandwidth (GB/s)
           0         1
 0       N/A    783.61
 1    783.65       N/A

SUM device_to_device_bidirectional_memcpy_write_ce_total 1567.26

Waiving device_to_device_memcpy_write_sm.

Running one_to_all_read_sm.
 Invalid value when checking the pattern at 0x70a640000000
ASSERT in expression h_errorFlag == 0 in void memcmp() : /mnt/project/memcpy.cpp:165
"""


def nvbandwidth_run(text: str = NVBANDWIDTH, buffer_mib: int = 0) -> Run:
    return build_run([nvbandwidth.parse(text, buffer_mib)], gpu="NVIDIA H200", created_at="2026-01-02T03:04:05+00:00")


def nccl_run(text: str = NCCL, collective: str = "") -> Run:
    return build_run([nccl_tests.parse(text, collective)], gpu="NVIDIA H200", created_at="2026-01-02T03:04:05+00:00")


def by_key(run: Run):
    return {record.key: record for record in run.records}


def rate(run: Run, key: str, name: str = "rate") -> float:
    return by_key(run)[key].metric(name).value


# nvbandwidth


def test_nvbandwidth_counts_one_way_and_the_data_sheet_s_count_stands_beside():
    run = nvbandwidth_run()
    assert len(run.measured) == 86
    assert not run.not_measured
    assert rate(run, H2D) == pytest.approx(54.8548e9)
    assert rate(run, LOCAL) == pytest.approx(2.09255e12)
    assert rate(run, LOCAL, "rate.read_written") == pytest.approx(2 * 2.09255e12)
    assert [work.label for work in by_key(run)[LOCAL].case.work] == ["one way", "read + written"]
    assert all("counted=" in r.key for r in run.records if r.case.kind == "throughput")


def test_a_total_of_both_directions_is_twice_the_bytes():
    run = nvbandwidth_run()
    pair = "peer_copy/access=read,bytes=536870912,column=1,counted={},impl=ce,protocol=nvbandwidth,row=0,way={}"
    one, total = pair.format("one_way", "first"), pair.format("both_ways", "total")
    assert rate(run, one) == pytest.approx(389.425e9)
    assert rate(run, total) == pytest.approx(778.797e9)
    assert by_key(run)[total].case.work[0].amount == 2 * by_key(run)[one].case.work[0].amount
    assert by_key(run)[one].metric("spec_ratio").value == pytest.approx(389.425 / 450)
    assert by_key(run)[total].metric("spec_ratio").value == pytest.approx(778.797 / 900)


def test_a_pair_that_pcie_may_join_gets_no_share_of_nvlink():
    run = nvbandwidth_run(TEXT.replace("394.07", " 26.34"))
    pair = next(r for r in run.measured if r.case.op == "peer_copy")
    assert pair.metric("spec_ratio").value is None
    assert pair.metric("spec_ratio").reason == "the recording does not say which link joins the GPUs"


def test_the_buffer_that_nvbandwidth_does_not_record_is_said_or_given():
    assumed = by_key(nvbandwidth_run())[H2D]
    assert assumed.warnings == (
        "imported: one figure, no samples",
        "assumed: a buffer of 512 MiB, nvbandwidth's default; it records no size",
    )
    given_ = by_key(nvbandwidth_run(buffer_mib=64))[H2D.replace("536870912", str(64 * 2**20))]
    assert given_.warnings == ("imported: one figure, no samples",)
    assert given_.metric("rate").value == pytest.approx(54.8548e9)
    assert given_.samples.seconds_per_launch == pytest.approx(64 * 2**20 / 54.8548e9)


def test_latencies_are_times_without_work():
    record = by_key(nvbandwidth_run())["host_latency/bytes=2097152,gpu=0,impl=sm,protocol=nvbandwidth"]
    assert record.case.kind == "latency"
    assert record.metric("time").value == pytest.approx(1261.97e-9)


def test_nvbandwidth_text_of_an_older_version():
    run = nvbandwidth_run(TEXT)
    assert {name: run.environment[name].value for name in ("driver", "cuda_driver")} == {
        "driver": "550.127.08",
        "cuda_driver": "12.4",
    }
    assert run.device.gpu_count == 2
    assert [(r.key.replace("bytes=536870912,", ""), r.outcome, r.reason) for r in run.records] == [
        ("memcpy/counted=one_way,direction=h2d,gpu=0,impl=ce,protocol=nvbandwidth", "measured", ""),
        ("memcpy/counted=one_way,direction=h2d,gpu=1,impl=ce,protocol=nvbandwidth", "measured", ""),
        ("peer_copy/access=read,column=1,counted=one_way,impl=ce,protocol=nvbandwidth,row=0", "measured", ""),
        (
            "peer_copy/access=read,column=0,counted=one_way,impl=ce,protocol=nvbandwidth,row=1",
            "not_applicable",
            "nvbandwidth gives N/A: no access between the two",
        ),
        (
            "peer_copy/access=write,column=1,counted=one_way,impl=ce,protocol=nvbandwidth,row=0,way=first",
            "measured",
            "",
        ),
        (
            "peer_copy/access=write,column=0,counted=one_way,impl=ce,protocol=nvbandwidth,row=1,way=first",
            "measured",
            "",
        ),
        (
            "peer_copy/access=write,column=1,counted=both_ways,impl=ce,protocol=nvbandwidth,row=0,way=total",
            "measured",
            "",
        ),
        (
            "peer_copy/access=write,column=0,counted=both_ways,impl=ce,protocol=nvbandwidth,row=1,way=total",
            "measured",
            "",
        ),
        (
            "nvbandwidth/test=device_to_device_memcpy_write_sm",
            "not_applicable",
            "nvbandwidth waived it on this machine",
        ),
        ("nvbandwidth/test=one_to_all_read_sm", "failed", "nvbandwidth reports an error in it"),
    ]


def test_json_of_failed_and_waived_tests():
    tests = [
        {"name": "host_to_device_memcpy_ce", "status": "Waived"},
        {"name": "device_local_copy", "status": "Error", "error": "CUDA_ERROR at /home/someone on machine"},
        {"name": "device_to_host_memcpy_ce", "status": "Passed", "bandwidth_matrix": [["nan", "0", "N/A", 55.5]]},
        {"name": "a_later_test", "status": "Passed", "bandwidth_matrix": [["1"]]},
    ]
    run = nvbandwidth_run(json.dumps({"nvbandwidth": {"testcases": tests}}))
    assert [r.outcome for r in run.records] == [
        "not_applicable",
        "failed",
        "failed",
        "failed",
        "not_applicable",
        "measured",
        "not_run",
    ]


@pytest.mark.parametrize(
    "change",
    [
        lambda t: t.replace("\n", "\r\n"),
        lambda t: "".join(f"[1,0]<stdout>: {line}\n" for line in t.splitlines()),
        lambda t: "".join(f"0: {line}\n" for line in t.splitlines()),
        lambda t: "".join(f"    {line}\n" for line in t.splitlines()),
        lambda t: "".join(f"2026-01-02T03:04:05.678Z {line}\n" for line in t.splitlines()),
        lambda t: "node {x} starts\n" + t + "\nslurmstepd: done\n",
        lambda t: "\n".join(
            line + "\nWARN  libibverbs: no device" if n % 7 == 3 else line for n, line in enumerate(t.splitlines())
        ),
        lambda t: "\x1b[32m" + t.replace("\n", "\x1b[0m\n"),
    ],
    ids=["crlf", "mpirun", "srun", "indented", "stamped", "around", "interleaved", "coloured"],
)
@pytest.mark.parametrize("text", [NVBANDWIDTH, TEXT, NCCL], ids=["nvbandwidth-json", "nvbandwidth", "nccl"])
def test_what_launchers_and_logs_do_to_a_text_changes_no_figure(text, change):
    read = nccl_run if text is NCCL else nvbandwidth_run
    assert read(change(text)).records == read(text).records


def test_a_table_whose_first_line_was_garbled_goes_to_its_own_test():
    lost = nvbandwidth_run(TEXT.replace("Running device_to_device_memcpy_read_ce", "Runni g devi"))
    assert lost.records == nvbandwidth_run(TEXT).records


def test_a_cell_that_was_lost_or_slipped_in_is_no_figure():
    for text in (NVBANDWIDTH.replace('"54.8548",', ""), TEXT.replace("54.85     54.87", "54.85      1.00")):
        first = nvbandwidth_run(text).records[0]
        assert (first.key, first.outcome) == ("nvbandwidth/test=host_to_device_memcpy_ce", "failed")
        assert first.reason == "its figures do not add up to the sum beside them: the text is damaged"


def test_a_hostile_text_is_read_in_seconds():
    for text in ('{"name":' * 50_000, "{" * 500_000, "Rank 1 Pid 1 on a device 0 [" * 50_000, " " * 500_000 + "x"):
        assert not nvbandwidth.parse(text).figures
        assert not nccl_tests.parse(text).figures


def test_json_that_was_cut_keeps_its_whole_tests():
    run = nvbandwidth_run(NVBANDWIDTH[: NVBANDWIDTH.index('"all_to_host_memcpy_ce"')])
    assert len(run.measured) == 24
    assert run.partial == "the recording's JSON is damaged or cut short"


# nccl-tests


def test_nccl_tests_gives_bus_and_algorithm_bandwidth():
    run = nccl_run()
    assert len(run.measured) == 22
    assert rate(run, ALL_REDUCE) == pytest.approx(348.89e9, rel=1e-4)
    assert by_key(run)[ALL_REDUCE].metric("time").value == pytest.approx(24620.6e-6)
    assert by_key(run)[ALL_REDUCE].samples.timer == "imported"
    assert by_key(run)[ALL_REDUCE].checks[0].passed
    assert run.environment["nccl"].value == "2.28.9"
    assert run.device.gpu_count == 2
    assert not run.partial


EIGHT = """\
# nThread 1 nGpus 8 minBytes 1048576 maxBytes 1048576 step: 2(factor) warmup iters: 5 iters: 20 validation: 1
#  size         count    type   redop     time   algbw   busbw  error     time   algbw   busbw  error
"""


def test_an_old_table_without_root_and_with_floating_errors():
    row = "  1048576  32768  float    26.21   40.01   35.01  0e+00    26.00   40.33   35.29  2e-07\n"
    text = f"./all_gather_perf\n{EIGHT}{row}"
    run = nccl_run(text)
    assert [r.key for r in run.measured] == [
        "all_gather/buffers=out_of_place,bytes=1048576,dtype=fp32,impl=nccl,protocol=nccl-tests,ranks=8",
        "all_gather/buffers=in_place,bytes=1048576,dtype=fp32,impl=nccl,protocol=nccl-tests,ranks=8",
    ]
    assert run.records[0].metric("rate").value == pytest.approx(35.01e9, rel=1e-3)
    assert run.partial == "the recording ends before the table's summary"
    text += "# Out of bounds values : 3 FAILED\n# Avg bus bandwidth    : 35.1\n"
    assert {r.outcome for r in nccl_run(text).records} == {"failed"}


def test_wrong_elements_are_a_failure_and_no_check_is_said():
    text = NCCL.replace("24692.1  347.88  347.88       0", "24692.1  347.88  347.88      12").replace(
        "24620.6  348.89  348.89       0", "24620.6  348.89  348.89     N/A"
    )
    out, in_place = nccl_run(text).records[-2:]
    assert (out.outcome, out.reason) == ("failed", "wrong result: 12 elements, by nccl-tests' own check")
    assert not out.checks[0].passed
    assert in_place.warnings[1] == "unchecked: nccl-tests ran without its check of results"


def test_a_row_whose_numbers_contradict_each_other_is_no_figure():
    out, in_place = nccl_run(NCCL.replace("24692.1", "2492.1 ")).records[-2:]
    assert (out.outcome, out.reason) == ("failed", "size, time and bandwidth of this row contradict each other")
    assert in_place.outcome == "measured"


def test_a_row_that_was_cut_keeps_what_is_whole_of_it():
    out, in_place = nccl_run(NCCL[: NCCL.index("24620.6") + 4]).records[-2:]
    assert (out.outcome, in_place.outcome) == ("measured", "failed")


def test_several_tables_and_repeats_in_one_text():
    second = NCCL.replace("all_reduce_perf", "reduce_scatter_perf")
    second = re.sub(r"(\d+\.\d\d)  +(\d+\.\d\d)(       0)", lambda m: f"{m[1]}  {float(m[2]) / 2:.2f}{m[3]}", second)
    run = nccl_run(NCCL + second + NCCL)
    assert {r.case.op for r in run.measured} == {"all_reduce", "reduce_scatter"}
    assert len(run.measured) == 44
    again = by_key(run)[ALL_REDUCE]
    assert len(again.samples.seconds) == 2
    assert again.warnings[0] == "imported: 2 figures, no samples"
    scattered = by_key(run)[ALL_REDUCE.replace("all_reduce", "reduce_scatter")]
    assert scattered.metric("rate").value == pytest.approx(348.89e9 / 2, rel=1e-4)


def test_a_table_that_does_not_name_its_collective_asks_for_it():
    text = "\n".join(line for line in NCCL.splitlines() if "_perf" not in line)
    with pytest.raises(HarnessError, match="Add --collective all_reduce"):
        nccl_run(text)
    assert nccl_run(text, "all_reduce").records == nccl_run().records


def test_the_ratio_of_bandwidths_tells_the_ranks_where_their_list_was_cut_away():
    text = NCCL[NCCL.index("#       size") :].replace("348.89  348.89", "348.89  610.56")
    text = text.replace("347.88  347.88", "347.88  608.79")
    record = nccl_run("all_reduce_perf\n" + text).records[-1]
    assert record.case.params["ranks"] == 8
    assert record.metric("rate").value == pytest.approx(610.56e9, rel=1e-3)


@pytest.mark.parametrize("version", [1, 2, 3])
def test_nccl_tests_json(version):
    content = {
        "version": version,
        "args": ["/home/someone/build/all_reduce_perf", "-g", "2"],
        "env": ["TOKEN=secret", 'X={"size":1}'],
        "nccl_version": 22809,
        "config": {"nthreads": 1, "ngpus": 2, "iterations": 20, "aggregated_iterations": 1, "graph": 0},
        "devices": [
            {"rank": 0, "pid": 12345, "hostname": "machine", "device_hex": "1b:00", "device_info": "NVIDIA H200"}
        ],
        "results": [
            {
                "size": 8589934592,
                "count": 2147483648,
                "type": "float",
                "redop": "sum",
                "root": "    -1",
                "out_of_place": None,
                "in_place": {"time": 24620.6, "alg_bw": 348.89, "bus_bw": 348.89, "nwrong": 0.0},
            }
        ],
        "average_bus_bandwidth": {"bandwidth": 348.89, "okay": "unchecked"},
    }
    whole = json.dumps(content, separators=(",", ":"))
    run = nccl_run(whole)
    assert [r.key for r in run.measured] == [ALL_REDUCE]
    assert rate(run, ALL_REDUCE) == pytest.approx(348.89e9, rel=1e-4)
    assert run.environment["nccl"].value == "2.28.9"
    cut = nccl_run(whole[: whole.index('"average')])
    assert cut.records == run.records
    assert cut.partial
    assert nccl_run(json.dumps(content, indent=2)).records == run.records
    assert "secret" not in json.dumps(store.compose(run))


# All of them


@pytest.mark.parametrize("text", [NVBANDWIDTH, TEXT, NCCL, NVBANDWIDTH + NCCL])
def test_nothing_private_reaches_the_run(text):
    recordings = [nvbandwidth.parse(text), nccl_tests.parse(text)]
    written = json.dumps(
        store.compose(build_run(recordings, gpu="NVIDIA H200", created_at="2026", label="mine"))
    ).lower()
    # A machine has `machine_info` in every file of pytest-benchmark's.
    assert not [word for word in PRIVATE if word in written.replace("machine_info", "").replace("on this machine", "")]


def test_an_imported_run_is_a_run_file_that_show_prints(tmp_path, capsys):
    recordings = [str(DATA / "nvbandwidth_2x_h200.json"), str(DATA / "nccl_tests_2x_h200.txt")]
    out = tmp_path / "new" / "run.json"
    assert exit_status(["import", *recordings, "--label", "rack 3", "-o", str(out)]) == ExitCode.DONE
    assert capsys.readouterr().out == f"{out}: 108 figures of 'NVIDIA H200'\n"
    run = store.load(out)
    assert (run.sheet.gpu, run.sheet.match, run.order.label) == ("H200 SXM 141GB", "exact", "rack 3")
    assert exit_status(["show", str(out)]) == ExitCode.DONE
    shown = capsys.readouterr().out
    assert "54.85 GB/s  one way" in shown
    assert "4.185 TB/s  read + written" in shown
    assert "348.9 GB/s" in shown


def test_an_import_repeated_is_the_same_run():
    assert nccl_run().run_id == nccl_run("[1,0]<stdout>:\n" + NCCL).run_id
    assert nccl_run().run_id != nvbandwidth_run().run_id


@pytest.mark.parametrize(
    ("content", "arguments", "words"),
    [
        ("hello\n", [], "holds no figure that can be imported. Expected nvbandwidth: its JSON"),
        ("", ["--from", "nccl-tests"], "Expected nccl-tests: its table"),
        (NCCL, ["--from", "nvbandwidth"], "Expected nvbandwidth: its JSON"),
        (NCCL, ["--gpu", "NVIDIA B200"], "the recording is of 'NVIDIA H200', --gpu names 'NVIDIA B200'"),
        (NCCL.replace("NVIDIA H200", "a GPU"), [], "names no GPU that is known here. Add --gpu"),
        (NCCL, ["--collective", "all_red"], "unknown collective 'all_red'"),
        (NCCL, ["--buffer-mib", "-1"], "--buffer-mib"),
        (NCCL, ["--from", "published"], "takes no file"),
    ],
)
def test_what_cannot_be_imported_is_one_line(content, arguments, words, tmp_path, capsys):
    file = tmp_path / "recording.txt"
    file.write_text(content)
    assert exit_status(["import", str(file), *arguments, "-o", str(tmp_path / "out.json")]) == ExitCode.USAGE
    said = capsys.readouterr().err
    assert words in said
    assert said.count("\n") == 1
    assert not (tmp_path / "out.json").exists()


def test_an_unknown_gpu_has_no_peaks_and_still_its_figures():
    run = build_run([nccl_tests.parse(NCCL.replace("NVIDIA H200", "NVIDIA X1"))], gpu="NVIDIA X1", created_at="2026")
    assert run.sheet.match == "none"
    assert len(run.measured) == 22


def test_a_file_that_cannot_be_read_or_is_too_large_is_refused(tmp_path, monkeypatch):
    with pytest.raises(HarnessError, match="cannot read"):
        read_text(tmp_path / "nothing")
    monkeypatch.setattr("harness.importers.recording.SIZE_LIMIT_BYTES", 2**20)
    (tmp_path / "large").write_bytes(b"x" * (2**20 + 1))
    with pytest.raises(HarnessError, match="larger than 1 MiB"):
        read_text(tmp_path / "large")


def test_a_gpu_that_the_recording_names_among_others_can_be_chosen():
    mixed = nccl_tests.parse(NCCL.replace("NVIDIA H200", "NVIDIA B200", 1))
    assert choose_gpu("NVIDIA B200", [mixed]) == "NVIDIA B200"
    with pytest.raises(HarnessError, match="names 'NVIDIA B200' and 'NVIDIA H200'"):
        choose_gpu("", [mixed])


def test_tags_are_taken_off_and_rows_left_alone():
    assert plain_lines(" 0     54.85     54.87\n[1,3]<stderr>:x\npod-0 | y\n[rank1]: z") == [
        " 0     54.85     54.87",
        "x",
        " y",
        " z",
    ]


GARBAGE = st.text(st.sampled_from(list('0123456789.{}[]",:eE-+ \n\t\r\x1b\x00N/Aé"abcGB')), max_size=60)


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data())
def test_a_damaged_recording_is_a_valid_run_or_one_line(data):
    text = data.draw(st.sampled_from([NVBANDWIDTH, TEXT, NCCL]))
    for _ in range(data.draw(st.integers(0, 4))):
        start = data.draw(st.integers(0, len(text)))
        length = data.draw(st.sampled_from([0, 0, 1, 5, 300]))
        text = text[:start] + data.draw(GARBAGE) + text[start + length :]
    text = text[: data.draw(st.integers(0, len(text)) | st.just(len(text)))]
    try:
        recordings = [nvbandwidth.parse(text), nccl_tests.parse(text)]
        run = build_run(recordings, gpu=choose_gpu("", recordings), created_at="2026")
    except HarnessError as error:
        assert "\n" not in str(error)
        return
    store.compose(run)
    for record in run.measured:
        assert record.metric("time").value > 0


def test_a_saved_import_loads_as_it_was(tmp_path):
    for number, run in enumerate(
        (nvbandwidth_run(TEXT), nccl_run(NCCL[:2000]), published.published_run("NVIDIA B200"))
    ):
        store.save(run, tmp_path / f"{number}.json")
        again = store.load(tmp_path / f"{number}.json")
        assert [(r.key, r.outcome, r.samples) for r in again.records] == [
            (r.key, r.outcome, r.samples) for r in run.records
        ]


# Published figures


@pytest.mark.parametrize("gpu", published.gpus())
def test_published_runs_are_the_ones_of_the_list(gpu, tmp_path):
    """To renew them: ofpeak import --from published -o results/published"""
    committed = store.load(ROOT / "results" / "published" / published.file_name(gpu))
    store.save(replace(published.published_run(gpu), suite_version=committed.suite_version), tmp_path / "run.json")
    assert store.load(tmp_path / "run.json") == committed


def test_every_published_figure_has_its_source_and_a_known_gpu():
    for gpu in published.gpus():
        run = published.published_run(gpu)
        assert (run.order.label, run.sheet.match) == ("published", "exact")
        assert len({r.key for r in run.records}) == len(run.measured)
        for record in run.measured:
            assert len(record.samples.seconds) == 1, record.key
            assert record.warnings[1].startswith("published: ")
            assert not [w for w in record.warnings if w.startswith("implausible")], record.key
    assert {path.name for path in (ROOT / "results" / "published").iterdir()} == {
        published.file_name(gpu) for gpu in published.gpus()
    }


def test_a_published_ring_is_held_against_the_link_and_nvls_is_not():
    run = published.published_run("NVIDIA B200")
    key = "all_reduce/algorithm={},bytes=8589934592,dtype=fp32,impl=nccl,protocol=nccl-tests,ranks=8"
    assert by_key(run)[key.format("ring")].metric("spec_ratio").value == pytest.approx(682.2 / 900)
    assert by_key(run)[key.format("nvls")].metric("spec_ratio").value is None


def test_published_figures_of_an_unknown_gpu_name_the_known_ones(tmp_path, capsys):
    out = str(tmp_path / "x.json")
    assert exit_status(["import", "--from", "published", "--gpu", "NVIDIA X1", "-o", out]) == ExitCode.USAGE
    assert "There are some for 'NVIDIA H200'" in capsys.readouterr().err
    assert exit_status(["import", "--from", "published", "-o", out]) == ExitCode.USAGE
    assert "Name a folder, or add --gpu." in capsys.readouterr().err
    assert exit_status(["import", "--from", "published", "--gpu", "NVIDIA H20-3e", "-o", out]) == ExitCode.DONE
    assert capsys.readouterr().out == f"{out}: 1 figure of 'NVIDIA H20-3e'\n"
