"use strict";
(() => {
  const root = document.documentElement;
  const prefersDark = matchMedia("(prefers-color-scheme: dark)");
  // What an upright A4 or letter page leaves between its margins.
  const PAPER_WIDTH_PX = 640;
  const wide = { displayModeBar: false, responsive: true };
  let choice = "auto";
  try { choice = localStorage.getItem("ofpeak-theme") || "auto"; } catch { /* a page from a file may have no storage */ }

  // Plots name colours by role ("var:--text"); the theme gives the value.
  const themed = (value, style) => {
    if (typeof value === "string") return /^var:--[a-z0-9-]+$/.test(value) ? style.getPropertyValue(value.slice(4)).trim() : value;
    if (Array.isArray(value)) return value.map((item) => themed(item, style));
    if (value && typeof value === "object") return Object.fromEntries(Object.entries(value).map(([k, v]) => [k, themed(v, style)]));
    return value;
  };
  const plots = [...document.querySelectorAll(".plot")];
  const draw = (plot, paperWidth) => {
    const { data, layout } = themed(JSON.parse(document.getElementById(`${plot.id}-data`).textContent), getComputedStyle(root));
    const isNarrow = plot.clientWidth < 560;
    data.forEach(unfold);
    if (isNarrow) layout.font.size = 11;
    const size = paperWidth ? { width: paperWidth, autosize: false } : { autosize: true };
    Plotly.react(plot, data, { ...layout, ...size, height: Number(plot.dataset.height) }, wide);
    plot.dataset.drawn = "yes";
  };
  // A time line says the case of each window once: [[text, how many points], ...].
  const unfold = (trace) => {
    if (trace.meta && trace.meta.texts) trace.hovertext = trace.meta.texts.flatMap(([text, times]) => Array(times).fill(text));
  };
  const drawAll = (paperWidth) => plots.forEach((plot) => draw(plot, paperWidth));

  const theme = document.getElementById("theme");
  const apply = (name) => {
    root.dataset.theme = name === "auto" ? (prefersDark.matches ? "dark" : "light") : name;
    theme.textContent = `theme: ${name}`;
  };
  apply(choice);
  theme.addEventListener("click", () => {
    choice = { auto: "light", light: "dark", dark: "auto" }[choice] || "auto";
    try { localStorage.setItem("ofpeak-theme", choice); } catch { /* kept for this visit only */ }
    apply(choice);
    drawAll();
  });
  prefersDark.addEventListener("change", () => { if (choice === "auto") { apply(choice); drawAll(); } });
  addEventListener("beforeprint", () => { root.dataset.theme = "light"; drawAll(PAPER_WIDTH_PX); });
  addEventListener("afterprint", () => { apply(choice); drawAll(); });

  const valueOf = (cell) => {
    const text = [...cell.childNodes].map((node) => (node.className === "mark" ? "" : node.textContent)).join("").trim();
    if (cell.tagName === "TH" || cell.className === "t" || text === "–") return text;
    return Number(cell.dataset.v ?? text);
  };
  const compare = (a, b) => {
    // What is unknown stands last among numbers, whichever way they run.
    if (typeof a === "number" && typeof b === "number") return a - b;
    return String(a).localeCompare(String(b), "en", { numeric: true });
  };
  const sort = (table, at, head) => {
    const down = head.getAttribute("aria-sort") === "ascending";
    table.querySelectorAll("thead th").forEach((other) => other.removeAttribute("aria-sort"));
    head.setAttribute("aria-sort", down ? "descending" : "ascending");
    const body = table.tBodies[0];
    const isNumeric = head.classList.contains("n");
    const rows = [...body.rows].map((row) => [valueOf(row.cells[at]), row]);
    rows.sort(([a], [b]) => {
      if (isNumeric && typeof a !== typeof b) return typeof a === "number" ? -1 : 1;
      return down ? compare(b, a) : compare(a, b);
    });
    body.append(...rows.map(([, row]) => row));
  };
  const csvCell = (cell) => {
    const value = valueOf(cell);
    if (typeof value === "number") return cell.dataset.v ?? String(value);
    const text = value === "–" ? "" : value;
    // A spreadsheet must not take text for a formula.
    const safe = /^[=+\-@\t]/.test(text) ? `'${text}` : text;
    return /[",\n]/.test(safe) ? `"${safe.replaceAll('"', '""')}"` : safe;
  };
  const csvHead = (head) => `"${head.textContent.trim().replaceAll('"', '""')}"`;
  const csv = (table) => [
    [...table.tHead.rows[0].cells].map(csvHead).join(","),
    ...[...table.tBodies[0].rows].filter((row) => !row.hidden).map((row) => [...row.cells].map(csvCell).join(",")),
  ].join("\n") + "\n";
  const copy = async (text) => {
    try { await navigator.clipboard.writeText(text); return true; } catch { /* not allowed here: the old way */ }
    const area = document.createElement("textarea");
    area.value = text;
    document.body.append(area);
    area.select();
    const done = document.execCommand("copy");
    area.remove();
    return done;
  };
  document.querySelectorAll(".table").forEach((box) => {
    const table = box.querySelector("table");
    const count = box.querySelector(".count");
    table.querySelectorAll("thead th").forEach((head, at) => head.firstElementChild.addEventListener("click", () => sort(table, at, head)));
    box.querySelector(".filter").addEventListener("input", (event) => {
      const words = event.target.value.toLowerCase().split(/\s+/).filter(Boolean);
      let shown = 0;
      for (const row of table.tBodies[0].rows) {
        const text = row.textContent.toLowerCase();
        row.hidden = !words.every((word) => text.includes(word));
        shown += row.hidden ? 0 : 1;
      }
      count.textContent = `${shown} of ${table.tBodies[0].rows.length} rows`;
    });
    box.querySelector(".copy").addEventListener("click", async () => {
      count.textContent = (await copy(csv(table))) ? "copied" : "copying is not allowed here";
    });
  });

  // One plot a turn, so that the page can be read and scrolled meanwhile.
  const next = () => {
    const plot = plots.find((p) => !p.dataset.drawn);
    if (!plot) { root.dataset.drawn = "all"; return; }
    try { draw(plot); } catch (error) { plot.dataset.drawn = "failed"; console.error(plot.id, error); }
    setTimeout(next, 0);
  };
  requestAnimationFrame(() => setTimeout(next, 0));
})();
