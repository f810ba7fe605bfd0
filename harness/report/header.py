"""The head of a summary: the machine, the runs, and the peaks that they are held against. Pure; all text is clean."""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

from harness import units
from harness.bounds import find_bound
from harness.injection import said_of as said_of_injection
from harness.model import Fact, Peak, PeakSheet, Run
from harness.report.text import clean

_MOST_HOSTS = 8


def machine_lines(run: Run) -> tuple[tuple[str, str], ...]:
    """What must be equal for runs to share one table: card, software, limits, and the declared regime."""
    device, fact = run.device, run.environment.get
    is_gpu = device.kind == "cuda"
    parts = [
        clean(device.name),
        f"{device.sm_count} SMs" if device.sm_count else "",
        f"compute capability {device.compute_capability[0]}.{device.compute_capability[1]}"
        if device.compute_capability
        else "",
        units.format_size(device.memory_bytes) if device.memory_bytes else "",
        "MIG" if device.mig else "",
    ]
    software = [
        _named(fact(name), title, always=is_gpu and name != "nccl")
        for name, title in (
            ("driver", "driver"),
            ("cuda_runtime", "CUDA"),
            ("torch", "torch"),
            ("triton", "triton"),
            ("nccl", "NCCL"),
        )
    ]
    power = [
        f"limit {_watts(fact('power_limit_w'))}{_default_limit(run)}" if is_gpu else "",
        _named(fact("ecc"), "ECC"),
        _named(fact("virtualization"), "virtualization"),
    ]
    card = [_named(fact("card"), "").strip(), _named(fact("label"), "label")]
    regime = [
        f"declared {clean(run.order.declare)}" if run.order.declare else "",
        f"{run.order.concurrent} cards at once" if run.order.concurrent > 1 else "",
    ]
    lines = (
        ("GPU" if is_gpu else "device", parts),
        ("software", software),
        ("power", power),
        ("card", card),
        ("hosts", _hosts(run)),
        ("regime", regime),
        ("INJECTED", [clean(said_of_injection(run.order.inject))]),
    )
    return tuple((name, ", ".join(p for p in said if p)) for name, said in lines if any(said))


def by_machine(runs: Iterable[Run]) -> list[tuple[str, list[Run]]]:
    """The runs of each card and environment, which alone share a table, with what tells it from the others here.

    That is "" where all are of one.
    """
    alike: dict[tuple[tuple[str, str], ...], list[Run]] = {}
    for run in runs:
        alike.setdefault(machine_lines(run), []).append(run)
    parts = [[part for _, line in machine for part in line.split(", ")] for machine in alike]
    shared = set(parts[0]).intersection(*parts) if parts else set()
    own = [[part for part in some if part not in shared] for some in parts]
    return [
        (", ".join(told) or clean(some[0].device.name) if len(alike) > 1 else "", some)
        for told, some in zip(own, alike.values(), strict=True)
    ]


def _hosts(run: Run) -> list[str]:
    """How many ranks torchrun started, and each host's cards and ports; nothing without it."""
    party = run.device.party
    if party is None:
        return []
    told = [f"{party.ranks} ranks on {party.hosts} host{'s' if party.hosts > 1 else ''}"]
    for host in range(min(party.hosts, _MOST_HOSTS)):
        cards, network = (run.fact(f"hosts.{host}.{name}") for name in ("cards", "network"))
        told.append(f"{host}: {clean(cards or units.UNKNOWN)}" + (f" ({clean(network)})" if network else ""))
    more = party.hosts - _MOST_HOSTS
    return [*told, f"{more} more hosts"] if more > 0 else told


def _named(fact: Fact | None, title: str, always: bool = False) -> str:
    if fact is None or fact.value is None or fact.value == "":
        return f"{title} {units.UNKNOWN}" if always else ""
    shown = {True: "on", False: "off"}[fact.value] if isinstance(fact.value, bool) else clean(fact.value)
    return f"{title} {shown}"


def _watts(fact: Fact | None) -> str:
    return units.format_number(fact.value, "W") if fact and isinstance(fact.value, int | float) else units.UNKNOWN


def _default_limit(run: Run) -> str:
    default = run.environment.get("power_limit_default_w")
    return f" (default {_watts(default)})" if default and default.value is not None else ""


def run_lines(runs: Sequence[Run]) -> Iterator[tuple[str, str]]:
    """Which runs these are: profile, when, what was asked for, and whether anything is missing."""
    profiles = Counter(clean(run.order.profile) for run in runs)
    whens = sorted(clean(run.created_at) for run in runs)
    if len(runs) == 1:
        yield "run", f"profile {clean(runs[0].order.profile)}, {whens[0]}"
    else:
        said = ", ".join(f"profile {name} × {count}" for name, count in profiles.items())
        yield "runs", f"{said}; {whens[0]} to {whens[-1]}; medians over runs"
    only = list(dict.fromkeys(clean(" ".join(run.order.only)) for run in runs if run.order.only))
    if only:
        yield "only", "; ".join(only)
    partial = list(dict.fromkeys(clean(run.partial) for run in runs if run.partial))
    if partial:
        yield "partial", "; ".join(partial)


def peak_lines(sheet: PeakSheet, runs: Sequence[Run]) -> Iterator[tuple[str, str]]:
    """Where the peaks come from, then each peak that a case of these runs is held against."""
    sources = {
        "exact": f"data sheet row '{clean(sheet.gpu)}'",
        "derived": "derived from the device's own facts",
        "none": "none",
    }
    reason = clean(sheet.reason)
    used = _used_peaks(sheet, runs)
    unused = "" if used or sheet.match == "none" else " (unused here)"
    yield "peaks", sources[sheet.match] + unused + (f": {reason}" if reason else "")
    for unit in sorted({peak.unit for peak in used.values()}, reverse=True):
        yield "", ", ".join(_peak(name, peak, sheet) for name, peak in used.items() if peak.unit == unit)


def _peak(name: str, peak: Peak, sheet: PeakSheet) -> str:
    said = f"{clean(name)} {units.format_rate(peak.value, peak.unit)}"
    if not peak.is_verified:
        return f"{said} (unverified)"
    is_pcie = name.startswith("host_link") and "host_link" not in sheet.peaks
    return f"{said} (PCIe as negotiated)" if is_pcie else said


def _used_peaks(sheet: PeakSheet, runs: Sequence[Run]) -> dict[str, Peak]:
    """Peaks by name in the order of the cases; those of links stand on no sheet but follow from telemetry.

    Pairs of GPUs may be joined by different numbers of NVLinks, so that their peaks say the number.
    """
    used: dict[str, Peak] = {}
    for record in (record for run in runs for record in run.measured):
        for name in (work.peak for work in record.case.work if work.peak):
            if name in sheet.peaks:
                used[name] = sheet.peaks[name]
            elif record.telemetry and (bound := find_bound(record.case, record.telemetry, sheet)).peak:
                links = record.telemetry.nvlink_links
                used.setdefault(f"{bound.name} ({links} NVLinks)" if links else bound.name, bound.peak)
    return used
