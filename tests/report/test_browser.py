"""The page in a real browser: drawn, nothing fetched, nothing logged as an error; wide and narrow, light and dark."""

import json
import re
import shutil
import subprocess
from html import unescape
from pathlib import Path
from typing import Any

import pytest

BROWSER = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
pytestmark = pytest.mark.skipif(BROWSER is None, reason="there is no Chromium to look at the page with")

PROBE = """<script>addEventListener("load", () => {
  const box = (node) => node.getBoundingClientRect();
  const clicked = [...document.querySelectorAll(".round")][2];
  if (clicked) clicked.click();
  const found = {
    fetched: performance.getEntriesByType("resource").map((entry) => entry.name),
    overflow: document.documentElement.scrollWidth - innerWidth,
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
    nodes: document.querySelectorAll("article:first-of-type .tree .node").length,
  };
  const shown = document.createElement("pre");
  shown.id = "probe";
  shown.textContent = JSON.stringify(found);
  document.body.append(shown);
});</script>"""
FLAGS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--enable-logging=stderr", "--no-first-run"),
    *("--disable-background-networking", "--disable-dev-shm-usage", "--virtual-time-budget=2000", "--dump-dom"),
)


def look(page: Path, folder: Path, width: int, dark: bool) -> tuple[dict[str, Any], str]:
    """Opens a page with the probe in it: what the probe found, and the lines of the page's console."""
    file = folder / "probed.html"
    file.write_text(page.read_text(encoding="utf-8").replace("</body>", PROBE + "</body>"), encoding="utf-8")
    assert BROWSER is not None
    scheme = "0" if dark else "1"
    command = [BROWSER, *FLAGS, f"--user-data-dir={folder / 'profile'}", f"--window-size={width},900"]
    command += [f"--blink-settings=preferredColorScheme={scheme}", file.as_uri()]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=True)
    probe = re.search(r'<pre id="probe">(.*?)</pre>', done.stdout, re.DOTALL)
    assert probe is not None, done.stderr[-2000:]
    return json.loads(unescape(probe[1])), "\n".join(line for line in done.stderr.splitlines() if "CONSOLE" in line)


@pytest.mark.parametrize(("dark", "background"), [(False, "rgb(247, 247, 245)"), (True, "rgb(19, 20, 22)")])
@pytest.mark.parametrize("width", [1280, 500])
def test_the_page_is_drawn(width: int, dark: bool, background: str, html: Path, tmp_path: Path):
    found, console = look(html, tmp_path, width, dark)
    assert console == ""
    assert found["fetched"] == []
    assert found["width"] == width
    assert found["overflow"] <= 0  # tables scroll by themselves
    assert found["background"] == background
    assert found["charts"] > 20 and found["flat"] == 0
    assert found["rounds"] > 10 and found["images"] == 0
    assert found["cut"] == 2 and found["unjudged"] == 0 and found["struck"] > 10  # two turns end
    assert found["panel"] == "Round 3" and found["nodes"] >= 6  # the root and a chain of five


def test_what_is_logged_or_fetched_would_be_seen(tmp_path: Path):
    page = tmp_path / "broken.html"
    page.write_text(
        '<body><img src="http://127.0.0.1:9/missing.png"><script>nothing()</script></body>', encoding="utf-8"
    )
    found, console = look(page, tmp_path, 1280, False)
    assert "nothing is not defined" in console
    assert [Path(name).name for name in found["fetched"]] == ["missing.png"]
