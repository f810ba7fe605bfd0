"""The verdict in plain words, and the few figures that stand above it: only what the data say."""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from harness import units
from harness.report.panels import shorten
from harness.report.ruler import ruler_line, status_of
from harness.report.text import counted, percent_range
from harness.report.views import Point, View

_MOST_NAMED = 3

_LIMITS = {
    "power": "the power limit",
    "power model": "a power cap that acts below the limit",
    "thermal": "temperature",
    "brake": "an external power brake",
    "user's clock": "a clock that somebody set",
}


@dataclass(frozen=True)
class Tile:
    """One figure in large type: the best case of its kind."""

    value: str
    what: str
    detail: str


def verdict_of(view: View) -> str:
    """One paragraph: what share of each peak arrives, and what limits it."""
    off = f"The ruler is {ruler_line(view.runs)}. " if any(status_of(run) == "off" for run in view.runs) else ""
    return off + _verdict(view)


def _verdict(view: View) -> str:
    sentences = [s for s in (_memory(view), *_compute(view), *_links(view), _limits(view)) if s]
    if not sentences:
        return f"On {view.gpu}, nothing was measured that could be held against a peak."
    return " ".join([_lead(view) + sentences[0], *(s[0].upper() + s[1:] for s in sentences[1:])])


def tiles_of(view: View) -> tuple[Tile, ...]:
    """The best case against each peak, and the fastest collective."""
    best: dict[str, Point] = {}
    for point in view.points:
        if point.spec and (point.bound not in best or point.spec.value > _share(best[point.bound])):
            best[point.bound] = point
    order = sorted(best, key=lambda name: (name != "memory", name.startswith("host_link"), name))
    names = {
        "memory": "of memory peak",
        "host_link": "of host link peak",
        "nvlink": "of NVLink peak",
        "peer_link": "of NVLink peak between two GPUs",
    }
    tiles = [
        Tile(
            units.format_percent(_share(best[name])),
            names.get(name, f"of {name} peak" if name else "of peak"),
            f"{best[name].name}: {_rate(best[name])}",
        )
        for name in order
        if name not in ("host_link_both", "nvlink_both", "peer_link_both")
    ]
    buses = [p for p in view.points if p.is_collective and p.rate]
    if buses:
        fastest = max(buses, key=lambda p: p.rate.value if p.rate else 0.0)
        tiles.append(Tile(_rate(fastest), "bus bandwidth", fastest.name))
    return tuple(tiles)


def _lead(view: View) -> str:
    facts = []
    if view.power_limit_w:
        facts.append(f"{view.power_limit_w:.0f} W limit")
    if view.fact("driver"):
        facts.append(f"driver {shorten(str(view.fact('driver')), 40)}")
    if len(view.runs) > 1:
        facts.append(f"medians of {len(view.runs)} runs")
    said = ", ".join(facts)
    return f"On {view.gpu} ({said}), " if said else f"On {view.gpu}, "


def _share(point: Point) -> float:
    return point.spec.value if point.spec else 0.0


def _rate(point: Point) -> str:
    return units.format_rate(point.rate.value if point.rate else None, point.unit)


def _memory(view: View) -> str:
    points = [p for p in view.points if p.is_device_memory and p.spec]
    if not points:
        return ""
    low, high = min(points, key=_share), max(points, key=_share)
    peak = units.format_rate(view.peak_per_s("memory"), "B")
    said = f"device memory delivers {units.format_percent(_share(high))} of its {peak} when best used ({high.name})"
    if low.case.op != high.case.op:
        said += f" and {units.format_percent(_share(low))} in the slowest case ({low.name})"
    return said + "."


def _compute(view: View) -> Iterator[str]:
    points = [p for p in view.points if p.is_compute and p.spec and p.bound != "memory" and not p.is_pipe]
    if not points:
        return
    low, high = _share(min(points, key=_share)), _share(max(points, key=_share))
    yield f"of the dense compute peaks {percent_range(low, high)} arrives."
    split = [p for p in points if p.at_clock_ratio is not None and p.clock_ratio is not None]
    clocks = [p.sm_clock_mhz for p in split if p.sm_clock_mhz]
    if not split or not clocks:
        return
    best = max(split, key=_share)
    ratios = [p.clock_ratio or 0.0 for p in split]
    kernels = [p.at_clock_ratio or 0.0 for p in split]
    assumed = (best.sm_clock_mhz or 0.0) / (best.clock_ratio or 1.0)
    ran = (
        f"{min(clocks):.0f}" if round(min(clocks)) == round(max(clocks)) else f"{min(clocks):.0f} to {max(clocks):.0f}"
    )
    yield (
        f"the SMs ran at {ran} MHz where the data sheet assumes {assumed:.0f}, which allows "
        f"{percent_range(min(ratios), max(ratios))}; in those cycles the kernels use "
        f"{percent_range(min(kernels), max(kernels))} of what the pipes could do."
    )
    more = "clock" if sum(ratios) < sum(kernels) else "kernels"
    yield f"on the whole more is lost to the {more} than to the {'kernels' if more == 'clock' else 'clock'}."


def _links(view: View) -> Iterator[str]:
    yield from (_host_link(view), _peers(view), _collectives(view))


def _host_link(view: View) -> str:
    points = [p for p in view.points if p.is_host_link and p.spec]
    if not points:
        return ""
    low, high = _share(min(points, key=_share)), _share(max(points, key=_share))
    return f"pinned copies over the host link reach {percent_range(low, high)} of it."


def _peers(view: View) -> str:
    points = [p for p in view.points if p.case.op == "peer_copy" and p.spec]
    if not points:
        return ""
    low, high = _share(min(points, key=_share)), _share(max(points, key=_share))
    return f"copies between two GPUs reach {percent_range(low, high)} of the link between them."


def _collectives(view: View) -> str:
    points = [p for p in view.points if p.is_collective and p.rate]
    if not points:
        return ""
    best = max(points, key=lambda p: p.rate.value if p.rate else 0.0)
    small = min(points, key=lambda p: (p.size_bytes or 0, p.time_s or 0.0))
    size = units.format_size(small.size_bytes)
    return (
        f"the fastest collective, {best.name}, reaches {_rate(best)} bus bandwidth, "
        f"and {size} takes {units.format_time(small.time_s)}."
    )


def _limits(view: View) -> str:
    limits = Counter(p.limited_by for p in view.points if p.limited_by in _LIMITS)
    unlimited = sum(p.limited_by == "none" for p in view.points)
    if not limits:
        return f"nothing held the clock down in {counted(unlimited, 'case')}." if unlimited else ""
    said = [f"{_LIMITS[name]} in {counted(number, 'case')}" for name, number in limits.most_common()]
    rest = f"; in the other {unlimited} nothing did" if unlimited else ""
    return f"the clock was held down by {' and '.join(said)}{rest}."


def title_of(views: Sequence[View]) -> str:
    """The page's title: the cards that it is about."""
    cards = list(dict.fromkeys(shorten(view.first.device.name) or "unknown device" for view in views))
    if all(view.first.device.kind == "cpu" for view in views):
        return "What was measured on a CPU"
    if len(cards) == 1:
        return f"What {cards[0]} delivers of its data sheet"
    if len(cards) > _MOST_NAMED:
        return f"What {len(cards)} GPUs deliver of their data sheets"
    return f"What {', '.join(cards[:-1])} and {cards[-1]} deliver of their data sheets"
