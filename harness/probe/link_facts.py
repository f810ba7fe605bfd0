"""What a GPU is connected to, as facts: host, PCIe, NVLink, fabric, its neighbours. No address is stored."""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from harness.model import Fact
from harness.probe import host
from harness.probe.card_facts import Card
from harness.probe.facts import fact_of, words_of
from harness.probe.nvml import FIELD_NVLINK_LINKS, Gpu, Nvml, Reading, all_of, gpus_that_answer

AT_REST = "at rest: an idle link may be trained down"
# A neighbour that draws more than this share of its limit is at work: an idle H200 draws 81 of 700 W.
BUSY_RATIO = 0.25

# Field ids of nvml.h (NVML 13).
_FIELD_NVLINK_SPEED = 90
_FIELD_PCIE_REPLAYS = 94
_FIELD_C2C_LINKS = 170
_FIELD_C2C_MB_PER_S = 172
_FIELDS_NVLINK_ERRORS = {"replays": 161, "recoveries": 162, "crc_errors": 163}
# NVML_NVLINK_VERSION_*.
_NVLINK_VERSIONS = {1: "1.0", 2: "2.0", 3: "2.2", 4: "3.0", 5: "3.1", 6: "4.0", 7: "5.0", 8: "6.0"}
_ACTIVE = 1
# nvmlGpuTopologyLevel_t.
LEVELS = {
    0: "on the same board",
    10: "behind one PCIe switch",
    20: "behind several PCIe switches",
    30: "behind one host bridge",
    40: "on one NUMA node",
    50: "across NUMA nodes",
}
_P2P_READ, P2P_NVLINK = 0, 2
P2P_OK = 0
# NVML_GPU_FABRIC_STATE_*, and the health mask: (shift, width, the value that means trouble, what it means).
_FABRIC_STATES = {0: "not supported", 1: "not started", 2: "in progress", 3: "completed"}
_FABRIC_COMPLETED = 3
_FABRIC_TROUBLES = (
    (0, 0x3, 1, "degraded bandwidth"),
    (2, 0x3, 1, "route recovery in progress"),
    (4, 0x3, 1, "unhealthy route"),
    (6, 0x3, 1, "recovering from an access timeout"),
    (14, 0x3, 2, "its manager is disconnected"),
)
_CONFIGURATION_SHIFT, _CONFIGURATION_WIDTH = 8, 0xF
_CONFIGURATIONS = {
    2: "wrong system GUID",
    3: "wrong chassis",
    4: "no partition",
    5: "too few NVLinks",
    6: "incompatible GPU firmware",
    7: "wrong location",
    8: "invalid GPU state",
}
_SUMMARIES = {2: "unhealthy", 3: "limited capacity"}


def link_facts(card: Card, nvml: Nvml, root: Path = Path("/")) -> dict[str, Fact]:
    """Every fact of one GPU's connections; `root` is where /sys stands."""
    return {
        **_place(card, root),
        **_pcie(card),
        **_nvlink(card),
        **_fabric(card),
        **_neighbours(card, nvml),
    }


def _place(card: Card, root: Path) -> dict[str, Fact]:
    """Which NUMA node the GPU hangs on, and how many of the CPUs there this process may use."""
    beside = host.cpus_beside(card.board)
    allowed = host.allowed_cpus()
    return {
        "gpu_numa_node": numa_node(card, root),
        "gpu_cpus": card.fact(beside, len),
        "gpu_cpus_allowed": card.fact(beside, lambda cpus: len(cpus & allowed)),
    }


def numa_node(card: Card, root: Path) -> Fact:
    """NVML's own answer, or the kernel's for that PCI device."""
    told = card.board.ask("GetNumaNodeId")
    if told.value is not None and told.value >= 0:
        return card.fact(told)
    address = card.board.ask("GetPciInfo")
    if address.value is None:
        return Fact(None, told.status)
    name = getattr(address.value, "busId", "")
    name = (name.decode() if isinstance(name, bytes) else str(name)).lower()
    # NVML prints the domain with eight digits, the kernel with four.
    node = words_of(root / "sys/bus/pci/devices" / name.removeprefix("0000") / "numa_node")
    return Fact(int(node), card.status) if node and node.isdecimal() else Fact(None, "the kernel assigns it to no node")


def _pcie(card: Card) -> dict[str, Fact]:
    fields = card.board.fields([_FIELD_PCIE_REPLAYS, _FIELD_C2C_LINKS, _FIELD_C2C_MB_PER_S])
    replays = card.board.ask("GetPcieReplayCounter")
    at_rest = AT_REST if card.status == "ok" else f"{card.status}, {AT_REST}"
    return {
        "pcie_generation_max": card.ask("GetMaxPcieLinkGeneration"),
        "pcie_lanes_max": card.ask("GetMaxPcieLinkWidth"),
        "pcie_generation_gpu": card.ask("GetGpuMaxPcieLinkGeneration"),
        "pcie_generation_now": fact_of(card.board.ask("GetCurrPcieLinkGeneration"), role="informative", status=at_rest),
        "pcie_lanes_now": fact_of(card.board.ask("GetCurrPcieLinkWidth"), role="informative", status=at_rest),
        "pcie_replays": card.fact(
            replays if replays.value is not None else fields[_FIELD_PCIE_REPLAYS], role="informative"
        ),
        "c2c_links": card.fact(fields[_FIELD_C2C_LINKS]),
        "c2c_mb_per_s": card.fact(fields[_FIELD_C2C_MB_PER_S]),
    }


def _nvlink(card: Card) -> dict[str, Fact]:
    fields = card.board.fields([FIELD_NVLINK_LINKS, _FIELD_NVLINK_SPEED])
    count = fields[FIELD_NVLINK_LINKS]
    facts = {"nvlink_links": card.fact(count)}
    if not count.value:
        why = count.status if count.value is None else "this GPU has no NVLink"
        others = ("nvlink_active", "nvlink_version", "nvlink_mb_per_s")
        counters = (f"nvlink_{name}" for name in _FIELDS_NVLINK_ERRORS)
        facts |= {name: Fact(None, why) for name in others}
        return facts | {name: Fact(None, why, "informative") for name in counters}
    links = range(count.value)
    states = [card.board.ask("GetNvLinkState", link) for link in links]
    up = [link for link in links if states[link].value == _ACTIVE]
    version = card.board.ask("GetNvLinkVersion", up[0]) if up else Reading(None, "no link is up")
    return {
        **facts,
        "nvlink_active": card.fact(all_of(states), lambda v: sum(state == _ACTIVE for state in v)),
        "nvlink_version": card.fact(version, lambda v: _NVLINK_VERSIONS.get(v, f"version {v}")),
        "nvlink_mb_per_s": card.fact(fields[_FIELD_NVLINK_SPEED], lambda v: v or None),
        **_nvlink_errors(card, links),
    }


def _nvlink_errors(card: Card, links: range) -> dict[str, Fact]:
    """Counters since the driver was loaded, summed over the links."""
    asked = [(field, link) for field in _FIELDS_NVLINK_ERRORS.values() for link in links]
    told = dict(zip(asked, card.board.scoped_fields(asked), strict=True))
    return {
        f"nvlink_{name}": card.fact(all_of([told[field, link] for link in links]), sum, "informative")
        for name, field in _FIELDS_NVLINK_ERRORS.items()
    }


# The NVSwitch fabric.


def _fabric(card: Card) -> dict[str, Fact]:
    info = card.board.filled("GetGpuFabricInfoV", "c_nvmlGpuFabricInfo_v3_t")
    if info.value is None:
        info = card.board.filled("GetGpuFabricInfoV", "c_nvmlGpuFabricInfoV_t")  # the second version, in any binding
    state = card.fact(info, lambda v: fabric_state(v.state, v.status))
    if info.value is None or info.value.state != _FABRIC_COMPLETED:
        return {
            "fabric_state": state,
            "fabric_health": Fact(None, info.status if info.value is None else str(state.value)),
        }
    health = card.fact(info, lambda v: fabric_health(v.healthMask, getattr(v, "healthSummary", 0)))
    return {"fabric_state": state, "fabric_health": health}


def fabric_state(state: int, status: int) -> str:
    """How far the fabric's manager got with this GPU; `status` is its code once it has finished."""
    if state == _FABRIC_COMPLETED and status != 0:
        return f"failed (NVML code {status})"
    return _FABRIC_STATES.get(state, f"state {state}")


def fabric_health(mask: int, summary: int = 0) -> str | None:
    """What the health mask complains of; `None` where nothing in it is supported."""
    if mask == 0 and summary == 0:
        return None
    troubles = [words for shift, width, bad, words in _FABRIC_TROUBLES if mask >> shift & width == bad]
    configuration = _CONFIGURATIONS.get(mask >> _CONFIGURATION_SHIFT & _CONFIGURATION_WIDTH)
    troubles += [f"incorrect configuration: {configuration}"] if configuration else []
    return ", ".join(troubles) or _SUMMARIES.get(summary, "healthy")


# The other GPUs of the host.


def _neighbours(card: Card, nvml: Nvml) -> dict[str, Fact]:
    listed, refused = gpus_that_answer(nvml)
    lost = {"gpus_lost": Fact(len(refused), ", ".join(sorted(set(refused))) or "ok", "informative")}
    own = card.board.ask("GetUUID")
    if own.value is None:
        unknown = Fact(None, f"which GPU is this one is unknown: {own.status}", "informative")
        return lost | dict.fromkeys(("neighbours", "neighbours_power_w", "neighbours_busy", "topology"), unknown)
    others = [gpu for gpu in listed if gpu.ask("GetUUID").value != own.value]
    facts = lost | {"neighbours": Fact(len(others), role="informative")}
    if not others:
        return facts
    watts = [gpu.power_instant_w() for gpu in others]
    limits = [gpu.power_limit_w() for gpu in others]
    drawn = all_of(watts)
    return facts | {
        "neighbours_power_w": fact_of(drawn, lambda v: ", ".join(f"{w:.0f}" for w in v), "informative"),
        "neighbours_power_most_w": fact_of(drawn, max, "informative"),
        "neighbours_busy": fact_of(all_of([*watts, *limits]), _busy, "informative"),
        "topology": _levels(card.board, others),
        "peers_reachable": _peers(card.board, others, _P2P_READ),
        "peers_over_nvlink": _peers(card.board, others, P2P_NVLINK),
    }


def _busy(watts_then_limits: Sequence[float]) -> int:
    half = len(watts_then_limits) // 2
    pairs = zip(watts_then_limits[:half], watts_then_limits[half:], strict=True)
    return sum(watts > BUSY_RATIO * limit for watts, limit in pairs)


def _levels(board: Gpu, others: Sequence[Gpu]) -> Fact:
    """How many neighbours stand at which distance over PCIe."""
    told = all_of([board.between(other, "GetTopologyCommonAncestor") for other in others])

    def words(levels: Sequence[int]) -> str:
        counted = Counter(levels)
        return ", ".join(f"{counted[n]} {LEVELS.get(n, f'at level {n}')}" for n in sorted(counted))

    return fact_of(told, words, "informative")


def _peers(board: Gpu, others: Sequence[Gpu], which: int) -> Fact:
    told = all_of([board.between(other, "GetP2PStatus", which) for other in others])
    return fact_of(told, lambda v: sum(status == P2P_OK for status in v), "informative")
