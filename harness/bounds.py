"""What binds a case by the roofline: the work and the peak that needs the longest, or why nobody knows. Floor 2."""

from dataclasses import dataclass

from harness.model import Case, Peak, PeakSheet, Telemetry, Work
from harness.nccl_settings import asked_and_done, is_followed
from harness.specs import nvlink_peak, pcie_peak, why_no_pcie

# The peak of what crosses between GPUs, and the algorithms whose bus bytes cross it. NVLS sums in the switch, so that
# less crosses a link than nccl-tests counts.
LINK = "nvlink"
LINK_ALGORITHMS = ("ring", "tree")
# Between hosts: a ring enters and leaves each host once. The hosts of a tree exchange less than the bus bytes count.
NETWORK = "network"
NETWORK_ALGORITHMS = ("ring",)
# Hosts of one rack may be joined by NVLink: what crosses it is peer to peer to NCCL.
NETWORK_TRANSPORT = "net/"
THROUGH_BRIDGE = "through a bridge"
# The peak of what crosses between one pair of GPUs: it depends on the links that are up.
PEER_LINK = "peer_link"


@dataclass(frozen=True)
class Bound:
    """What binds a case by the roofline: the work and its peak, or the reason why no share can be given."""

    work: Work | None
    peak: Peak | None
    reason: str = ""

    @property
    def name(self) -> str:
        """The binding peak's name: `memory`, `bf16`, `host_link`; empty where nothing is known to bind."""
        return self.work.peak or "" if self.work is not None else ""


def find_bound(case: Case, telemetry: Telemetry, sheet: PeakSheet) -> Bound:
    """The roofline (Williams et al., 2009): of the works with a peak, the one that needs the longest at its peak.

    A case whose headline has no peak gets no share, and neither does one of whose peaks any is unknown: then nobody
    knows which binds.
    """
    if not case.work:
        return Bound(None, None, f"a {case.kind} case declares no work")
    headline = case.work[0]
    if headline.peak is None:
        return Bound(headline, None, headline.no_peak or f"no peak bounds '{headline.label}'")
    if headline.peak in (LINK, NETWORK) and (why := _why_no_link(case, telemetry, sheet)):
        return Bound(headline, None, why)
    bounds = [_find_peak(w, telemetry, sheet) for w in case.work if w.peak is not None]
    unknown = next((b for b in bounds if b.peak is None), None)
    if unknown is not None:
        return unknown
    return max(bounds, key=_least_seconds)


def _why_no_link(case: Case, telemetry: Telemetry, sheet: PeakSheet) -> str:
    """Why a collective's bus bytes are not what the links carried: only rings and trees from peer to peer are known to.

    Where the algorithm is a parameter, whoever declared the work knew it; copies have none.
    """
    if "ranks" not in case.params or "algorithm" in case.params:
        return ""
    if not telemetry.algorithm:
        return telemetry.missing.get("algorithm") or "the algorithm that the library chose is not known"
    if is_followed(case, telemetry) is not True:
        return asked_and_done(case, telemetry)
    if telemetry.algorithm not in (NETWORK_ALGORITHMS if case.work[0].peak == NETWORK else LINK_ALGORITHMS):
        return f"NCCL chose {telemetry.algorithm}, whose links carry another share than the bus bytes count"
    if case.work[0].peak == NETWORK:
        is_other = telemetry.transport and NETWORK_TRANSPORT not in telemetry.transport
        told = f"rank 0 sends through {telemetry.transport}, so that the network may not be what joins the hosts"
        return told if is_other else ""
    peak = sheet.peaks.get(LINK)
    if peak is not None and THROUGH_BRIDGE in peak.source:
        return "whether the cards of this form have their NVLink bridge was not read"
    if telemetry.transport not in ("", "p2p"):
        return f"NCCL sent through {telemetry.transport}, not from peer to peer alone"
    return ""


def _find_peak(work: Work, telemetry: Telemetry, sheet: PeakSheet) -> Bound:
    name = work.peak or ""
    if name in sheet.peaks:
        peak: Peak | None = sheet.peaks[name]
    elif name in ("host_link", "host_link_both"):
        return _find_host_link(work, telemetry, sheet)
    elif name in (PEER_LINK, f"{PEER_LINK}_both"):
        return _find_peer_link(work, telemetry, sheet)
    else:
        peak = None
    if peak is None:
        why = sheet.reason if sheet.match == "none" else ""
        return Bound(work, None, why or f"no peak '{name}' is known for {quoted_gpu(sheet.gpu)}")
    return _checked(work, peak)


def quoted_gpu(gpu: str | None) -> str:
    """The GPU of a data sheet in a message."""
    return f"'{gpu}'" if gpu else "this device"


def _find_host_link(work: Work, telemetry: Telemetry, sheet: PeakSheet) -> Bound:
    """The chip-to-chip link of the sheet, or else PCIe as negotiated under load; both ways at once are twice one."""
    generation, lanes = telemetry.pcie_generation, telemetry.pcie_lanes
    one_way = sheet.peaks.get("host_link")
    if one_way is None and (why := why_no_pcie(sheet)):
        return Bound(work, None, why)
    if one_way is None and (generation is None or lanes is None):
        field_name = "pcie_generation" if generation is None else "pcie_lanes"
        return Bound(work, None, why_missing(telemetry, field_name, "PCIe link under load"))
    if one_way is None and generation is not None and lanes is not None:
        one_way = pcie_peak(generation, lanes)
    if one_way is None:
        return Bound(work, None, f"no peak is known for PCIe generation {generation} with {lanes} lanes")
    if work.peak == "host_link":
        return _checked(work, one_way)
    return _checked(work, _both_ways(one_way))


def _find_peer_link(work: Work, telemetry: Telemetry, sheet: PeakSheet) -> Bound:
    """The NVLinks that are up between the two, each at the data sheet's rate; both ways at once are twice one."""
    if telemetry.nvlink_links is None:
        return Bound(work, None, why_missing(telemetry, "nvlink_links", "number of NVLinks between the two"))
    one_way = nvlink_peak(sheet, telemetry.nvlink_links)
    if one_way is None:
        why = sheet.reason if sheet.match == "none" else ""
        return Bound(work, None, why or f"no data sheet gives the rate of one NVLink of {quoted_gpu(sheet.gpu)}")
    return _checked(work, one_way if work.peak == PEER_LINK else _both_ways(one_way))


def _both_ways(one_way: Peak) -> Peak:
    return Peak(2 * one_way.value, one_way.unit, one_way.provenance, f"twice: {one_way.source}")


def _checked(work: Work, peak: Peak) -> Bound:
    if peak.unit != work.unit:
        return Bound(work, None, f"the peak '{work.peak}' is in {peak.unit}/s, the work in {work.unit}")
    if peak.value <= 0:
        return Bound(work, None, f"the peak '{work.peak}' is {peak.value:g} {peak.unit}/s, which cannot be")
    return Bound(work, peak)


def _least_seconds(bound: Bound) -> float:
    if bound.work is None or bound.peak is None:
        return 0.0
    return bound.work.amount / bound.peak.value


def why_missing(telemetry: Telemetry, field_name: str, what: str) -> str:
    """Why that field of telemetry is unknown."""
    return telemetry.missing.get(field_name) or f"the {what} was not measured"
