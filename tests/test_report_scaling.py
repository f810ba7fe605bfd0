"""The plot of collectives over the number of ranks: what is joined, what is not, and what its title says."""

from dataclasses import replace

from harness.model import Case, Fact, Record, Work
from harness.report.page import render_page
from harness.report.scaling import lines_of, scaling_plots
from harness.report.views import Source, views_of
from tests import hand_made, page_runs

GIB = 2**30


def collective(ranks: int, rate_bytes_per_s: float, size_bytes: int = GIB, op: str = "all_reduce", **params) -> Record:
    case = Case(
        op,
        {"bytes": size_bytes, "dtype": "fp32", "impl": "nccl", "ranks": ranks, "launch": "queued", **params},
        (Work(float(size_bytes), "B", None, "bus", no_peak="the algorithm is not known"),),
        defaults={"launch": "queued"},
    )
    seconds = size_bytes / rate_bytes_per_s
    return page_runs._measured("collectives", case, seconds, hand_made.rate(rate_bytes_per_s, label="bus"))


def source(label: str, *records: Record, driver: str = "1", cards: str = "") -> Source:
    run = hand_made.ruled_run(*records, run_id=label)
    facts = {"driver": Fact(driver), "card": Fact(cards or label)}
    return Source((replace(run, environment={**run.environment, **facts}),), (f"{label}.json",), label)


def plots_of(*sources: Source):
    return scaling_plots(views_of(sources))


def test_lines_join_the_numbers_of_ranks_of_several_sets():
    large, small = plots_of(
        source("eight", collective(8, 360e9), collective(8, 1e6, 8)),
        source("two", collective(2, 400e9), collective(2, 4e6, 8)),
        source("four", collective(4, 380e9), collective(4, 2e6, 8)),
    )
    assert large.title == "all_reduce fp32 1 GiB nccl over 8 ranks has 90.0 % of its bus bandwidth over 2"
    assert small.title == "all_reduce fp32 8 B nccl takes 8.000 µs over 8 ranks, 2.000 µs over 2"
    (bandwidth,), (time,) = large.traces, small.traces
    assert (bandwidth["x"], bandwidth["y"]) == ([2, 4, 8], [400.0, 380.0, 360.0])
    assert (time["x"], time["y"]) == ([2, 4, 8], [2.0, 4.0, 8.0])
    assert [row[:4] for row in large.table.rows] == [
        ("two", "all_reduce/bytes=1073741824,dtype=fp32,impl=nccl,ranks=2", 2.0, GIB),
        ("four", "all_reduce/bytes=1073741824,dtype=fp32,impl=nccl,ranks=4", 4.0, GIB),
        ("eight", "all_reduce/bytes=1073741824,dtype=fp32,impl=nccl,ranks=8", 8.0, GIB),
    ]
    assert [row[7] for row in large.table.rows] == [100.0, 95.0, 90.0]
    assert [row[8] for row in small.table.rows] == [2.0, 4.0, 8.0]


def test_lines_of_several_gpu_models_say_whose_they_are():
    """A title told one card's bandwidth over ranks, beside another's line, and no word of either."""
    first = [source(f"a{n}", collective(n, 1e9 * n)) for n in (2, 4)]
    others = [source(f"b{n}", collective(n, 2e9 * n)) for n in (2, 4)]
    device = replace(first[0].runs[0].device, name="NVIDIA Other")
    others = [replace(other, runs=(replace(other.runs[0], device=device),)) for other in others]
    (plot,) = plots_of(*first, *others)
    assert plot.title == "Test: all_reduce fp32 1 GiB nccl over 4 ranks has 200.0 % of its bus bandwidth over 2"
    assert [trace["name"] for trace in plot.traces] == [
        "Test: all_reduce fp32 1 GiB nccl",
        "Other: all_reduce fp32 1 GiB nccl",
    ]


def test_each_line_is_of_its_largest_size_and_small_messages_have_no_bandwidth():
    sizes = (8, 64 * 1024, 2**20, GIB)
    sets = [source(str(n), *(collective(n, 1e9 + size, size) for size in sizes)) for n in (2, 4)]
    large, small = plots_of(*sets)
    assert [trace["name"] for trace in large.traces] == ["all_reduce fp32 1 GiB nccl"]
    assert [trace["name"] for trace in small.traces] == ["all_reduce fp32 8 B nccl"]
    assert sorted({row[3] for row in large.table.rows}) == [2**20, GIB]
    assert sorted({row[3] for row in small.table.rows}) == [8, 64 * 1024]


def test_one_number_of_ranks_is_no_scaling():
    assert plots_of(source("two", collective(2, 400e9)), source("again", collective(2, 390e9))) == ()
    assert plots_of(page_runs.full_source()) == ()


def test_what_differs_in_more_than_ranks_is_not_joined():
    two, four = source("two", collective(2, 400e9)), collective(4, 380e9)
    assert plots_of(two, source("four", four, driver="2")) == ()
    for other in ({"launch": "graph"}, {"hosts": 2}, {"op": "all_gather"}, {"size_bytes": GIB // 2}):
        assert plots_of(two, source("four", collective(**{"ranks": 4, "rate_bytes_per_s": 380e9} | other))) == ()
    assert len(plots_of(two, source("four", four))) == 1


def test_sizes_of_whole_parts_are_one_size():
    """An all-gather over 3 ranks has 2 B less than one over 2."""
    views = views_of(
        [
            source("two", collective(2, 3e11, 2**27, "all_gather")),
            source("three", collective(3, 2e11, 2**27 - 2, "all_gather")),
        ]
    )
    (line,) = lines_of(views)
    assert [station.ranks for station in line.stations] == [2, 3]


def test_of_several_sets_over_as_many_ranks_the_median_is_drawn_and_all_are_in_the_table():
    rates = {"a": 390e9, "b": 410e9, "c": 400e9}
    (plot,) = plots_of(
        *(source(label, collective(2, rate)) for label, rate in rates.items()), source("four", collective(4, 200e9))
    )
    assert plot.traces[0]["y"] == [400.0, 200.0]
    assert [row[0] for row in plot.table.rows] == ["a", "c", "b", "four"]


def test_ranks_that_are_no_number_are_left_out():
    assert plots_of(source("two", collective(2, 4e11)), source("odd", collective("four", 4e11))) == ()


def test_hostile_labels_and_the_page():
    sources = [source(page_runs.ATTACK, collective(2, 4e11)), source("four", collective(4, 3e11))]
    page = render_page(sources)
    assert "over 4 ranks has 75.0 % of its bus bandwidth over 2" in page
    assert "<script>window.hacked" not in page
