"""Runs notebooks in a kernel and stores their outputs: `python notebooks/run.py [--quick] [NAME ...]`.

A notebook keeps a hash of its code cells beside its outputs, so that a test sees when the code has changed since. What
is local to a run is left out: stderr (progress, warnings), times of execution, and the folder in which it ran.
"""

import argparse
import base64
import hashlib
import io
import json
import os
import re
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).resolve().parent
INSTALL = 1  # this cell holds the repository's name, prints nothing and is not hashed
SECONDS = 3600  # for one cell
IMAGES = ("image/png", "image/svg+xml")
COLOURS = 64


def code_hash(content: Mapping[str, Any]) -> str:
    """SHA-256 of a notebook's code cells but the one that installs, as 64 hexadecimal digits."""
    sources = [
        "".join(cell["source"])
        for number, cell in enumerate(content["cells"])
        if cell["cell_type"] == "code" and number != INSTALL
    ]
    return hashlib.sha256(json.dumps(sources).encode()).hexdigest()


def cleaned(outputs: Iterable[Mapping[str, Any]], folder: Path) -> list[dict[str, Any]]:
    """Outputs of a cell without what is local: figures as images alone, text in one piece and without `folder`."""
    found: list[dict[str, Any]] = []
    for output in outputs:
        if output["output_type"] == "stream":
            said = output["text"] if output["name"] == "stdout" else []
        else:
            data = output["data"]
            images = [kind for kind in IMAGES if kind in data]
            if images:
                image = _smaller(data[images[0]]) if images[0] == "image/png" else data[images[0]]
                found.append({**output, "data": {images[0]: image}, "metadata": {}})
            said = [] if images else _ended(data["text/plain"])
        if not said:
            continue
        if not found or found[-1]["output_type"] != "stream":
            found.append({"name": "stdout", "output_type": "stream", "text": []})
        found[-1]["text"] = _without(folder, [*found[-1]["text"], *said])
    return found


def _smaller(png: str | list[str]) -> str:
    """A PNG, in base64, with a palette of COLOURS: charts need no more, and it is a third of the size."""
    from PIL import Image  # matplotlib, which drew it, needs it too

    made = io.BytesIO()
    drawn = Image.open(io.BytesIO(base64.b64decode("".join(png)))).convert("RGB")
    drawn.quantize(COLOURS, dither=Image.Dither.NONE).save(made, "PNG", optimize=True)
    return base64.b64encode(made.getvalue()).decode() + "\n"


def _ended(lines: list[str]) -> list[str]:
    """Lines of which the last ends too."""
    return lines if not lines or lines[-1].endswith("\n") else [*lines, "\n"]


def _without(folder: Path, lines: list[str]) -> list[str]:
    """Lines of text without escape codes of colours, and with paths relative to `folder`."""
    text = re.sub(r"\x1b\[[0-9;]*m", "", "".join(lines))
    return text.replace(f"{folder}{os.sep}", "").splitlines(keepends=True)


def run(notebook: Path, quick: bool) -> None:
    """Runs a notebook in a fresh kernel, in a folder of its own, and writes its outputs and hash into it.

    Raises:
        nbclient.exceptions.CellExecutionError: a cell failed; the notebook is left as it was.
    """
    import nbclient
    import nbformat

    content = json.loads(notebook.read_text(encoding="utf-8"))
    ran = nbformat.reads(json.dumps(content), as_version=4)
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made).resolve()
        client = nbclient.NotebookClient(
            ran, timeout=SECONDS, record_timing=False, resources={"metadata": {"path": str(folder)}}
        )
        client.execute(env={**os.environ, "JAXSPEC_QUICK": str(int(quick)), "TMPDIR": str(folder)})
        cells = json.loads(nbformat.writes(ran))["cells"]
        for cell, done in zip(content["cells"], cells, strict=True):
            if cell["cell_type"] == "code":
                cell["outputs"] = cleaned(done["outputs"], folder)
                cell["execution_count"] = done["execution_count"]
    content["metadata"]["jaxspec"] = {"code_sha256": code_hash(content), "quick": quick}
    notebook.write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    print(f"wrote {notebook.name}, {notebook.stat().st_size / 1e3:.0f} kB")


def main() -> None:
    """Runs the notebooks that are named, or all."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="little of everything, as the tests run them")
    parser.add_argument("names", nargs="*", metavar="NAME", help="such as quickstart; all, if none is named")
    options = parser.parse_args()
    notebooks = [FOLDER / f"{name}.ipynb" for name in options.names] or sorted(FOLDER.glob("*.ipynb"))
    for notebook in notebooks:
        if not notebook.is_file():
            parser.error(f"there is no notebook {notebook.name}")
    for notebook in notebooks:
        run(notebook, options.quick)


if __name__ == "__main__":
    main()
