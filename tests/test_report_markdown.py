"""The summary as Markdown, compared whole."""

# ruff: noqa: E501 - a row of a Markdown table is one line

import re
from dataclasses import replace

from harness.report.markdown import escape, to_markdown
from harness.report.summary import summarize
from tests import hand_made


def test_a_run_becomes_tables():
    (summary,) = summarize([hand_made.full_run()], ["out/0001.json"])
    assert (
        to_markdown(summary)
        == """\
## ofpeak 0.1.0

- GPU: NVIDIA Test, 100 SMs, compute capability 9.0, 100 GiB
- software: driver 580.1, CUDA 13.0, torch 2.13.0, triton 3.7.1, NCCL 2.28.9
- power: limit 700 W (default 700 W), ECC on
- card: c0ffee
- run: profile quick, 2026-01-02T03:04:05Z
- ruler: not checked (schema 1)
- peaks: data sheet row 'Test SXM'
  - bf16 1000 TFLOP/s (unverified)
  - memory 4.000 TB/s
- units: dense peaks; SI rates (1 GB/s = 1e9 B/s); binary sizes (1 MiB = 2\\*\\*20 B)

### memory

Counted: read + write

| case | rate | ± 95 % | of spec | time a launch | MHz true / NVML | W | pJ per B | limited by |
| :--- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | :--- |
| `copy/bytes=4294967296,impl=torch` (4 GiB) | 3.000 TB/s | 0.10 % | 75.0 % | 2.000 ms | 1979 / 1980 | 600 | 200.0 | none |

- share of the traffic that L2 could serve: at most 1.0 %

### gemm

| case | rate | ± 95 % | of spec | at clock | cycles | MHz true / NVML | W | pJ per FLOP | limited by | notes |
| :--- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | :--- | :--- |
| `gemm/dtype=bf16,impl=torch,k=8192,m=8192,n=8192` | 670.0 TFLOP/s | 0.20 % | 67.0 % | 92.0 % | 2.200 M | 1343 / 1471 | 695 | 1.037 | power | \\~ ? ¹ |

- \\~ unsettled: power still moved
- ? unverified peak: 'bf16' was recalled
- ¹ 3 of 50 samples throttled

### collectives

| case | rate | ± 95 % | of spec | time a launch | MHz true / NVML | W | pJ per B | limited by |
| :--- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | :--- |
| `all_reduce/bytes=1073741824,dtype=bf16` (1 GiB) | 300.0 GB/s bus<br>150.0 GB/s algorithm | 0.10 % | – | 10.00 ms | – | – | – | – |

- no share of a peak (1 case): the algorithm is not known

### Not measured, and why

- failed, 1 case: wrong result: 10.0 dB, at least 30 dB asked
  - `gemm/dtype=bf16,impl=triton,k=8192,m=8192,n=8192`
- not applicable, 4 cases: fp8 needs compute capability 8.9
  - gemm/dtype=fp8\\_e4m3,impl=torch\\|triton,k=8192,m=8192,n=8192\\|8448

Run file: `out/0001.json`
"""
    )


def test_a_set_becomes_medians_and_spreads():
    (summary,) = summarize(hand_made.set_of_three(), ["s/1.json", "s/2.json", "s/3.json"])
    assert (
        to_markdown(summary)
        == """\
## ofpeak 0.1.0

- GPU: NVIDIA Test, 100 SMs, compute capability 9.0, 100 GiB
- software: driver 580.1, CUDA 13.0, torch 2.13.0, triton 3.7.1, NCCL 2.28.9
- power: limit 700 W (default 700 W), ECC on
- card: c0ffee
- runs: profile quick × 3; 2026-01-02T01:00:00Z to 2026-01-02T03:00:00Z; medians over runs
- ruler: checked in none of 3 runs (schema 1)
- peaks: data sheet row 'Test SXM'
  - memory 4.000 TB/s
- units: dense peaks; SI rates (1 GB/s = 1e9 B/s); binary sizes (1 MiB = 2\\*\\*20 B)

### memory

Counted: read + write

| case | rate | sd over runs | of spec | time a launch | MHz true / NVML | W | pJ per B | sd of pJ | limited by |
| :--- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | :--- |
| `copy/bytes=4294967296,impl=torch` (4 GiB) | 3.000 TB/s | 3.33 % | 75.0 % | 2.000 ms | 1979 / 1980 | 600 | 200.0 | 0.00 % | none |

- share of the traffic that L2 could serve: at most 1.0 %

3 run files in: `s`
"""
    )


def test_a_run_of_schema_2_becomes_wider_tables():
    run = hand_made.ruled_run(hand_made.watched_copy_record(), hand_made.watched_gemm_record())
    (summary,) = summarize([run], ["out/0001.json"])
    assert (
        to_markdown(summary)
        == """\
## ofpeak 0.1.0

- GPU: NVIDIA Test, 100 SMs, compute capability 9.0, 100 GiB
- software: driver 580.1, CUDA 13.0, torch 2.13.0, triton 3.7.1, NCCL 2.28.9
- power: limit 700 W (default 700 W), ECC on
- card: c0ffee
- run: profile quick, 2026-01-02T03:04:05Z
- ruler: ok: tick 32 ns, timer +11.6 ppm, gap 1.4 µs, spins +1.6 to +1.8 µs, tensor pipe 100.0 % (bf16), 100.0 % (fp8)
- peaks: data sheet row 'Test SXM'
  - bf16 1000 TFLOP/s (unverified)
  - memory 4.000 TB/s
- units: dense peaks; SI rates (1 GB/s = 1e9 B/s); binary sizes (1 MiB = 2\\*\\*20 B)

### memory

Counted: read + write

| case | rate | ± 95 % | of spec | time a launch | DRAM busy | MHz true / NVML | W | pJ per B | ± 95 % of pJ | limited by |
| :--- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | :--- |
| `copy/bytes=4294967296,impl=torch` (4 GiB) | 3.000 TB/s | 0.10 % | 75.0 % | 2.000 ms | 91.0 % | 1979 / 1980 | 600 | 200.0 | 0.50 % | none |

- share of the traffic that L2 could serve: at most 1.0 %
- pJ: ± is chance within the run; the board's sensor adds 5 % (between cards); idle with the context open draws 120 W, net of it pJ is 20 % lower here

### gemm

| case | rate | ± 95 % | of spec | at clock | of clock | cycles | tensor busy | DRAM busy | MHz true / NVML | W | pJ per FLOP | ± 95 % of pJ | limited by | notes |
| :--- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | :--- | :--- |
| `gemm/dtype=bf16,impl=torch,k=8192,m=8192,n=8192` | 670.0 TFLOP/s | 0.20 % | 67.0 % | 92.0 % | 73.2 % | 2.200 M | 91.8 % | 21.0 % | 1343 / 1471 | 695 | 1.037 | 0.20 % | power | \\~ ? ≠ ≈ ¹ |

- \\~ unsettled: power still moved
- ? unverified peak: 'bf16' was recalled
- ≠ energy check: the counter says 695 W, the instant field 668 W
- ≈ true clock: 3 SMs ran 2 % slower than the others
- ¹ 3 of 50 samples throttled

Run file: `out/0001.json`
"""
    )


def test_pipes_backticks_and_html_are_taken_literally():
    assert escape("a|b `c` <script>&") == "a\\|b \\`c\\` &lt;script&gt;&amp;"


def test_a_hostile_key_adds_no_column_and_no_element():
    record = replace(hand_made.gemm_record(), key="gemm/`|<img src=x>\n| a |", warnings=("`<b>|",))
    (summary,) = summarize([hand_made.gpu_run(record)])
    table = [line for line in to_markdown(summary).splitlines() if line.startswith("| ")]
    assert {len(re.findall(r"(?<!\\)\|", line)) for line in table} == {12}
    assert "<img" not in to_markdown(summary)
    assert "<b>" not in to_markdown(summary)
