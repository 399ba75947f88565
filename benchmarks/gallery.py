"""Draws pictures of docs/measuring.md from the run of README.md's table of methods on the builtin model:

    python benchmarks/gallery.py builtin_methods.json

`report.png` shows the overview and figures of a report of SHOWN, `trees.png` the least repetitive text and a draft tree
there, and `plan.svg` a plan for eight A100s. The first two need Chromium and Pillow.
"""

import argparse
import dataclasses
import io
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

from PIL import Image
from rich.console import Console
from rich.terminal_theme import DEFAULT_TERMINAL_THEME

from jaxspec.options.by_command import PlanSettings
from jaxspec.planning.plan import plan
from jaxspec.planning.table import show
from jaxspec.report import page
from jaxspec.report.runs import Run, read

RESULTS = Path(__file__).parent / "results"
BROWSER = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
COLOURS = 64  # of a PNG's palette
SHOWN = ("plain", "dflash", "ngram+chain", "eagle+chain", "edd+chain,length=6", "eagle+eagle2")
TREE = "eagle+eagle2,total=8,depth=4,width=4"  # the method whose text and tree are shown
PLAN = PlanSettings(model="llama-2-70b", method="eagle+eagle2", device="a100-80g:8", context=4096, tau="3.8")
PREPARE = """<script>addEventListener("load", () => {
  const selects = () => [...document.querySelectorAll("#answers select")];
  const choose = (select, value) => { select.value = value; select.dispatchEvent(new Event("change")); };
  const rounds = () => [...document.querySelectorAll(".round")];
  const show = (question) => {
    choose(selects()[0], question);
    const chosen = [...selects()[1].options].find((option) => option.text.startsWith("METHOD"));
    if (chosen) choose(selects()[1], chosen.value);
    return new Set(rounds().map((round) => round.textContent)).size;
  };
  const questions = [...selects()[0].options].map((option) => option.value);
  const different = questions.map(show);
  show(questions[different.indexOf(Math.max(...different))]);
  const panel = () => document.querySelector(".tree svg").getBoundingClientRect().height;
  const tall = rounds().map((round) => { round.click(); return panel(); });
  rounds()[tall.indexOf(Math.max(...tall))].click();
  document.querySelectorAll("LEFT_OUT").forEach((each) => each.remove());
});</script>"""


def screenshot(html: str, size: tuple[int, int], out: Path, left_out: str) -> None:
    """Writes the top of a page, `size` pixels of it, as a PNG; `left_out` is a selector of what is not shown."""
    prepare = PREPARE.replace("METHOD", TREE).replace("LEFT_OUT", left_out)
    with tempfile.TemporaryDirectory() as folder:
        file, drawn = Path(folder) / "page.html", Path(folder) / "drawn.png"
        file.write_text(html.replace("</body>", f"{prepare}</body>"), encoding="utf-8")
        flags = ("--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--virtual-time-budget=3000")
        command = [str(BROWSER), *flags, f"--window-size={size[0]},{size[1]}", f"--screenshot={drawn}", file.as_uri()]
        subprocess.run(command, check=True, capture_output=True)
        Image.open(drawn).convert("RGB").quantize(COLOURS).save(out, optimize=True)
    print(f"wrote {out}, {out.stat().st_size / 1e3:.0f} kB")


def draw_plan(out: Path) -> None:
    """Writes what `jaxspec plan` prints as an SVG."""
    console = Console(record=True, width=100, file=io.StringIO(), force_terminal=True, color_system="truecolor")
    show(plan(PLAN), console)
    options = ("model", "method", "device", "context", "tau")
    title = "jaxspec plan " + " ".join(f"--{name} {getattr(PLAN, name)}" for name in options)
    out.write_text(console.export_svg(title=title, theme=DEFAULT_TERMINAL_THEME, unique_id="plan"), encoding="utf-8")
    print(f"wrote {out}, {out.stat().st_size / 1e3:.0f} kB")


def of_methods(run: Run, names: Sequence[str]) -> Run:
    """A run without its other methods."""
    some = {name: run.found["methods"][name] for name in names}
    answers = tuple(answer for answer in run.answers if answer.method in some)
    methods = {name: run.methods[name] for name in some}
    return dataclasses.replace(run, found={**run.found, "methods": some}, answers=answers, methods=methods)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("results", type=Path, help="OUT.json of a finished bench; its log lies beside it")
    parser.add_argument("--out", type=Path, default=RESULTS, help="the folder to write into")
    options = parser.parse_args()
    if BROWSER is None:
        parser.error("there is no Chromium to draw the report with")
    try:
        (run,) = read([options.results])
        several, one = (page.render([of_methods(run, names)]) for names in (SHOWN, ("plain", TREE)))
    except (ValueError, KeyError) as error:
        parser.error(f"{options.results} is not that run: {error}")
    screenshot(several, (1200, 1100), options.out / "report.png", left_out="#generations")
    screenshot(one, (1000, 1200), options.out / "trees.png", left_out="header, nav, section:not(#generations)")
    draw_plan(options.out / "plan.svg")


if __name__ == "__main__":
    main()
