"""How large the page for 5 sets of 100 cases is and when Chromium first paints it: a script, not a test.

python tests/speed/speed_page.py
"""

# ruff: noqa: T201 - a script prints

import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from harness.report.page import render_page  # noqa: E402  # the path comes first
from tests.page_runs import large_source  # noqa: E402  # the path comes first

LIMIT_BYTES, LIMIT_PAINT_S = 8e6, 2.0
CHROMIUM = Path("/usr/bin/chromium")
FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking"]


def main() -> int:
    """Draw the page, open it, print a line each; 1 where a limit is passed."""
    began_s = time.perf_counter()
    text = render_page([large_source(number) for number in range(5)])
    size_bytes = len(text.encode())
    print(
        f"page of 5 sets x 100 cases: {size_bytes / 1e6:.2f} MB (limit {LIMIT_BYTES / 1e6:.0f}), "
        f"drawn in {time.perf_counter() - began_s:.1f} s"
    )
    paint_s = first_paint_s(text)
    print(
        "first paint: not measured, there is no Chromium"
        if paint_s is None
        else f"first paint: {paint_s:.2f} s (limit {LIMIT_PAINT_S:.0f})"
    )
    return int(size_bytes > LIMIT_BYTES or (paint_s or 0) > LIMIT_PAINT_S)


def first_paint_s(text: str) -> float | None:
    """Seconds from navigation to first paint in a fresh Chromium; `None` without one."""
    if not CHROMIUM.exists():
        return None
    from playwright.sync_api import sync_playwright

    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        path = Path(folder) / "page.html"
        path.write_text(text)
        browser = playwright.chromium.launch(executable_path=str(CHROMIUM), args=FLAGS)
        page = browser.new_page()
        page.goto(path.as_uri())
        page.wait_for_function("performance.getEntriesByName('first-paint').length > 0")
        painted_ms = page.evaluate("performance.getEntriesByName('first-paint')[0].startTime")
        browser.close()
        return float(painted_ms) / 1000


if __name__ == "__main__":
    sys.exit(main())
