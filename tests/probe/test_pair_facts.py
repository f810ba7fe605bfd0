"""What joins each two GPUs, by an NVML with several of them."""

import json
from types import SimpleNamespace

import pytest

from harness.model import to_plain
from harness.probe.nvml import open_nvml
from harness.probe.pair_facts import nvlinks_between, pair_facts
from tests.doubles import FakeNvmlError
from tests.several_gpus import SeveralGpus

P2P_NVLINK = 2


def address(bus):
    return SimpleNamespace(busId=f"00000000:{bus}:00.0".encode())


def gpu(links, up=None, leads=2, remote=None, bus="1B"):
    """What NVML tells of a GPU with so many links, those of `up` up; `leads` and `remote` of each link."""
    kinds = leads if isinstance(leads, list) else [leads] * links

    def kind(link):
        if kinds[link] is None:
            raise FakeNvmlError(3)
        return kinds[link]

    return {
        "fields": {91: links},
        "GetNvLinkState": lambda link: int(up is None or link in up),
        "GetNvLinkRemoteDeviceType": kind,
        "GetNvLinkRemotePciInfo": lambda link: address((remote or ["??"] * links)[link]),
        "GetPciInfo": lambda: address(bus),
    }


def several(each, p2p=lambda which: 0, **answers):
    library = SeveralGpus(list(each), {"GetTopologyCommonAncestor": 40, **answers}, {
        name: {"GetP2PStatus": lambda _, which: p2p(which), **told} for name, told in each.items()
    })  # fmt: skip
    nvml, _ = open_nvml(library)
    return list(nvml.gpus())


def between(each, **more):
    told = nvlinks_between(*several(each, **more)[:2])
    return told.value, told.status


def test_through_switches_the_gpu_with_fewer_links_up_bounds_the_pair():
    assert between({"a": gpu(18), "b": gpu(18, up=range(16))}) == (16, "ok")


def test_links_that_lead_to_other_gpus_are_not_counted():
    """Four GPUs in a ring have two links to each neighbour, and an NVLink to nobody else."""
    ours = gpu(4, leads=0, remote=["2B", "2B", "3B", "3B"], bus="1B")
    assert between({"a": ours, "b": gpu(4, leads=0, remote=["1B"] * 4, bus="2B")}) == (2, "ok")


@pytest.mark.parametrize(("leads", "remote"), [(None, None), (0, ["F0"] * 18)], ids=["untold", "addresses of a host"])
def test_where_nobody_tells_where_links_lead_all_that_are_up_bound_the_pair(leads, remote):
    both = [gpu(18, leads=leads, remote=remote, bus=bus) for bus in ("1B", "2B")]
    assert between(dict(zip("ab", both, strict=True))) == (18, "ok")


def refuse(_):
    raise FakeNvmlError(3)


@pytest.mark.parametrize(
    ("each", "p2p", "why"),
    [
        ({"a": gpu(18), "b": gpu(18)}, lambda which: 1 if which == P2P_NVLINK else 0, "no NVLink joins the two"),
        ({"a": gpu(18), "b": gpu(18)}, refuse, "Not Supported"),
        ({"a": gpu(0), "b": gpu(0)}, lambda _: 0, "this GPU has no NVLink"),
        ({"a": {}, "b": gpu(18)}, lambda _: 0, "Not Supported"),
        ({"a": gpu(18), "b": gpu(18) | {"GetNvLinkState": refuse}}, lambda _: 0, "Not Supported"),
        ({"a": gpu(18), "b": gpu(18, up=[])}, lambda _: 0, "no NVLink between the two is up"),
    ],
    ids=["over PCIe", "no status", "no links", "no number", "a state untold", "all down"],
)
def test_unknown_numbers_have_a_reason(each, p2p, why):
    value, status = between(each, p2p=p2p)
    assert value is None
    assert why in status


def test_facts_group_pairs_that_are_alike_and_store_no_address(tmp_path):
    each = {name: gpu(18, bus=bus) | {"GetNumaNodeId": node} for name, bus, node in
            (("a", "1B", 0), ("b", "2B", 0), ("c", "3B", 1))}  # fmt: skip
    each["c"]["GetNvLinkState"] = lambda link: int(link < 12)
    told = pair_facts(several(each), tmp_path)
    assert {name: fact.value for name, fact in told.items()} == {
        "pair_nvlinks": "18: 0-1; 12: 0-2 1-2",
        "pair_nvlinks_lead": "48 to switches",
        "pair_pcie": "on one NUMA node: 0-1 0-2 1-2",
        "pair_numa_nodes": "0, 0, 1",
    }
    assert {fact.role for fact in told.values()} == {"informative"}
    assert "00:00" not in json.dumps(to_plain(told))


def test_facts_that_nvml_does_not_tell_are_unknown_with_its_words(tmp_path):
    told = pair_facts(several({"a": {}, "b": {}}, p2p=refuse, GetTopologyCommonAncestor=FakeNvmlError(3)), tmp_path)
    assert (told["pair_nvlinks"].value, told["pair_nvlinks"].status) == (None, "Not Supported")
    assert (told["pair_nvlinks_lead"].value, told["pair_nvlinks_lead"].status) == (None, "Not Supported")
    assert (told["pair_pcie"].value, told["pair_pcie"].status) == (None, "Not Supported")
    assert told["pair_numa_nodes"].value == "unknown, unknown"


def test_one_gpu_has_no_pairs_and_a_gpu_that_nvml_does_not_list_leaves_them_unknown(tmp_path):
    gpus = several({"a": gpu(18), "b": gpu(18)})
    assert pair_facts(gpus[:1], tmp_path) == {}
    told = pair_facts([gpus[0], None], tmp_path)
    assert told["pair_nvlinks"].value is None
    assert told["pair_nvlinks"].status == "NVML lists 1 of the 2 GPUs that CUDA sees"
