"""The summary on a terminal, compared whole. Widths are fixed, colour is off."""

# ruff: noqa: E501 - a line of a wide terminal is one line

import io
from collections.abc import Sequence
from dataclasses import replace

import pytest
from rich.console import Console

from harness.model import Case, Fact, Metric, Order, Peak, Record, Run, Samples, Telemetry, Work
from harness.report.summary import summarize
from harness.report.terminal import print_summary
from tests import hand_made


def printed(runs: Sequence[Run], files: Sequence[str] = (), width: int = 100) -> str:
    out = io.StringIO()
    for summary in summarize(runs, files):
        print_summary(summary, Console(file=out, width=width, color_system=None))
    return out.getvalue()


def test_a_run_on_a_gpu_is_printed_whole():
    assert (
        printed([hand_made.full_run()], ["out/0001.json"])
        == """\
╭─ ofpeak 0.1.0 ─────────────────────────────────────────────────────────────────────╮
│ GPU       NVIDIA Test, 100 SMs, compute capability 9.0, 100 GiB                    │
│ software  driver 580.1, CUDA 13.0, torch 2.13.0, triton 3.7.1, NCCL 2.28.9         │
│ power     limit 700 W (default 700 W), ECC on                                      │
│ card      c0ffee                                                                   │
│ run       profile quick, 2026-01-02T03:04:05Z                                      │
│ ruler     not checked (schema 1)                                                   │
│ peaks     data sheet row 'Test SXM'                                                │
│           bf16 1000 TFLOP/s (unverified)                                           │
│           memory 4.000 TB/s                                                        │
│ units     dense peaks; SI rates (1 GB/s = 1e9 B/s); binary sizes (1 MiB = 2**20 B) │
╰────────────────────────────────────────────────────────────────────────────────────╯

memory  counted: read + write
                          of    time a     MHz true       pJ per  limited
        rate  ± 95 %    spec    launch       / NVML    W       B  by
copy/bytes=4294967296,impl=torch (4 GiB)
  3.000 TB/s  0.10 %  75.0 %  2.000 ms  1979 / 1980  600   200.0  none
  share of the traffic that L2 could serve: at most 1.0 %

gemm
                             of      at              MHz true       pJ per  limited
           rate  ± 95 %    spec   clock   cycles       / NVML    W    FLOP  by
gemm/dtype=bf16,impl=torch,k=8192,m=8192,n=8192
  670.0 TFLOP/s  0.20 %  67.0 %  92.0 %  2.200 M  1343 / 1471  695   1.037  power    ~ ? ¹
  ~  unsettled: power still moved
  ?  unverified peak: 'bf16' was recalled
  ¹  3 of 50 samples throttled

collectives
                                   of    time a  MHz true     pJ per  limited
        rate             ± 95 %  spec    launch    / NVML  W       B  by
all_reduce/bytes=1073741824,dtype=bf16 (1 GiB)
  300.0 GB/s  bus        0.10 %     –  10.00 ms         –  –       –  –
  150.0 GB/s  algorithm
  no share of a peak (1 case): the algorithm is not known

not measured, and why
  failed, 1 case: wrong result: 10.0 dB, at least 30 dB asked
    gemm/dtype=bf16,impl=triton,k=8192,m=8192,n=8192
  not applicable, 4 cases: fp8 needs compute capability 8.9
    gemm/dtype=fp8_e4m3,impl=torch|triton,k=8192,m=8192,n=8192|8448

run file: out/0001.json
"""
    )


def test_figures_of_several_runs_are_matched_by_what_they_are():
    """The second rate of one run was averaged with the second of another, which counted something else."""
    works = (hand_made.GEMM.work[0], Work(2e9, "B", "memory", "bytes"), Work(3e12, "FLOP", None, "padded"))
    case = replace(hand_made.GEMM, work=works)

    def run(number: int, bound: str) -> Run:
        rates = (
            hand_made.rate(number * 1e14, "FLOP/s", label="2mnk"),
            hand_made.rate(number * 1e11, "B/s", "rate.bytes", "bytes"),
            hand_made.rate(number * 3e14, "FLOP/s", "rate.padded", "padded"),
        )
        share = Metric("spec_ratio", 0.1, "", label=bound)
        return hand_made.gpu_run(
            Record(case.key, "gemm", case, "measured", metrics=(*rates, share)), run_id=f"r{number}"
        )

    for runs in ([run(1, "memory"), run(3, "bf16")], [run(3, "bf16"), run(1, "memory")]):
        ((row,),) = (table.rows for summary in summarize(runs) for table in summary.tables)
        found = {figure.label: figure.value for figure in row.figures}
        assert (found["2mnk"], found["padded"], found.get("bytes", 1e11)) == (2e14, 6e14, 1e11)


def test_a_run_of_schema_2_tells_its_ruler_both_clocks_and_what_joules_carry():
    run = hand_made.ruled_run(hand_made.watched_copy_record(), hand_made.watched_gemm_record())
    assert (
        printed([run], ["out/0001.json"], width=165)
        == """\
╭─ ofpeak 0.1.0 ──────────────────────────────────────────────────────────────────────────────────────────────────────────╮
│ GPU       NVIDIA Test, 100 SMs, compute capability 9.0, 100 GiB                                                         │
│ software  driver 580.1, CUDA 13.0, torch 2.13.0, triton 3.7.1, NCCL 2.28.9                                              │
│ power     limit 700 W (default 700 W), ECC on                                                                           │
│ card      c0ffee                                                                                                        │
│ run       profile quick, 2026-01-02T03:04:05Z                                                                           │
│ ruler     ok: tick 32 ns, timer +11.6 ppm, gap 1.4 µs, spins +1.6 to +1.8 µs, tensor pipe 100.0 % (bf16), 100.0 % (fp8) │
│ peaks     data sheet row 'Test SXM'                                                                                     │
│           bf16 1000 TFLOP/s (unverified)                                                                                │
│           memory 4.000 TB/s                                                                                             │
│ units     dense peaks; SI rates (1 GB/s = 1e9 B/s); binary sizes (1 MiB = 2**20 B)                                      │
╰─────────────────────────────────────────────────────────────────────────────────────────────────────────────────────────╯

memory  counted: read + write
                                                                  of    time a    DRAM     MHz true       pJ per  ± 95 %  limited
case                                            rate  ± 95 %    spec    launch    busy       / NVML    W       B   of pJ  by
copy/bytes=4294967296,impl=torch (4 GiB)  3.000 TB/s  0.10 %  75.0 %  2.000 ms  91.0 %  1979 / 1980  600   200.0  0.50 %  none
  share of the traffic that L2 could serve: at most 1.0 %
  pJ: ± is chance within the run; the board's sensor adds 5 % (between cards); idle with the context open draws 120 W, net of it pJ is 20 % lower here

gemm
                                                                            of      at      of              MHz true       pJ per  ± 95 %  limited
case                                                      rate  ± 95 %    spec   clock   clock   cycles       / NVML    W    FLOP   of pJ  by
gemm/dtype=bf16,impl=torch,k=8192,m=8192,n=8192  670.0 TFLOP/s  0.20 %  67.0 %  92.0 %  73.2 %  2.200 M  1343 / 1471  695   1.037  0.20 %  power    ~ ? ≠ ≈ ¹
  ~  unsettled: power still moved
  ?  unverified peak: 'bf16' was recalled
  ≠  energy check: the counter says 695 W, the instant field 668 W
  ≈  true clock: 3 SMs ran 2 % slower than the others
  ¹  3 of 50 samples throttled

run file: out/0001.json
"""
    )


def test_a_set_of_schema_2_tells_its_worst_ruler_and_the_spread_of_its_joules():
    runs = [
        hand_made.ruled_run(hand_made.watched_copy_record(), hand_made.watched_gemm_record()),
        hand_made.ruled_run(hand_made.watched_copy_record(3.1e12, 202e-12), run_id="r2", ruler=hand_made.RULER_OFF),
    ]
    assert (
        printed(runs, ["s/1.json", "s/2.json"], width=165)
        == """\
╭─ ofpeak 0.1.0 ──────────────────────────────────────────────────────────────────────────────────────────────────────────────────────────────╮
│ GPU       NVIDIA Test, 100 SMs, compute capability 9.0, 100 GiB                                                                             │
│ software  driver 580.1, CUDA 13.0, torch 2.13.0, triton 3.7.1, NCCL 2.28.9                                                                  │
│ power     limit 700 W (default 700 W), ECC on                                                                                               │
│ card      c0ffee                                                                                                                            │
│ runs      profile quick × 2; 2026-01-02T03:04:05Z to 2026-01-02T03:04:05Z; medians over runs                                                │
│ ruler     OFF in 1 of 2 runs, ok in 1: spin of 20 µs +5 µs (right: -200 ns to +3 µs): the host may have been busy; do not use these figures │
│ peaks     data sheet row 'Test SXM'                                                                                                         │
│           bf16 1000 TFLOP/s (unverified)                                                                                                    │
│           memory 4.000 TB/s                                                                                                                 │
│ units     dense peaks; SI rates (1 GB/s = 1e9 B/s); binary sizes (1 MiB = 2**20 B)                                                          │
╰─────────────────────────────────────────────────────────────────────────────────────────────────────────────────────────────────────────────╯

memory  counted: read + write
                                                      sd over      of    time a    DRAM     MHz true       pJ per   sd of  limited
case                                            rate     runs    spec    launch    busy       / NVML    W       B      pJ  by
copy/bytes=4294967296,impl=torch (4 GiB)  3.050 TB/s   2.32 %  76.2 %  1.968 ms  91.0 %  1979 / 1980  600   201.0  0.70 %  none
  share of the traffic that L2 could serve: at most 1.0 %
  pJ: sd is over the runs; the board's sensor adds 5 % (between cards); idle with the context open draws 120 W, net of it pJ is 20 % lower here

gemm
                                                                sd over      of      at      of              MHz true       pJ per  limited
case                                                      rate     runs    spec   clock   clock   cycles       / NVML    W    FLOP  by
gemm/dtype=bf16,impl=torch,k=8192,m=8192,n=8192  670.0 TFLOP/s    – (1)  67.0 %  92.0 %  73.2 %  2.200 M  1343 / 1471  695   1.037  power    ~ ? ≠ ≈ ¹
  ~  unsettled: power still moved
  ?  unverified peak: 'bf16' was recalled
  ≠  energy check: the counter says 695 W, the instant field 668 W
  ≈  true clock: 3 SMs ran 2 % slower than the others
  ¹  3 of 50 samples throttled

2 run files in: s
"""
    )


def test_what_gpm_says_is_shown_where_there_is_room():
    run = hand_made.ruled_run(hand_made.watched_gemm_record())
    narrow, wide = (lines_of("gemm", printed([run], width=width)) for width in (165, 175))
    assert "busy" not in "".join(narrow)
    assert wide[:3] == [
        "                                                                            of      at      of           tensor    DRAM     MHz true       pJ per  ± 95 %  limited",
        "case                                                      rate  ± 95 %    spec   clock   clock   cycles    busy    busy       / NVML    W    FLOP   of pJ  by",
        "gemm/dtype=bf16,impl=torch,k=8192,m=8192,n=8192  670.0 TFLOP/s  0.20 %  67.0 %  92.0 %  73.2 %  2.200 M  91.8 %  21.0 %  1343 / 1471  695   1.037  0.20 %  power    ~ ? ≠ ≈ ¹",
    ]


def test_a_run_without_peaks_telemetry_or_a_gpu_shows_dashes_and_why():
    run = hand_made.cpu_run(hand_made.cpu_copy_record(), hand_made.checked_record())
    assert (
        printed([run], ["out/0001.json"])
        == """\
╭─ ofpeak 0.1.0 ─────────────────────────────────────────────────────────────────────╮
│ device    Test CPU                                                                 │
│ software  torch 2.13.0, triton 3.7.1                                               │
│ run       profile smoke, 2026-01-02T03:04:05Z                                      │
│ ruler     not checked (schema 1)                                                   │
│ peaks     none: no data sheet for 'Test CPU'; peak ratios are left empty           │
│ units     dense peaks; SI rates (1 GB/s = 1e9 B/s); binary sizes (1 MiB = 2**20 B) │
╰────────────────────────────────────────────────────────────────────────────────────╯

memory  counted: read + write
                                                             of   time a MHz true   pJ per limited
case                                           rate ± 95 % spec   launch   / NVML W      B by
copy/bytes=4294967296,impl=torch (4 GiB) 10.00 GB/s 0.10 %    – 600.0 ms        – –      – –
  no share of a peak (1 case): no data sheet for 'Test CPU'; peak ratios are left empty
  no true clock, NVML clock, power, energy (1 case): no NVIDIA device

checked, not timed
  1 case: Triton's interpreter on a CPU: correctness only
    copy/bytes=4096,impl=triton

run file: out/0001.json
"""
    )


def test_a_set_shows_medians_and_the_spread_between_runs():
    assert (
        printed(hand_made.set_of_three(), ["s/1.json", "s/2.json", "s/3.json"])
        == """\
╭─ ofpeak 0.1.0 ───────────────────────────────────────────────────────────────────────────────╮
│ GPU       NVIDIA Test, 100 SMs, compute capability 9.0, 100 GiB                              │
│ software  driver 580.1, CUDA 13.0, torch 2.13.0, triton 3.7.1, NCCL 2.28.9                   │
│ power     limit 700 W (default 700 W), ECC on                                                │
│ card      c0ffee                                                                             │
│ runs      profile quick × 3; 2026-01-02T01:00:00Z to 2026-01-02T03:00:00Z; medians over runs │
│ ruler     checked in none of 3 runs (schema 1)                                               │
│ peaks     data sheet row 'Test SXM'                                                          │
│           memory 4.000 TB/s                                                                  │
│ units     dense peaks; SI rates (1 GB/s = 1e9 B/s); binary sizes (1 MiB = 2**20 B)           │
╰──────────────────────────────────────────────────────────────────────────────────────────────╯

memory  counted: read + write
              sd over      of    time a     MHz true       pJ per   sd of  limited
        rate     runs    spec    launch       / NVML    W       B      pJ  by
copy/bytes=4294967296,impl=torch (4 GiB)
  3.000 TB/s   3.33 %  75.0 %  2.000 ms  1979 / 1980  600   200.0  0.00 %  none
  share of the traffic that L2 could serve: at most 1.0 %

3 run files in: s
"""
    )


def test_an_empty_run_says_that_nothing_was_measured():
    assert (
        printed([hand_made.gpu_run()], ["e.json"])
        == """\
╭─ ofpeak 0.1.0 ─────────────────────────────────────────────────────────────────────╮
│ GPU       NVIDIA Test, 100 SMs, compute capability 9.0, 100 GiB                    │
│ software  driver 580.1, CUDA 13.0, torch 2.13.0, triton 3.7.1, NCCL 2.28.9         │
│ power     limit 700 W (default 700 W), ECC on                                      │
│ card      c0ffee                                                                   │
│ run       profile quick, 2026-01-02T03:04:05Z                                      │
│ ruler     not checked (schema 1)                                                   │
│ peaks     data sheet row 'Test SXM' (unused here)                                  │
│ units     dense peaks; SI rates (1 GB/s = 1e9 B/s); binary sizes (1 MiB = 2**20 B) │
╰────────────────────────────────────────────────────────────────────────────────────╯

nothing was measured

run file: e.json
"""
    )


def test_a_narrow_terminal_gets_sentences():
    run = hand_made.gpu_run(hand_made.copy_record(), hand_made.gemm_record())
    assert (
        printed([run], ["out/0001.json"], width=50)
        == """\
╭─ ofpeak 0.1.0 ─────────────────────────────────╮
│ GPU       NVIDIA Test, 100 SMs, compute        │
│           capability 9.0, 100 GiB              │
│ software  driver 580.1, CUDA 13.0, torch       │
│           2.13.0, triton 3.7.1, NCCL 2.28.9    │
│ power     limit 700 W (default 700 W), ECC on  │
│ card      c0ffee                               │
│ run       profile quick, 2026-01-02T03:04:05Z  │
│ ruler     not checked (schema 1)               │
│ peaks     data sheet row 'Test SXM'            │
│           bf16 1000 TFLOP/s (unverified)       │
│           memory 4.000 TB/s                    │
│ units     dense peaks; SI rates (1 GB/s = 1e9  │
│           B/s); binary sizes (1 MiB = 2**20 B) │
╰────────────────────────────────────────────────╯

memory  counted: read + write
copy/bytes=4294967296,impl=torch (4 GiB)
  3.000 TB/s, ± 0.10 %, 75.0 % of spec, 2.000 ms a
  launch, 1979 / 1980 MHz true / NVML, 600 W,
  200.0 pJ per B, limited by none
  share of the traffic that L2 could serve: at
     most 1.0 %

gemm
gemm/dtype=bf16,impl=torch,k=8192,m=8192,n=8192
  670.0 TFLOP/s, ± 0.20 %, 67.0 % of spec, 92.0 %
  at clock, 2.200 M cycles a launch, 1343 / 1471
  MHz true / NVML, 695 W, 1.037 pJ per FLOP,
  limited by power, ~ ? ¹
  ~  unsettled: power still moved
  ?  unverified peak: 'bf16' was recalled
  ¹  3 of 50 samples throttled

run file: out/0001.json
"""
    )


@pytest.mark.parametrize("width", [1, 2, 3, 5, 8, 13, 21, 34, 55, 79, 80, 81, 99, 120, 160, 300])
def test_no_width_cuts_a_key(width: int):
    squeezed = "".join(printed([hand_made.full_run()], width=width).split())
    for key in (hand_made.COPY.key, hand_made.GEMM.key, hand_made.gemm_case(impl="triton").key):
        assert key in squeezed


@pytest.mark.parametrize("width", [60, 80, 100, 160])
def test_lines_of_a_table_fit_the_terminal(width: int):
    assert max(map(len, printed([hand_made.full_run()], width=width).splitlines())) <= width


def test_hostile_text_moves_no_cursor_and_is_no_markup():
    hostile = "[red]\x1b[2J\r\n\u202e[/red]:smile:"
    record = replace(
        hand_made.gemm_record(),
        key=f"gemm/{hostile}",
        family=hostile,
        warnings=(f"odd{hostile}", f"starved: {hostile}"),
    )
    failed = hand_made.without_figure(hand_made.COPY, hostile, "failed", hostile)
    run = replace(
        hand_made.gpu_run(record, failed, created_at=hostile),
        suite_version=hostile,
        partial=hostile,
        device=replace(hand_made.GPU, name=hostile),
        environment={"driver": Fact(hostile), "card": Fact(hostile)},
        order=Order(profile=hostile, only=(hostile,)),
    )
    out = io.StringIO()
    for summary in summarize([run], [hostile]):
        print_summary(summary, Console(file=out, width=400, force_terminal=True, color_system=None))
    text = out.getvalue()
    assert not {c for c in text if not c.isprintable()} - {"\n"}
    assert text.count("[red]\\x1b[2J \\u202e[/red]:smile:") == 14


def test_runs_of_two_cards_are_never_one_median():
    first, second, _ = hand_made.set_of_three()
    other = replace(second, environment={**second.environment, "card": Fact("another")})
    assert [summary.runs for summary in summarize([first, other])] == [1, 1]


def test_the_bytes_of_a_gemm_appear_only_where_they_bind():
    record = hand_made.gemm_record()
    moved = hand_made.rate(1e12, name="rate.once", label="operands once")
    by_compute = replace(record, metrics=(*record.metrics, moved))
    assert "operands once" not in printed([hand_made.gpu_run(by_compute)])
    others = tuple(m for m in by_compute.metrics if m.name != "spec_ratio")
    by_memory = replace(record, metrics=(*others, Metric("spec_ratio", 0.25, "", label="memory")))
    text = printed([hand_made.gpu_run(by_memory)], width=160)
    assert "1.000 TB/s  operands once" in text
    assert "25.0 % memory" in text


def with_metric(record: Record, metric: Metric) -> Record:
    """The record with that metric in place of its own of the same name."""
    return replace(record, metrics=(*(m for m in record.metrics if m.name != metric.name), metric))


def lines_of(table: str, text: str) -> list[str]:
    """The lines of one table, without its title."""
    lines = [*text.splitlines(), ""]
    first = next(i for i, line in enumerate(lines) if line.startswith(table)) + 1
    return lines[first : lines.index("", first)]


def test_energy_above_a_hundred_thousand_picojoules_is_told_in_si_steps():
    energies_j = (99_990e-12, 0.1e-6, 3.4e-6, 200e-6)
    records = [
        replace(
            with_metric(hand_made.copy_record(), Metric("energy_per_work", energy_j, "J/B")),
            key=f"copy/set={n}",
        )
        for n, energy_j in enumerate(energies_j)
    ]
    assert lines_of("memory", printed([hand_made.gpu_run(*records)])) == [
        "                                            of    time a     MHz true        pJ per  limited",
        "case                      rate  ± 95 %    spec    launch       / NVML    W        B  by",
        "copy/set=0 (4 GiB)  3.000 TB/s  0.10 %  75.0 %  2.000 ms  1979 / 1980  600    99990  none",
        "copy/set=1 (4 GiB)  3.000 TB/s  0.10 %  75.0 %  2.000 ms  1979 / 1980  600  100.0 k  none",
        "copy/set=2 (4 GiB)  3.000 TB/s  0.10 %  75.0 %  2.000 ms  1979 / 1980  600  3.400 M  none",
        "copy/set=3 (4 GiB)  3.000 TB/s  0.10 %  75.0 %  2.000 ms  1979 / 1980  600  200.0 M  none",
        "  share of the traffic that L2 could serve: at most 1.0 %",
    ]


def test_energy_that_other_work_would_falsify_is_a_dash_with_its_reason():
    records = [
        replace(
            with_metric(
                hand_made.copy_record(),
                Metric(
                    "energy_per_work",
                    None,
                    "J/B",
                    reason=f"launches fill only {percent} % of the window in which power was read",
                ),
            ),
            key=f"copy/set={percent}",
        )
        for percent in (9, 84, 31)
    ]
    assert lines_of("memory", printed([hand_made.gpu_run(*records)])) == [
        "                                             of    time a     MHz true       pJ per  limited",
        "case                       rate  ± 95 %    spec    launch       / NVML    W       B  by",
        "copy/set=9 (4 GiB)   3.000 TB/s  0.10 %  75.0 %  2.000 ms  1979 / 1980  600       –  none",
        "copy/set=84 (4 GiB)  3.000 TB/s  0.10 %  75.0 %  2.000 ms  1979 / 1980  600       –  none",
        "copy/set=31 (4 GiB)  3.000 TB/s  0.10 %  75.0 %  2.000 ms  1979 / 1980  600       –  none",
        "  no energy (3 cases): launches fill only 9 to 84 % of the window in which power was read",
        "  share of the traffic that L2 could serve: at most 1.0 %",
    ]


def test_equal_rates_share_a_line():
    """Over two ranks a ring's bus bytes are the buffer's: both rates stood on lines of their own, twice the same."""
    record = with_metric(hand_made.all_reduce_record(), hand_made.rate(300e9, name="rate.algorithm", label="algorithm"))
    assert lines_of("collectives  counted: bus = algorithm", printed([hand_made.gpu_run(record)])) == [
        "                        of    time a  MHz true     pJ per  limited",
        "        rate  ± 95 %  spec    launch    / NVML  W       B  by",
        "all_reduce/bytes=1073741824,dtype=bf16 (1 GiB)",
        "  300.0 GB/s  0.10 %     –  10.00 ms         –  –       –  –",
        "  no share of a peak (1 case): the algorithm is not known",
    ]
    four = replace(hand_made.all_reduce_record(), key="all_reduce/ranks=4")
    assert lines_of("collectives", printed([hand_made.gpu_run(replace(record, key="all_reduce/ranks=2"), four)])) == [
        "                                                               of   time a MHz true   pJ per limited",
        "case                             rate                 ± 95 % spec   launch   / NVML W      B by",
        "all_reduce/ranks=2 (1 GiB) 300.0 GB/s bus = algorithm 0.10 %    – 10.00 ms        – –      – –",
        "all_reduce/ranks=4 (1 GiB) 300.0 GB/s bus             0.10 %    – 10.00 ms        – –      – –",
        "                           150.0 GB/s algorithm",
        "  no share of a peak (2 cases): the algorithm is not known",
    ]


def test_the_header_names_the_pcie_link_that_copies_are_held_against():
    """Shares of the host link stood in the table while the header did not say of what."""
    case = Case("memcpy", {"direction": "h2d"}, (Work(32e9, "B", "host_link", "one way"),))
    # Gen1 x8: 2.5 GT/s x 8/10 x 8 / 8 = 2 GB/s
    link = Telemetry(pcie_generation=1, pcie_lanes=8)
    record = replace(hand_made.copy_record(), key=case.key, case=case, telemetry=link)
    text = printed([hand_made.gpu_run(hand_made.copy_record(), record)])
    assert "│           memory 4.000 TB/s, host_link 2.000 GB/s (PCIe as negotiated) " in text


def test_the_header_names_the_nvlinks_that_copies_between_gpus_are_held_against():
    nvlink = Peak(450e9, "B", "read", "data sheet")
    sheet = replace(hand_made.SHEET, gpu="H200 SXM 141GB", peaks={**hand_made.SHEET.peaks, "nvlink": nvlink})
    case = Case("peer_copy", {"from": 0, "to": 1}, (Work(32e9, "B", "peer_link", "one way"),))
    other = replace(case, params={"from": 0, "to": 2})
    records = [
        replace(hand_made.copy_record(), key=c.key, case=c, telemetry=Telemetry(nvlink_links=links))
        for c, links in ((case, 18), (other, 12))
    ]
    text = printed([replace(hand_made.gpu_run(*records), sheet=sheet)])
    assert "peer_link (18 NVLinks) 450.0 GB/s, peer_link (12 NVLinks) 300.0 GB/s " in text


def test_what_nccl_chose_what_the_host_pays_and_how_far_ranks_are_apart_stand_beside():
    record = hand_made.all_reduce_record()
    chosen = replace(record, telemetry=Telemetry(algorithm="ring", protocol="simple", channels=24))
    chosen = with_metric(chosen, Metric("host_time", 2e-6, "s", "lower"))
    chosen = with_metric(chosen, hand_made.ratio("rank_spread", 0.021))
    lines = lines_of("collectives", printed([hand_made.gpu_run(chosen)], width=150))
    heads, figures = lines[1].split(), lines[2].split()
    assert heads[heads.index("launch") :][:4] == ["launch", "a", "launch", "spread"]
    assert figures[-10:-4] == ["10.00", "ms", "2.000", "µs", "2.1", "%"]
    assert lines[-1] == "  NCCL chose ring simple (1 case)"


@pytest.mark.parametrize(
    ("seconds", "why"),
    [
        ((0.002, 0.002), "2 samples; 4 are needed"),
        ((0.001, 0.001, 0.001, 0.1), "samples differ so much that it would reach down to no time at all"),
    ],
)
def test_a_rate_without_an_interval_says_why(seconds: tuple[float, ...], why: str):
    """A dash stood under ± 95 %, and no line below the table told of it."""
    samples = Samples(seconds, 10, 10 * sum(seconds), "events", "stream")
    bare = replace(hand_made.rate(3e12), low=None, high=None)
    record = replace(hand_made.copy_record(), samples=samples, metrics=(bare,))
    (table,) = summarize([hand_made.gpu_run(record)])[0].tables
    assert table.remarks[0] == f"no ± 95 % (1 case): {why}"
    both = summarize([hand_made.gpu_run(record), hand_made.gpu_run(record, run_id="r2")])[0].tables
    assert not any("95" in remark for remark in both[0].remarks)


def test_a_latency_without_a_p99_says_why():
    why = "52 samples; 100 are needed for a 99th percentile"
    case = Case("barrier", {}, (), kind="latency")
    metrics = (hand_made.time(0.001), Metric("time_p50", 0.001, "s"), Metric("time_p99", None, "s", reason=why))
    record = replace(hand_made.copy_record(), key=case.key, case=case, metrics=metrics)
    (table,) = summarize([hand_made.gpu_run(record)])[0].tables
    assert table.remarks[0] == f"no p99 (1 case): {why}"
