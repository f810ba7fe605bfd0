"""The page in headless Chromium: drawn without complaint, sortable, filterable, copied, inert, narrow, printable."""

import os
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from harness.report.page import render_page
from harness.report.views import Source
from tests import page_runs

if TYPE_CHECKING:
    from playwright.sync_api import BrowserContext, Page

CHROMIUM = Path("/usr/bin/chromium")
ARGUMENTS = (
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)


def _or_skip(missing: str) -> None:
    """Without a browser a desk goes on; CI does not."""
    if os.environ.get("CI") == "true":
        pytest.fail(f"CI=true, and {missing}")
    pytest.skip(missing)


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> "Iterator[BrowserContext]":
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        _or_skip("playwright is not installed: pip install 'ofpeak[dev]'")
    if shutil.which(str(CHROMIUM)) is None:
        _or_skip(f"there is no {CHROMIUM}: apt-get install chromium")
    profile = tmp_path_factory.mktemp("profile")
    with sync_playwright() as playwright:
        context = playwright.chromium.launch_persistent_context(
            profile, executable_path=CHROMIUM, args=list(ARGUMENTS), permissions=["clipboard-read", "clipboard-write"]
        )
        yield context
        context.close()


Opened = Callable[..., "Page"]


@pytest.fixture
def opened(browser: "BrowserContext", tmp_path: Path) -> Iterator[Opened]:
    """Opens a page of sets; afterwards there must have been no message, no error and no request for anything else."""
    complaints: list[str] = []
    pages: list[Page] = []

    def open_page(*sources: Source, width: int = 1280, scheme: str = "light") -> "Page":
        file = tmp_path / "page.html"
        file.write_text(render_page(sources), encoding="utf-8")
        page = browser.new_page()
        page.on("console", lambda message: complaints.append(f"console {message.type}: {message.text}"))
        page.on("pageerror", lambda error: complaints.append(f"error: {error}"))
        page.on("request", lambda r: complaints.append(f"request: {r.url[:80]}") if _is_foreign(r.url, file) else None)
        page.on("dialog", lambda dialog: (complaints.append("dialog"), dialog.dismiss()))
        page.set_viewport_size({"width": width, "height": 900})
        page.emulate_media(color_scheme="dark" if scheme == "dark" else "light")
        page.goto(file.as_uri())
        page.wait_for_selector("html[data-drawn=all]", state="attached")
        pages.append(page)
        return page

    yield open_page
    for page in pages:
        page.close()
    assert complaints == []


def _is_foreign(url: str, file: Path) -> bool:
    return url.partition("#")[0] != file.as_uri() and not url.startswith(("data:", "blob:"))


def _column(page: "Page", table: str, at: int) -> list[str]:
    return [text.strip() for text in page.locator(f"{table} tbody tr:visible > :nth-child({at})").all_text_contents()]


def test_all_plots_are_drawn(opened: Opened):
    page = opened(page_runs.full_source("a"), page_runs.full_source("b", "r2"))
    plots = page.locator(".plot")
    assert plots.count() >= 12
    assert page.locator(".plot[data-drawn=yes] .main-svg").count() >= plots.count()
    assert page.locator(".plot[data-drawn=failed]").count() == 0
    timing = page.evaluate("performance.getEntriesByName('first-paint').map(e => e.startTime)[0]")
    sys.stdout.write(f"first paint after {timing:.0f} ms\n")


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [390, 1280])
def test_soaks_are_drawn_with_their_tables(opened: Opened, width: int, scheme: str):
    page = opened(page_runs.soak_source("a"), page_runs.soak_source("b", "r2"), width=width, scheme=scheme)
    assert page.locator("#soak .plot[data-drawn=yes] .main-svg").count() >= 4
    assert page.locator("#soak .annotation-text", has_text="throttled").count() == 2
    page.locator("#soak summary").first.click()
    assert len(_column(page, "#plot-soak-1-table", 1)) == 120
    assert _overflow(page) <= 0


def test_a_large_page_is_drawn(opened: Opened):
    page = opened(*(page_runs.large_source(number) for number in range(5)))
    timing = page.evaluate("performance.getEntriesByName('first-paint').map(e => e.startTime)[0]")
    sys.stdout.write(f"5 sets of 100 cases: first paint after {timing:.0f} ms\n")


def test_heads_sort_by_mouse_and_keyboard(opened: Opened):
    page = opened(page_runs.full_source())
    table = "#cases-table-1"
    button = page.locator(f"{table} thead button", has_text="of peak")
    button.focus()
    page.keyboard.press("Enter")
    values = _column(page, table, 6)
    known = [float(value) for value in values if value != "–"]
    assert known in (sorted(known), sorted(known, reverse=True))
    assert values[-2:] == ["–", "–"]
    page.keyboard.press("Enter")
    turned = [float(value) for value in _column(page, table, 6) if value != "–"]
    assert turned == known[::-1]
    assert _column(page, table, 6)[-2:] == ["–", "–"]
    assert page.locator(f"{table} th[aria-sort]").count() == 1


def test_the_filter_keeps_rows_that_hold_every_word(opened: Opened):
    page = opened(page_runs.full_source())
    page.locator("#cases-table-1 .filter").fill("GEMM triton")
    assert len(_column(page, "#cases-table-1", 2)) == 1
    assert page.locator("#cases-table-1 .count").inner_text() == "1 of 6 rows"


def test_a_table_behind_a_plot_opens_by_keyboard_and_is_copied_as_csv(opened: Opened):
    page = opened(page_runs.full_source())
    summary = page.locator("#gemm figure summary")
    summary.focus()
    page.keyboard.press("Enter")
    page.locator("#gemm .copy").click()
    page.locator("#gemm .count", has_text="copied").wait_for()
    lines = page.evaluate("navigator.clipboard.readText()").splitlines()
    assert lines[0] == '"set","case","rate (TFLOP/s)","95 % low (TFLOP/s)","95 % high (TFLOP/s)","limited by"'
    assert lines[1] == 'Test,"gemm/dtype=bf16,impl=torch,k=8192,m=8192,n=8192",660,653.4,666.6,power'
    assert len(lines) == 3


def test_hostile_strings_are_inert(opened: Opened):
    page = opened(Source((page_runs.hostile_run(),), (page_runs.ATTACK,), page_runs.ATTACK))
    assert page.evaluate("typeof window.hacked") == "undefined"
    assert page.locator("#intruder").count() == 0
    assert page.locator(".plot a").count() == 0
    page.locator("#environment .copy").click()
    page.locator("#environment .count", has_text="copied").wait_for()
    assert "\n=" not in page.evaluate("navigator.clipboard.readText()")
    assert _overflow(page) <= 0


@pytest.mark.parametrize("width", [390, 1280])
def test_the_page_never_scrolls_sideways(opened: Opened, width: int):
    sources = [page_runs.full_source("a long label of a set"), page_runs.full_source("b", "r2")]
    page = opened(*sources, width=width)
    for summary in page.locator("details summary").all():
        summary.click()
    assert _overflow(page) <= 0


def test_hostile_strings_fit_a_phone(opened: Opened):
    page = opened(Source((page_runs.hostile_run(),), (), page_runs.ATTACK), width=390)
    assert _overflow(page) <= 0


def _overflow(page: "Page") -> int:
    return int(page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth"))


def test_the_theme_follows_the_system_and_the_button(opened: Opened):
    page = opened(page_runs.full_source(), scheme="dark")
    dark = page.evaluate("getComputedStyle(document.body).backgroundColor")
    ink = page.locator("#plot-gemm .xtitle").evaluate("node => node.style.fill")
    page.locator("#theme").click()
    assert page.locator("#theme").inner_text() == "theme: light"
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") != dark
    assert page.locator("#plot-gemm .xtitle").evaluate("node => node.style.fill") != ink
    page.evaluate("localStorage.clear()")


def test_it_prints(opened: Opened):
    page = opened(page_runs.full_source())
    assert page.pdf(format="A4").startswith(b"%PDF")
