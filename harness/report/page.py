"""The report as one self-contained HTML file: sections in order, rendered by a template that escapes everything."""

import base64
import functools
import hashlib
import re
from collections.abc import Sequence
from importlib import resources
from typing import TYPE_CHECKING

import harness
from harness.corruption import alarms_of
from harness.report import (
    bursts,
    clocks,
    figures,
    generations,
    overlap_plots,
    roofline,
    scaling,
    shares,
    soak_plots,
    surroundings,
    timelines,
    verdict,
)
from harness.report.panels import Plot, Section, shorten, show_cell
from harness.report.text import clean
from harness.report.views import Source, View, views_of

if TYPE_CHECKING:
    from jinja2 import Environment
    from markupsafe import Markup

# A verdict has some 800 characters; what is much longer came from a file that is not ours.
_LONGEST_PARAGRAPH = 1500
_LONGEST_FACT = 40
_BEFORE_UNIT = re.compile(r"(?<=\d) (?=(?:%|[kMGT]?B/s|[kMGT]?FLOP/s|[kMG]i?B\b|MHz|W\b|pJ|[mµ]?s\b|°C|GPUs?\b))")


def render_page(sources: Sequence[Source], reference: str = "") -> str:
    """The page of these sets; what others are held against is the set of that label, or the first."""
    views = views_of(sources)
    return render(
        title=verdict.title_of(views),
        verdicts=[(view.label, verdict.verdict_of(view), verdict.tiles_of(view)) for view in views],
        sources=[(view.label, _said_of(view)) for view in views],
        sections=sections_of(views, reference),
        reading=surroundings.READING,
        alarms=[clean(told) for view in views for told in alarms_of(view.runs)],
    )


def render(
    title: str,
    verdicts: Sequence[tuple[str, str, Sequence[verdict.Tile]]],
    sources: Sequence[tuple[str, str]],
    sections: Sequence[Section],
    reading: Sequence[tuple[str, str]],
    alarms: Sequence[str] = (),
) -> str:
    """A page of these parts: one file that needs no network, and runs no script but its own."""
    script, plotly = _part("page.js"), _plotly()
    return (
        _environment()
        .get_template("template.html.j2")
        .render(
            title=title,
            version=harness.__version__,
            verdicts=verdicts,
            sources=sources,
            sections=sections,
            reading=reading,
            alarms=alarms,
            style=_part("page.css"),
            script=script,
            plotly=plotly,
            hashes=[_hash(plotly), _hash(script)],
        )
    )


def sections_of(views: Sequence[View], reference: str = "") -> tuple[Section, ...]:
    """The page's sections; one for which nothing was measured is left out, and 'not measured' says why."""
    candidates = (
        _section("shares", "Shares of peak", shares.share_plots(views)),
        generations.generations_section(views, reference),
        _section("memory", "Bandwidth over size", _some(figures.bandwidth_plot(views))),
        _section("gemm", "GEMM by shape and type", _some(figures.gemm_plot(views))),
        _section("collectives", "Collectives", (*figures.collective_plots(views), *scaling.scaling_plots(views))),
        _section("overlap", "Compute beside communication", overlap_plots.overlap_plots(views)),
        _section("roofline", "Roofline", roofline.roofline_plots(views)),
        _section("clocks", "Two clocks", clocks.clock_plots(views)),
        _section("burst", "Burst", bursts.burst_plots(views)),
        _section("time", "Power, clocks, temperature and rate", timelines.timeline_plots(views)),
        _section("soak", "Soak", soak_plots.soak_plots(views)),
        _section("energy", "Energy", figures.energy_plots(views)),
        surroundings.cases_section(views),
        surroundings.missing_section(views),
        surroundings.ruler_section(views),
        surroundings.environment_section(views),
    )
    return tuple(section for section in candidates if section is not None)


def _section(id: str, title: str, plots: Sequence[Plot]) -> Section | None:
    return Section(id, title, plots=tuple(plots)) if plots else None


def _some(plot: Plot | None) -> tuple[Plot, ...]:
    return (plot,) if plot else ()


def _said_of(view: View) -> str:
    """What ran, in one line below the title."""
    run = view.first
    whens = sorted(clean(r.created_at)[:10] for r in view.runs)
    when = whens[0] if whens[0] == whens[-1] else f"{whens[0]} to {whens[-1]}"
    injected = " ".join(run.order.inject)
    facts = [
        ("INJECTED", injected),
        ("declared", run.order.declare),
        ("driver", view.fact("driver")),
        ("torch", view.fact("torch")),
    ]
    said = [f"{name} {shorten(str(value), _LONGEST_FACT)}" for name, value in facts if value]
    runs = f"{len(view.runs)} runs" if len(view.runs) > 1 else "one run"
    profile = shorten(run.order.profile, _LONGEST_FACT)
    return ", ".join([shorten(run.device.name), *said, f"{profile}, {runs}, {when}"])


def _environment() -> "Environment":
    from jinja2 import Environment, PackageLoader, StrictUndefined

    environment = Environment(
        loader=PackageLoader("harness.report", "."),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"cell": show_cell, "joined": _joined, "breakable": _breakable}
    environment.policies["json.dumps_kwargs"] = {"allow_nan": False, "separators": (",", ":")}
    return environment


def _joined(text: str) -> str:
    """Text whose numbers keep their units on the same line."""
    return _BEFORE_UNIT.sub("\u00a0", shorten(text, _LONGEST_PARAGRAPH))


def _breakable(text: str) -> "Markup":
    """Escaped text that may be broken after its commas, as keys want to be; what is copied stays the same."""
    from markupsafe import Markup, escape

    return Markup(",<wbr>").join(escape(part) for part in text.split(","))


def _part(name: str) -> str:
    return resources.files("harness.report").joinpath(name).read_text(encoding="utf-8")


@functools.cache
def _plotly() -> str:
    """plotly.js, once a page; nothing in it may end the script element that it stands in."""
    from plotly.offline import get_plotlyjs

    return str(get_plotlyjs()).replace("</script", "<\\/script")


def _hash(script: str) -> str:
    """What the page's policy allows to run: exactly these scripts, whatever else a run file may bring in."""
    return "sha256-" + base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
