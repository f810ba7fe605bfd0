"""A GPU's connections as facts: PCIe at rest, NVLink, fabric, neighbours."""

import json
from types import SimpleNamespace

import pytest

from harness.model import to_plain
from harness.probe import host
from harness.probe.card_facts import card_of
from harness.probe.link_facts import AT_REST, fabric_health, fabric_state, link_facts
from harness.probe.nvml import open_nvml
from tests.doubles import FakeNvml, FakeNvmlError
from tests.several_gpus import SeveralGpus

FABRIC = {"status": 0, "state": 3, "healthMask": 0, "healthSummary": 0}


def facts_of(library, root=None, index=0):
    nvml, _ = open_nvml(library)
    arguments = () if root is None else (root,)
    return link_facts(card_of(list(nvml.gpus())[index]), nvml, *arguments)


def test_the_pcie_link_at_rest_is_informative_and_says_so():
    answers = {"GetCurrPcieLinkGeneration": 1, "GetCurrPcieLinkWidth": 16, "GetMaxPcieLinkGeneration": 5}
    told = facts_of(FakeNvml(answers, {94: 12}))
    now = told["pcie_generation_now"]
    assert (now.value, now.status, now.role) == (1, AT_REST, "informative")
    assert (told["pcie_generation_max"].value, told["pcie_generation_max"].role) == (5, "match")
    assert (told["pcie_replays"].value, told["pcie_replays"].role) == (12, "informative")


def test_nvlink_counts_the_links_that_are_up_and_sums_their_errors():
    each = {"a": {"GetNvLinkState": lambda link: int(link != 1), "GetNvLinkVersion": 6}}
    told = facts_of(SeveralGpus(["a"], each=each, fields={90: 26562, 91: 3, 161: 2, 162: 0, 163: 0}))
    names = (
        "nvlink_links",
        "nvlink_active",
        "nvlink_version",
        "nvlink_mb_per_s",
        "nvlink_replays",
        "nvlink_crc_errors",
    )
    assert [told[name].value for name in names] == [3, 2, "4.0", 26562, 6, 0]
    assert told["nvlink_replays"].role == "informative"


def test_nvlink_that_does_not_answer_is_unknown_with_nvmls_words():
    told = facts_of(FakeNvml())
    for name in ("nvlink_links", "nvlink_active", "nvlink_recoveries"):
        assert (told[name].value, told[name].status) == (None, "Not Supported")
    assert facts_of(FakeNvml(fields={91: 0}))["nvlink_active"].status == "this GPU has no NVLink"


def test_one_link_that_does_not_tell_leaves_the_number_of_active_ones_unknown():
    def state(link):
        if link == 0:
            raise FakeNvmlError(3)
        return 1

    told = facts_of(SeveralGpus(["a"], each={"a": {"GetNvLinkState": state, "GetNvLinkVersion": 6}}, fields={91: 2}))
    assert (told["nvlink_active"].value, told["nvlink_active"].status) == (None, "Not Supported")
    assert told["nvlink_version"].value == "4.0"
    assert facts_of(FakeNvml(fields={91: 2}))["nvlink_version"].status == "no link is up"


@pytest.mark.parametrize(
    ("state", "status", "words"),
    [(3, 0, "completed"), (3, 999, "failed (NVML code 999)"), (1, 0, "not started"), (9, 0, "state 9")],
)
def test_fabric_state_in_words(state, status, words):
    assert fabric_state(state, status) == words


@pytest.mark.parametrize(
    ("mask", "summary", "words"),
    [
        (0, 0, None),
        (0b10, 0, "healthy"),
        (0b01, 0, "degraded bandwidth"),
        (0b010110, 2, "route recovery in progress, unhealthy route"),
        (5 << 8, 0, "incorrect configuration: too few NVLinks"),
        (1 << 8, 1, "healthy"),
        (0, 3, "limited capacity"),
        (2 << 14, 0, "its manager is disconnected"),
    ],
)
def test_fabric_health_in_words(mask, summary, words):
    assert fabric_health(mask, summary) == words


def test_fabric_is_read_from_the_structure_that_the_driver_fills():
    library = SeveralGpus(["a"], filling={"GetGpuFabricInfoV": {**FABRIC, "healthMask": 0b10}})
    told = facts_of(library)
    assert (told["fabric_state"].value, told["fabric_health"].value) == ("completed", "healthy")
    library = SeveralGpus(["a"], filling={"GetGpuFabricInfoV": {**FABRIC, "state": 2}})
    told = facts_of(library)
    assert (told["fabric_state"].value, told["fabric_health"].value) == ("in progress", None)
    assert facts_of(FakeNvml())["fabric_state"].status == "this nvidia-ml-py has no c_nvmlGpuFabricInfoV_t"


def test_neighbours_are_watts_and_distances():
    watts = {"a": 81_000, "b": 82_000, "c": 640_000}
    each = {name: {"fields": {186: w}, "GetTopologyCommonAncestor": lambda _: 40} for name, w in watts.items()}
    library = SeveralGpus(["a", "b", "c"], {"GetEnforcedPowerLimit": 700_000, "GetP2PStatus": 0}, each)
    told = facts_of(library)
    names = ("neighbours", "neighbours_power_w", "neighbours_power_most_w", "neighbours_busy", "topology")
    assert [told[name].value for name in names] == [2, "82, 640", 640.0, 1, "2 on one NUMA node"]
    assert (told["peers_reachable"].value, told["peers_over_nvlink"].value) == (2, 2)
    assert {told[name].role for name in names} == {"informative"}


def test_a_neighbour_off_the_bus_hides_no_other():
    """One lost GPU ended the listing, and with it the measurement on its neighbours."""
    nvml, _ = open_nvml(SeveralGpus(["a", "lost", "b"]))
    told = link_facts(card_of(next(nvml.gpus())), nvml)
    assert (told["neighbours"].value, told["gpus_lost"].value, told["gpus_lost"].status) == (1, 1, "GPU is lost")


def test_a_card_without_a_uuid_has_unknown_neighbours():
    assert facts_of(FakeNvml())["neighbours"].status == "which GPU is this one is unknown: Not Supported"


def test_numa_node_comes_from_nvml_or_from_the_kernel_and_no_address_is_stored(tmp_path, monkeypatch):
    assert facts_of(FakeNvml({"GetNumaNodeId": 1}), tmp_path)["gpu_numa_node"].value == 1
    folder = tmp_path / "sys/bus/pci/devices/0000:1b:00.0"
    folder.mkdir(parents=True)
    (folder / "numa_node").write_text("1\n")
    library = FakeNvml({"GetPciInfo": SimpleNamespace(busId=b"00000000:1B:00.0"), "GetCpuAffinity": [0b1100]})
    monkeypatch.setattr(host, "_ALLOWED_CPUS", frozenset((0, 1, 2)))
    told = facts_of(library, tmp_path)
    assert [told[n].value for n in ("gpu_numa_node", "gpu_cpus", "gpu_cpus_allowed")] == [1, 2, 1]
    assert "1b:00" not in json.dumps(to_plain(told)).lower()
    (folder / "numa_node").write_text("-1\n")
    assert facts_of(library, tmp_path)["gpu_numa_node"].status == "the kernel assigns it to no node"
