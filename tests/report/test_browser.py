"""The page in a real browser: drawn, nothing fetched, nothing logged as an error; wide and narrow, light and dark."""

import json
import re
import shutil
import subprocess
from html import escape, unescape
from pathlib import Path
from typing import Any

import pytest

from tests.report import made_up

BROWSER = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
SCREEN = {1280: 900, 390: 844}
"""Heights of screens, by their width in pixels."""
pytestmark = pytest.mark.skipif(BROWSER is None, reason="there is no Chromium to look at the page with")

PROBE = """<script>addEventListener("load", () => {
  const box = (node) => node.getBoundingClientRect();
  const all = (selector) => [...document.querySelectorAll(selector)];
  const before = box(document.querySelector("#papers")).top + scrollY;
  const overflow = document.documentElement.scrollWidth - innerWidth;
  all("details").forEach((each) => { each.open = true; });
  const colours = {}, add = (name, colour) => (colours[name] ??= new Set()).add(colour);
  all(".legend").forEach((legend) => legend.querySelectorAll("li").forEach((entry) =>
    add(entry.textContent.split(": ")[0], getComputedStyle(entry.querySelector("path")).stroke)));
  const scale = (label) => box(label.ownerSVGElement).width / label.ownerSVGElement.viewBox.baseVal.width;
  const size = (label) => parseFloat(getComputedStyle(label).fontSize) * scale(label);
  const lines = (cell) => {
    const range = document.createRange();
    range.selectNodeContents(cell);
    return new Set([...range.getClientRects()].map((each) => Math.round(each.top))).size;
  };
  const overlaps = (a, b) => a.left < b.right && b.left < a.right && a.top < b.bottom && b.top < a.bottom;
  const crossed = all(".chart").filter((chart) => [...chart.querySelectorAll(".axis[transform]")].some((label) =>
    [...chart.querySelectorAll(".tick")].some((tick) => overlaps(box(label), box(tick)))));
  const clicked = [...document.querySelectorAll(".round")][2];
  if (clicked) clicked.click();
  const found = {
    fetched: performance.getEntriesByType("resource").map((entry) => entry.name),
    overflow: Math.max(overflow, document.documentElement.scrollWidth - innerWidth),
    before,
    colours: Object.fromEntries(Object.entries(colours).map(([name, found]) => [name, [...found]])),
    smallest: Math.min(...all(".chart text").map(size)),
    broken: all(".ours tr > th:last-of-type").filter((cell) => lines(cell) > 1).map((cell) => cell.textContent),
    shortened: all(".chart text").filter((label) => label.textContent.endsWith("…")).length,
    crossed: crossed.map((chart) => chart.getAttribute("aria-label")),
    headings: all("main > section > h2").map((each) => each.textContent),
    width: innerWidth,
    background: getComputedStyle(document.body).backgroundColor,
    flat: [...document.querySelectorAll(".chart")].filter((node) => box(node).height < 40).length,
    charts: document.querySelectorAll(".chart").length,
    rounds: document.querySelectorAll(".round").length,
    images: document.images.length,
    panel: document.querySelector(".panel .bar strong")?.textContent,
    cut: [...document.querySelectorAll(".round")].filter((round) => !round.querySelector(".bonus")).length,
    unjudged: [...document.querySelectorAll(".round:not(:has(.bonus)) .rejected")].length,
    struck: document.querySelectorAll(".rejected").length,
    nodes: document.querySelectorAll("#answers > article .tree .node").length,
  };
  const shown = document.createElement("pre");
  shown.id = "probe";
  shown.textContent = JSON.stringify(found);
  parent.document.body.append(shown);
});</script>"""
FLAGS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--enable-logging=stderr", "--no-first-run"),
    *("--disable-background-networking", "--disable-dev-shm-usage", "--virtual-time-budget=2000", "--dump-dom"),
)


def look(page: Path, folder: Path, width: int, dark: bool) -> tuple[dict[str, Any], str]:
    """Opens a page with the probe in it: what the probe found, and the lines of the page's console.

    The page is in a frame, since no window is as narrow as a phone.
    """
    file = folder / "probed.html"
    probed = escape(page.read_text(encoding="utf-8").replace("</body>", PROBE + "</body>"))
    frame = f'<iframe style="border:0" width="{width}" height="900" srcdoc="{probed}"></iframe>'
    file.write_text(f'<!doctype html><meta charset="utf-8"><link rel="icon" href="data:,">{frame}', encoding="utf-8")
    assert BROWSER is not None
    scheme = "0" if dark else "1"
    command = [BROWSER, *FLAGS, f"--user-data-dir={folder / 'profile'}", "--window-size=1400,1000"]
    command += [f"--blink-settings=preferredColorScheme={scheme}", file.as_uri()]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=True)
    probe = re.search(r'<pre id="probe">(.*?)</pre>', done.stdout, re.DOTALL)
    assert probe is not None, done.stderr[-2000:]
    return json.loads(unescape(probe[1])), "\n".join(line for line in done.stderr.splitlines() if "CONSOLE" in line)


@pytest.mark.parametrize(("dark", "background"), [(False, "rgb(247, 247, 245)"), (True, "rgb(19, 20, 22)")])
@pytest.mark.parametrize("width", [1280, 390])
def test_the_page_is_drawn(width: int, dark: bool, background: str, html: Path, tmp_path: Path):
    found, console = look(html, tmp_path, width, dark)
    assert console == ""
    assert found["fetched"] == []
    assert found["width"] == width
    assert found["overflow"] <= 0  # tables scroll by themselves
    assert found["background"] == background
    assert found["before"] <= 5 * SCREEN[width]
    assert found["headings"] == ["Overview", "Generations", "Figures", "The papers' tables", "How it was measured"]
    assert {name: each for name, each in found["colours"].items() if len(each) > 1} == {}
    own = [each for name, (each, *_) in found["colours"].items() if name in made_up.METHODS]
    assert len(set(own)) == len(own) > 5
    assert found["smallest"] >= 8.5 and found["broken"] == [] and found["shortened"] == 0
    assert found["crossed"] == []
    assert found["charts"] > 10 and found["flat"] == 0
    assert found["rounds"] > 10 and found["images"] == 0
    assert found["cut"] == 2 and found["unjudged"] == 0 and found["struck"] > 10  # two turns end
    assert found["panel"] == "Round 3" and found["nodes"] >= 6  # the root and a chain of five


def test_what_is_logged_or_fetched_would_be_seen(tmp_path: Path):
    page = tmp_path / "broken.html"
    page.write_text(
        '<body><section id="papers"></section><img src="http://127.0.0.1:9/missing.png"><script>nothing()</script></body>',
        encoding="utf-8",
    )
    found, console = look(page, tmp_path, 1280, False)
    assert "nothing is not defined" in console
    assert [Path(name).name for name in found["fetched"]] == ["missing.png"]
