"""What binds a case: memory, compute or a link, and why nobody knows where nobody does."""

from dataclasses import replace

import pytest

from harness.bounds import find_bound
from harness.model import Case, Peak, PeakSheet, Telemetry, Work
from tests.hand_made_cases import (
    BUS,
    GEMM,
    LINKED,
    LOADED,
    READ_WRITE,
    SHEET,
    SKINNY,
    metrics_of,
    on_host_link,
    warnings,
)


def test_a_peak_that_an_exact_sheet_lacks_is_named():
    case = Case("gemm", {"dtype": "fp4"}, (Work(1.0, "FLOP", "fp4", "2mnk"),))
    assert metrics_of(case)["spec_ratio"].reason == "no peak 'fp4' is known for 'Test'"


def test_one_unknown_peak_leaves_the_roofline_open():
    sheet = PeakSheet("Test", "exact", peaks={"bf16": SHEET.peaks["bf16"]})
    assert metrics_of(GEMM, sheet=sheet)["spec_ratio"].reason == "no peak 'memory' is known for 'Test'"


def test_a_headline_without_a_peak_gives_its_own_reason():
    works = (Work(2.0, "B", None, "bus", no_peak="NVLS adds in the switch"), READ_WRITE)
    ratio = metrics_of(Case("all_reduce", {}, works))["spec_ratio"]
    assert (ratio.value, ratio.reason) == (None, "NVLS adds in the switch")


@pytest.mark.parametrize("value", [0.0, -1.0])
def test_a_peak_that_cannot_be_is_no_peak(value):
    """A file's peak of zero divided by zero."""
    sheet = replace(SHEET, peaks={**SHEET.peaks, "memory": replace(SHEET.peaks["memory"], value=value)})
    bound = find_bound(SKINNY, LOADED, sheet)
    assert (bound.peak, bound.reason) == (None, f"the peak 'memory' is {value:g} B/s, which cannot be")


def test_a_peak_in_another_unit_is_no_peak():
    case = Case("x", {}, (Work(2.0, "FLOP", "memory", ""),))
    assert metrics_of(case)["spec_ratio"].reason == "the peak 'memory' is in B/s, the work in FLOP"


def test_host_copies_use_the_negotiated_pcie_link():
    # Gen4 x16: 16 GT/s x 128/130 x 16 / 8 = 31.5 GB/s
    telemetry = Telemetry(pcie_generation=4, pcie_lanes=16)
    one_way = metrics_of(on_host_link(), telemetry=telemetry)["spec_ratio"]
    assert one_way.value == pytest.approx(4 / 31.508, rel=1e-4)
    both = metrics_of(on_host_link("host_link_both", 16e9), telemetry=telemetry)["spec_ratio"]
    assert both.value == pytest.approx(one_way.value)


def test_a_chip_to_chip_link_wins_over_pcie():
    sheet = PeakSheet("Superchip", "exact", peaks={"host_link": Peak(40e9, "B", "read", "data sheet")})
    telemetry = Telemetry(pcie_generation=4, pcie_lanes=16)
    assert metrics_of(on_host_link(), telemetry=telemetry, sheet=sheet)["spec_ratio"].value == 0.1
    both = on_host_link("host_link_both", 16e9)
    assert metrics_of(both, telemetry=telemetry, sheet=sheet)["spec_ratio"].value == 0.1


@pytest.mark.parametrize(
    ("gpu", "reason"),
    [
        ("GB200 (per GPU, NVL72/NVL4)", "the host is reached over NVLink-C2C, for which no figure is stored"),
        ("GB300 (per GPU, NVL72)", "the host is reached over NVLink-C2C, for which no figure is stored"),
        ("GB10 (DGX Spark)", "CPU and GPU share one memory: no link between them bounds a copy"),
    ],
)
def test_pcie_bounds_no_copy_of_a_gpu_that_reaches_its_host_another_way(gpu, reason):
    """A GB200's copies were held against its PCIe link: several times of it, and called implausible."""
    sheet = PeakSheet(gpu, "exact", peaks={})
    telemetry = Telemetry(pcie_generation=5, pcie_lanes=16)
    for peak in ("host_link", "host_link_both"):
        case = on_host_link(peak, 400e9)
        told = metrics_of(case, telemetry=telemetry, sheet=sheet)["spec_ratio"]
        assert (told.value, told.reason) == (None, reason)
        assert warnings(case, telemetry=telemetry, sheet=sheet) == ()


def test_an_unknown_host_link_is_no_share():
    unread = Telemetry(pcie_generation=4, missing={"pcie_lanes": "not supported"})
    assert metrics_of(on_host_link(), telemetry=unread)["spec_ratio"].reason == "not supported"
    unheard_of = Telemetry(pcie_generation=99, pcie_lanes=16)
    reason = metrics_of(on_host_link(), telemetry=unheard_of)["spec_ratio"].reason
    assert reason == "no peak is known for PCIe generation 99 with 16 lanes"


def test_the_bound_is_the_work_that_needs_the_longest_at_its_peak():
    assert find_bound(GEMM, LOADED, SHEET).name == "bf16"
    assert find_bound(SKINNY, LOADED, SHEET).name == "memory"


@pytest.mark.parametrize("algorithm", ["ring", "tree"])
def test_bus_bytes_of_rings_and_trees_are_held_against_the_link(algorithm):
    share = metrics_of(BUS, telemetry=Telemetry(algorithm=algorithm), sheet=LINKED)["spec_ratio"]
    assert (share.value, share.label) == (0.4, "nvlink")


@pytest.mark.parametrize(
    ("telemetry", "reason"),
    [
        (Telemetry(algorithm="nvls"), "NCCL chose nvls, whose links carry another share than the bus bytes count"),
        (Telemetry(algorithm="symmetric"), "NCCL chose symmetric, whose links"),
        (Telemetry(), "the algorithm that the library chose is not known"),
        (Telemetry(missing={"algorithm": "no debug file"}), "no debug file"),
        (Telemetry(algorithm="nvls_tree"), "NCCL chose nvls_tree, whose links"),
        (Telemetry(algorithm="ring", transport="shm"), "NCCL sent through shm, not from peer to peer alone"),
        (Telemetry(algorithm="ring", transport="net/ib+p2p"), "NCCL sent through net/ib+p2p, not from peer"),
    ],
)
def test_other_algorithms_and_unknown_ones_get_no_share_of_the_link(telemetry, reason):
    share = metrics_of(BUS, telemetry=telemetry, sheet=LINKED)["spec_ratio"]
    assert share.value is None
    assert share.reason.startswith(reason)


SWEPT = replace(BUS, params={**BUS.params, "nccl_algo": "Tree", "nccl_proto": "LL", "world": "own"})


@pytest.mark.parametrize(
    ("telemetry", "said", "judged"),
    [
        (Telemetry(algorithm="ring", protocol="ll"), "ring ll over unknown links", "It is no figure of that setting."),
        (Telemetry(algorithm="tree", protocol="simple", transport="p2p"), "tree simple over p2p", "It is no figure"),
        (Telemetry(algorithm="tree"), "tree over unknown links", "Whether that is what was asked is not known."),
    ],
)
def test_setting_that_nccl_did_not_follow_is_marked_and_gets_no_share(telemetry, said, judged):
    share = metrics_of(SWEPT, telemetry=telemetry, sheet=LINKED)["spec_ratio"]
    asked = f"NCCL_ALGO=Tree NCCL_PROTO=LL was asked, NCCL ran {said}"
    assert (share.value, share.reason) == (None, asked)
    (warning,) = warnings(SWEPT, telemetry=telemetry, sheet=LINKED)
    assert warning.startswith(f"other setting: {asked}. {judged}")


def test_setting_that_nccl_followed_gets_its_share_and_no_mark():
    telemetry = Telemetry(algorithm="tree", protocol="ll", transport="p2p")
    assert metrics_of(SWEPT, telemetry=telemetry, sheet=LINKED)["spec_ratio"].value == 0.4
    assert warnings(SWEPT, telemetry=telemetry, sheet=LINKED) == ()


def test_link_through_a_bridge_that_may_not_be_there_gives_no_share():
    bridged = replace(SHEET, peaks={"nvlink": Peak(1000.0, "B", "read", "sheet NVLink 4, 18 links, through a bridge.")})
    share = metrics_of(BUS, telemetry=Telemetry(algorithm="ring"), sheet=bridged)["spec_ratio"]
    assert share.reason == "whether the cards of this form have their NVLink bridge was not read"


def test_card_without_a_link_on_its_sheet_gives_no_share():
    share = metrics_of(BUS, telemetry=Telemetry(algorithm="ring"))["spec_ratio"]
    assert share.reason == "no peak 'nvlink' is known for 'Test'"


NETWORKED = replace(SHEET, peaks={"network": Peak(1000.0, "B", "read", "line rates"), **LINKED.peaks})
BETWEEN_HOSTS = replace(BUS, work=(Work(800.0, "B", "network", "bus"),))


def test_bus_bytes_between_hosts_are_held_against_the_network_where_a_ring_carries_them():
    share = metrics_of(BETWEEN_HOSTS, telemetry=Telemetry(algorithm="ring"), sheet=NETWORKED)["spec_ratio"]
    assert (share.value, share.label) == (0.4, "network")


@pytest.mark.parametrize("transport", ["", "net/ib", "net/ib/gdrdma+p2p"])
def test_bus_bytes_between_hosts_have_a_share_where_rank_0_uses_the_network_or_nobody_knows(transport):
    telemetry = Telemetry(algorithm="ring", transport=transport)
    assert metrics_of(BETWEEN_HOSTS, telemetry=telemetry, sheet=NETWORKED)["spec_ratio"].value == 0.4


@pytest.mark.parametrize("transport", ["p2p", "p2p+shm"])
def test_hosts_that_nvlink_joins_get_no_share_of_their_network(transport):
    """A ring over the NVLinks of one rack was held against the hosts' ports, which carried none of it."""
    telemetry = Telemetry(algorithm="ring", transport=transport)
    share = metrics_of(BETWEEN_HOSTS, telemetry=telemetry, sheet=NETWORKED)["spec_ratio"]
    assert (share.value, share.reason) == (
        None,
        f"rank 0 sends through {transport}, so that the network may not be what joins the hosts",
    )


@pytest.mark.parametrize("algorithm", ["tree", "nvls_tree", "collnet_chain"])
def test_hosts_of_a_tree_exchange_less_than_the_bus_bytes(algorithm):
    """Two hosts of eight under a tree would be told 188 % of what their ports carried."""
    share = metrics_of(BETWEEN_HOSTS, telemetry=Telemetry(algorithm=algorithm), sheet=NETWORKED)["spec_ratio"]
    assert share.reason == f"NCCL chose {algorithm}, whose links carry another share than the bus bytes count"


def test_copies_and_declared_algorithms_are_held_against_the_link_as_they_are():
    for params in ({"direction": "p2p"}, {"ranks": 2, "algorithm": "ring"}):
        share = metrics_of(replace(BUS, params=params), telemetry=Telemetry(), sheet=LINKED)["spec_ratio"]
        assert share.value == 0.4


PAIR_SHEET = PeakSheet(
    "H200 SXM 141GB", "exact", peaks={"nvlink": Peak(450.0, "B", "read", "NVLink 4, 18 links, one way.")}
)
PAIR_PARAMS = {"from": 0, "to": 1, "impl": "ce"}
PEER_COPY = Case("peer_copy", PAIR_PARAMS, (Work(800.0, "B", "peer_link", "one way"),))
PEER_COPIES = Case("peer_copy", PAIR_PARAMS, (Work(1600.0, "B", "peer_link_both", "both ways together"),))


@pytest.mark.parametrize(("case", "name"), [(PEER_COPY, "peer_link"), (PEER_COPIES, "peer_link_both")])
def test_copy_between_two_gpus_is_held_against_the_links_that_are_up(case, name):
    """18 of 25 B/s carry 450 B/s one way and 900 both; 800 and 1600 bytes in two seconds are 400 and 800."""
    told = metrics_of(case, telemetry=Telemetry(nvlink_links=18), sheet=PAIR_SHEET)["spec_ratio"]
    assert (told.value, told.label) == (pytest.approx(400 / 450), name)
    fewer = metrics_of(case, telemetry=Telemetry(nvlink_links=16), sheet=PAIR_SHEET)["spec_ratio"]
    assert fewer.value == 1.0


def test_more_than_the_links_that_are_up_carry_is_implausible():
    told = warnings(PEER_COPY, telemetry=Telemetry(nvlink_links=12), sheet=PAIR_SHEET)
    assert told[0].startswith("implausible: 400.0 B/s over peer_link whose peak is 300.0 B/s.")


@pytest.mark.parametrize(
    ("links", "sheet", "missing", "reason"),
    [
        (None, PAIR_SHEET, {"nvlink_links": "NVML says that no NVLink joins the two"}, "no NVLink joins the two"),
        (None, PAIR_SHEET, {}, "the number of NVLinks between the two was not measured"),
        (18, SHEET, {}, "no data sheet gives the rate of one NVLink of 'Test"),
        (18, PeakSheet(None, "none", "no entry for 'X'"), {}, "no entry for 'X'"),
    ],
)
def test_pair_whose_links_or_rate_nobody_knows_gets_no_share(links, sheet, missing, reason):
    telemetry = Telemetry(nvlink_links=links, missing=missing)
    share = metrics_of(PEER_COPY, telemetry=telemetry, sheet=sheet)["spec_ratio"]
    assert share.value is None
    assert reason in share.reason
