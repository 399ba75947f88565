"""The notebooks: stripped, in agreement on where the project lives, and each runs from its first cell to its last."""

import importlib.util
import json
import re
import tempfile
import tomllib
from pathlib import Path

import matplotlib
import pytest

ROOT = Path(__file__).parent.parent
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
HOME = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["urls"]["Repository"]
SECONDS = 300  # of a notebook in a kernel of its own; its first cell installs nothing here


def read(notebook: Path) -> dict:
    return json.loads(notebook.read_text(encoding="utf-8"))


def source(cell: dict) -> str:
    return "".join(cell["source"])


@pytest.fixture(params=NOTEBOOKS, ids=lambda path: path.stem)
def notebook(request: pytest.FixtureRequest) -> Path:
    return request.param


def test_there_are_six_and_the_readme_links_to_each():
    readme = (ROOT / "README.md").read_text()
    assert len(NOTEBOOKS) == 6
    assert all(f"(notebooks/{notebook.name})" in readme for notebook in NOTEBOOKS)


def test_outputs_are_stripped(notebook: Path):
    content = read(notebook)
    code = [cell for cell in content["cells"] if cell["cell_type"] == "code"]
    assert content["metadata"].keys() <= {"colab", "kernelspec", "language_info"}
    assert content["metadata"]["language_info"] == {"name": "python"}
    assert all(not cell["outputs"] and cell["execution_count"] is None for cell in code)
    assert all(not cell["metadata"] for cell in content["cells"])


def test_it_opens_in_colab_and_installs_from_where_the_project_lives(notebook: Path):
    title, install = (source(cell) for cell in read(notebook)["cells"][:2])
    place = HOME.removeprefix("https://github.com/")
    assert f"(https://colab.research.google.com/github/{place}/blob/main/notebooks/{notebook.name})" in title
    guarded = r'if importlib.util.find_spec\("jaxspec"\) is None:\n    wanted = "jax-specdec\[[\w,]+\] @ git\+(.+)"\n'
    assert re.findall(guarded, install) == [HOME]


@pytest.mark.usefixtures("little_to_compile_and_time")
def test_it_runs(notebook: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Cell by cell in this process, where compiled programs are shared and shapes checked: plain Python, no magic."""
    monkeypatch.setenv("JAXSPEC_QUICK", "1")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    matplotlib.use("Agg")
    from matplotlib import pyplot

    drawn: list[int] = []
    monkeypatch.setattr(pyplot, "show", lambda: (drawn.extend(pyplot.get_fignums()), pyplot.close("all")))
    space: dict = {"__name__": "__main__"}
    for number, cell in enumerate(read(notebook)["cells"]):
        if cell["cell_type"] == "code":
            exec(compile(source(cell), f"{notebook.name}, cell {number}", "exec"), space)
    assert drawn
    assert not pyplot.get_fignums(), "a figure is not shown"


@pytest.mark.soak
def test_it_runs_in_a_kernel(notebook: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """As a reader runs it: in a fresh kernel, with its event loop and its own way of showing things."""
    if importlib.util.find_spec("ipykernel") is None:
        pytest.skip("ipykernel is not installed")
    nbclient, nbformat = pytest.importorskip("nbclient"), pytest.importorskip("nbformat")
    monkeypatch.setenv("JAXSPEC_QUICK", "1")
    content = nbformat.read(notebook, as_version=4)
    nbclient.NotebookClient(content, timeout=SECONDS, resources={"metadata": {"path": str(tmp_path)}}).execute()
    outputs = [output for cell in content.cells if cell.cell_type == "code" for output in cell.outputs]
    assert any("image/png" in output.get("data", {}) for output in outputs)
