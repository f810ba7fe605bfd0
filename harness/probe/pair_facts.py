"""What joins the GPUs of a host, pair by pair: NVLinks that are up, the way over PCIe, NUMA nodes. No address is kept.

GPUs are numbered as CUDA numbers them, which is how the keys of what runs between them name them.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path

from harness.model import Fact
from harness.probe.card_facts import card_of
from harness.probe.facts import fact_of
from harness.probe.link_facts import LEVELS, P2P_NVLINK, P2P_OK, numa_node
from harness.probe.nvml import FIELD_NVLINK_LINKS, Gpu, Reading, all_of

_ACTIVE = 1
# nvmlIntNvLinkDeviceType_t.
_TO_GPU = 0
_LEADS = {_TO_GPU: "to GPUs", 1: "to CPUs", 2: "to switches"}
_NO_NVLINK = "NVML says that no NVLink joins the two"


@dataclass(frozen=True)
class _Link:
    """A link that is up: what kind of thing it leads to, and to which bus address; `None` where NVML does not tell."""

    kind: int | None
    bus_id: str | None


def nvlinks_between(one: Gpu, other: Gpu) -> Reading:
    """How many NVLinks carry what goes between two GPUs, one way; `None` with the reason where none does or none tells.

    Links that lead to GPUs are counted where they lead to this one. Through switches, or where NVML does not tell where
    they lead, all that are up may carry it: then it is the smaller number of the two GPUs', which bounds every rate.
    A virtual machine may name its GPUs by other addresses than the links do.
    """
    joined = one.between(other, "GetP2PStatus", P2P_NVLINK)
    if joined.value is None:
        return joined
    if joined.value != P2P_OK:
        return Reading(None, _NO_NVLINK)
    links = [_links_up(gpu) for gpu in (one, other)]
    unknown = next((told for told in links if told.value is None), None)
    if unknown is not None:
        return unknown
    ours, theirs = (told.value for told in links)
    bus_id = _address(other.ask("GetPciInfo").value)
    direct = sum(link.kind == _TO_GPU and link.bus_id is not None and link.bus_id == bus_id for link in ours)
    count = direct or min(len(ours), len(theirs))
    return Reading(count) if count else Reading(None, "no NVLink between the two is up")


def _links_up(gpu: Gpu) -> Reading:
    """The links that are up, if every link of the GPU tells its state."""
    count = gpu.fields([FIELD_NVLINK_LINKS])[FIELD_NVLINK_LINKS]
    if not count.value:
        return count if count.value is None else Reading(None, "this GPU has no NVLink")
    states = all_of([gpu.ask("GetNvLinkState", link) for link in range(count.value)])
    if states.value is None:
        return states
    return Reading([_link(gpu, link) for link, state in enumerate(states.value) if state == _ACTIVE])


def _link(gpu: Gpu, link: int) -> _Link:
    kind = gpu.ask("GetNvLinkRemoteDeviceType", link).value
    remote = gpu.ask("GetNvLinkRemotePciInfo", link).value if kind == _TO_GPU else None
    return _Link(kind, _address(remote))


def _address(told: object) -> str | None:
    """A bus address to compare with another, as NVML writes it: never stored."""
    name = getattr(told, "busId", None)
    name = name.decode(errors="replace") if isinstance(name, bytes) else name
    return str(name).lower() if name else None


def pair_facts(gpus: Sequence[Gpu | None], root: Path = Path("/")) -> dict[str, Fact]:
    """Facts of every pair of these GPUs, in CUDA's order; none where there is but one."""
    if len(gpus) < 2:
        return {}
    known = [gpu for gpu in gpus if gpu is not None]
    if len(known) < len(gpus):
        lost = Fact(None, f"NVML lists {len(known)} of the {len(gpus)} GPUs that CUDA sees", "informative")
        return dict.fromkeys(("pair_nvlinks", "pair_nvlinks_lead", "pair_pcie", "pair_numa_nodes"), lost)
    boards = [gpu.board() for gpu in known]
    pairs = list(combinations(range(len(boards)), 2))
    links = {pair: nvlinks_between(boards[pair[0]], boards[pair[1]]) for pair in pairs}
    levels = {pair: boards[pair[0]].between(boards[pair[1]], "GetTopologyCommonAncestor") for pair in pairs}
    nodes = [numa_node(card_of(gpu), root) for gpu in known]
    return {
        "pair_nvlinks": _of_links(links),
        "pair_nvlinks_lead": _leads(boards),
        "pair_pcie": _of_readings(levels),
        "pair_numa_nodes": Fact(
            ", ".join("unknown" if node.value is None else str(node.value) for node in nodes), role="informative"
        ),
    }


def _of_links(links: Mapping[tuple[int, int], Reading]) -> Fact:
    if all(told.value is None for told in links.values()):
        return Fact(None, "; ".join(dict.fromkeys(told.status for told in links.values())), "informative")
    return _by_pair({pair: told.status if told.value is None else str(told.value) for pair, told in links.items()})


def _leads(boards: Sequence[Gpu]) -> Fact:
    """What the links that are up lead to, with how many of all the GPUs' together."""
    told = all_of([_links_up(board) for board in boards])

    def words(of_gpus: Sequence[Sequence[_Link]]) -> str:
        kinds = [_LEADS.get(-1 if link.kind is None else link.kind, "unknown") for links in of_gpus for link in links]
        return ", ".join(f"{kinds.count(kind)} {kind}" for kind in sorted(set(kinds))) or "none is up"

    return fact_of(told, words, "informative")


def _of_readings(levels: Mapping[tuple[int, int], Reading]) -> Fact:
    unknown = next((told for told in levels.values() if told.value is None), None)
    if unknown is not None:
        return Fact(None, unknown.status, "informative")
    return _by_pair({pair: LEVELS.get(told.value, f"at level {told.value}") for pair, told in levels.items()})


def _by_pair(words: Mapping[tuple[int, int], str]) -> Fact:
    """The same words once with all pairs that they are true of: `18: 0-1 0-2 1-2`."""
    pairs_by_word: dict[str, list[str]] = {}
    for (one, other), word in words.items():
        pairs_by_word.setdefault(word, []).append(f"{one}-{other}")
    return Fact("; ".join(f"{word}: {' '.join(pairs)}" for word, pairs in pairs_by_word.items()), role="informative")
