"""The fastest of NCCL's settings: from records of known times to the table, compared whole."""

import math
from dataclasses import replace

import pytest
from rich.console import Console

from harness.model import Case, Record, Run, Samples, Telemetry, Work
from harness.nccl_sweep import find_fastest
from harness.report.nccl_sweep import sweep_sections
from harness.report.sections import print_sections, to_markdown
from harness.statistics import log_ratio_interval
from tests import hand_made

DEFAULTS = {"nccl_algo": "default", "nccl_proto": "default"}
TREE = {"nccl_algo": "Tree", "nccl_proto": "LL"}
RING = {"nccl_algo": "Ring", "nccl_proto": "Simple"}
NOISE = (0.999, 0.999, 1.001, 1.001)


def record(size: int, time_us: float, setting: dict[str, str], ran: str, noise: tuple[float, ...] = NOISE) -> Record:
    """One setting at one size: 20 samples around that time, and what NCCL ran."""
    params = {"bytes": size, "dtype": "fp32", "impl": "nccl", "ranks": 2, "launch": "graph", "world": "own"}
    case = Case("all_reduce", {**params, **DEFAULTS, **setting}, (Work(size, "B", "nvlink", "bus"),), defaults=DEFAULTS)
    seconds = tuple(time_us * 1e-6 * factor for factor in noise) * 5
    algorithm, protocol = ran.split()
    return Record(
        case.key,
        "nccl_sweep",
        case,
        "measured",
        samples=Samples(seconds, 50, 50 * sum(seconds), "cuda_event", "graph"),
        telemetry=Telemetry(algorithm=algorithm, protocol=protocol, transport="p2p"),
    )


def swept(tree_us: float = 8.0, ring_us: float = 16.0) -> Run:
    """Tree is faster at 8 B, the default at 1 GiB, and a third setting was not followed."""
    return hand_made.gpu_run(
        record(8, 10.0, {}, "ring ll"),
        record(2**30, 3000.0, {}, "ring simple"),
        record(8, tree_us, TREE, "tree ll"),
        record(2**30, 6000.0, TREE, "tree ll"),
        record(8, ring_us, RING, "ring simple"),
        record(2**30, 3000.1, RING, "ring simple"),
        record(8, 1.0, {"nccl_proto": "LL128"}, "ring simple"),
    )


def test_fastest_setting_that_was_followed_is_found_at_each_size():
    (sweep,) = find_fastest([swept()])
    assert sweep.title == "all_reduce, dtype=fp32, impl=nccl, ranks=2, launch=graph"
    small, large = sweep.rows
    assert (small.size_bytes, small.setting, small.ran) == (8, "NCCL_ALGO=Tree NCCL_PROTO=LL", "ring ll")
    assert small.gain == pytest.approx(1.25)
    assert small.is_told_apart
    assert (large.setting, large.gain, large.interval) == ("default", 1.0, None)


def test_setting_that_was_not_followed_is_left_out_however_fast():
    (sweep,) = find_fastest([swept()])
    assert sweep.settings == 3
    assert sweep.left_out == (("NCCL_PROTO=LL128 was asked, NCCL ran ring simple over p2p", 1),)


def test_several_runs_are_compared_run_by_run():
    """Both sides of a run share what that process and card were like; the interval is of the runs' ratios."""
    runs = [swept(tree_us=us) for us in (8.0, 8.0, 8.0)]
    (sweep,) = find_fastest(runs)
    row = sweep.rows[0]
    assert row.gain == pytest.approx(1.25)
    assert row.interval is not None
    assert row.interval.low == pytest.approx(1.25) == row.interval.high
    (sweep,) = find_fastest([swept(tree_us=us) for us in (8.0, 12.0, 9.9)])
    assert not sweep.rows[0].is_told_apart


def test_run_without_the_default_gives_times_and_no_ratio():
    run = swept()
    alone = replace(run, records=tuple(r for r in run.records if r.case.params["nccl_algo"] == "Tree"))
    (sweep,) = find_fastest([alone])
    assert [(row.default_s, row.gain, row.interval) for row in sweep.rows] == [(None, None, None)] * 2


def test_ordinary_collectives_are_no_sweep():
    assert find_fastest([hand_made.full_run()]) == ()
    assert sweep_sections([hand_made.full_run()]) == ()


def test_more_settings_make_the_interval_wider():
    default = [record(8, 10.0, {}, "ring ll")]
    others = [record(8, 9.0 + n / 10, {"nccl_algo": "Tree", "nccl_proto": f"P{n}"}, f"tree p{n}") for n in range(6)]
    few, many = (find_fastest([hand_made.gpu_run(*default, *others[:n])])[0].rows[0].interval for n in (1, 6))
    assert few is not None and many is not None
    assert many.high - many.low > few.high - few.low


def test_interval_of_one_run_is_that_of_both_sides_together():
    noisy, quiet = (10.2, 10.2, 9.8, 9.8) * 5, (5.0,) * 20
    alone = log_ratio_interval([(noisy, quiet)])
    both = log_ratio_interval([(noisy, noisy)])
    assert alone is not None and both is not None
    assert (alone.low + alone.high) / 2 == pytest.approx(math.log(2.0))
    assert both.high - both.low == pytest.approx(math.sqrt(2) * (alone.high - alone.low))
    assert log_ratio_interval([((1.0,), (1.0,))]) is None


def printed(runs: list[Run], width: int = 120) -> str:
    console = Console(width=width, markup=False, color_system=None)
    with console.capture() as captured:
        print_sections(sweep_sections(runs), console)
    return captured.get()


def test_table_has_the_default_beside_the_fastest_and_the_ratio():
    assert (
        "\n" + printed([swept()])
        == """
NCCL's fastest setting by size  of 3 settings: all_reduce, dtype=fp32, impl=nccl, ranks=2, launch=graph
                                                                             default
size    default  NCCL ran     fastest setting                   time  / over fastest
8 B    10.00 µs  ring ll      NCCL_ALGO=Tree NCCL_PROTO=LL  8.000 µs   1.250 ± 0.002  faster in this run
1 GiB  3.000 ms  ring simple  default                       3.000 ms               –  NCCL's own choice
  ± is the 95 % interval within this run, for all 3 settings at once; processes differ by more, which several runs show.
  left out (1 size): NCCL_PROTO=LL128 was asked, NCCL ran ring simple over p2p
"""
    )


def test_markdown_holds_the_same_digits():
    assert "| 8 B | 10.00 µs | ring ll | NCCL\\_ALGO=Tree NCCL\\_PROTO=LL | 8.000 µs |" in to_markdown(
        sweep_sections([swept()])
    )


def test_runs_of_two_machines_are_two_tables():
    other = replace(swept(), device=replace(hand_made.GPU, name="NVIDIA Other"))
    subtitles = [section.subtitle for section in sweep_sections([swept(), other])]
    assert [subtitle.rpartition(", on ")[2] for subtitle in subtitles] == ["NVIDIA Test", "NVIDIA Other"]
