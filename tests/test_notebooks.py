"""The notebooks: outputs of their code, one name of the repository, and each runs from its first cell to its last."""

import importlib.metadata
import importlib.util
import json
import re
import subprocess
import tempfile
import tomllib
from pathlib import Path
from typing import Any

import matplotlib
import pytest

from notebooks import repository, run

ROOT = Path(__file__).parent.parent
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
LARGEST = 300_000  # bytes of a notebook with its outputs
SECONDS = 300  # of a notebook in a kernel of its own; its first cell installs nothing here


def read(notebook: Path) -> dict:
    return json.loads(notebook.read_text(encoding="utf-8"))


def source(cell: dict) -> str:
    return "".join(cell["source"])


def soak_if_long(notebook: Path) -> Any:
    """A notebook as a parameter; two that compile many methods only with --soak."""
    long = notebook.stem in ("which_method", "thompson_sampling")
    return pytest.param(notebook, id=notebook.stem, marks=pytest.mark.soak if long else ())


@pytest.fixture(params=NOTEBOOKS, ids=lambda path: path.stem)
def notebook(request: pytest.FixtureRequest) -> Path:
    return request.param


def test_there_are_six_and_the_readme_links_to_each():
    readme = (ROOT / "README.md").read_text()
    assert len(NOTEBOOKS) == 6
    assert all(f"(notebooks/{notebook.name})" in readme for notebook in NOTEBOOKS)


def test_outputs_are_those_of_its_code(notebook: Path):
    content = read(notebook)
    kept = content["metadata"].pop("jaxspec", {})
    assert kept.get("code_sha256") == run.code_hash(content), f"run: python notebooks/run.py {notebook.stem}"
    outputs = [output for cell in content["cells"] for output in cell.get("outputs", [])]
    assert any(output.get("data", {}).keys() & set(run.IMAGES) for output in outputs), "no figure is stored"
    assert notebook.stat().st_size < LARGEST
    prose = "".join(source(cell) for cell in content["cells"] if cell["cell_type"] == "markdown")
    assert ("JAXSPEC_QUICK" in prose) == kept["quick"], "the text says whether the outputs are of the quick mode"


def test_outputs_have_nothing_local(notebook: Path):
    content = read(notebook)
    assert content["metadata"].keys() <= {"colab", "kernelspec", "language_info", "jaxspec"}
    assert content["metadata"]["language_info"] == {"name": "python"}
    assert all(not cell["metadata"] for cell in content["cells"])
    outputs = [output for cell in content["cells"] for output in cell.get("outputs", [])]
    assert {output["output_type"] for output in outputs} <= {"stream", "display_data"}
    said = "".join("".join(output["text"]) for output in outputs if output["output_type"] == "stream")
    assert {output.get("name", "stdout") for output in outputs} <= {"stdout"}
    assert not re.search(r"(?<![\w.])(/tmp|/home|/root|/Users|[A-Z]:\\)\b|\x1b", said)
    assert str(ROOT) not in said


def test_what_is_local_is_left_out():
    folder = Path("/somewhere/made")
    outputs = [
        {"output_type": "stream", "name": "stdout", "text": [f"in {folder}/my-model\n", "step 1"]},
        {"output_type": "stream", "name": "stderr", "text": ["warning\n"]},
        {
            "output_type": "display_data",
            "metadata": {},
            "data": {"text/html": ["<b>2</b>"], "text/plain": ["\x1b[1m2"]},
        },
        {
            "output_type": "display_data",
            "metadata": {"x": 1},
            "data": {"image/svg+xml": ["<svg/>"], "text/plain": ["?"]},
        },
    ]
    assert run.cleaned(outputs, folder) == [
        {"output_type": "stream", "name": "stdout", "text": ["in my-model\n", "step 12\n"]},
        {"output_type": "display_data", "metadata": {}, "data": {"image/svg+xml": ["<svg/>"]}},
    ]


def test_the_hash_is_of_code_alone(notebook: Path):
    content = read(notebook)
    before = run.code_hash(content)
    content["cells"][0]["source"] = ["# Another title"]
    content["cells"][run.INSTALL]["source"] = ["pass"]
    assert run.code_hash(content) == before
    next(cell for cell in content["cells"][2:] if cell["cell_type"] == "code")["source"].append("\npass")
    assert run.code_hash(content) != before


def test_the_repository_is_named_alike_everywhere(notebook: Path):
    project = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    name = repository.setting(project)
    assert repository.with_url(project, name) == project
    text = notebook.read_text(encoding="utf-8")
    assert repository.with_badge(text, notebook.name, name) == text


def test_a_name_is_written_and_taken_away_again(notebook: Path):
    project, text = (ROOT / "pyproject.toml").read_text(encoding="utf-8"), notebook.read_text(encoding="utf-8")
    named = repository.with_badge(text, notebook.name, "owner/name")
    cells = json.loads(named)["cells"]
    assert f"(https://colab.research.google.com/github/owner/name/blob/main/notebooks/{notebook.name})" in source(
        cells[0]
    )
    assert 'repository = "owner/name"' in source(cells[1])
    assert "colab.research" not in repository.with_badge(named, notebook.name, "")
    urls = tomllib.loads(repository.with_url(project, "owner/name"))["project"]["urls"]
    assert urls == {"Repository": "https://github.com/owner/name"}
    assert "urls" not in tomllib.loads(repository.with_url(project, ""))["project"]
    with pytest.raises(ValueError, match="must be OWNER/NAME or empty"):
        repository.setting('[tool.jaxspec]\nrepository = "https://github.com/owner/name"')


@pytest.mark.parametrize(
    ("files", "name", "wanted"),
    [
        (("jax_specdec-0.1.0-py3-none-any.whl",), "owner/name", r".*/jax_specdec-0\.1\.0-py3-none-any\.whl\[[a-z,]+\]"),
        (("jaxspec/py.typed",), "", r".*\[[a-z,]+\]"),
        (("../jaxspec/py.typed",), "owner/name", r".*\[[a-z,]+\]"),
        ((), "owner/name", r"jax-specdec\[[a-z,]+\] @ git\+https://github\.com/owner/name"),
    ],
)
def test_it_installs_from_a_wheel_a_clone_or_the_repository(
    notebook: Path, files: tuple[str, ...], name: str, wanted: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    (tmp_path / "notebooks").mkdir()
    monkeypatch.chdir(tmp_path / "notebooks")
    for file in map(Path, files):
        file.parent.mkdir(exist_ok=True)
        file.touch()
    run, find = [], importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "jaxspec" else find(name))
    monkeypatch.setattr(subprocess, "run", lambda command, check: run.extend(command))
    cell = json.loads(repository.with_badge(notebook.read_text(encoding="utf-8"), notebook.name, name))["cells"][1]
    exec(source(cell), {})
    *_, found, jax, toolz = run
    assert re.fullmatch(wanted, found)
    assert [jax, toolz] == [f"{name}=={importlib.metadata.version(name)}" for name in ("jax", "toolz")]


def test_with_nothing_to_install_from_it_says_so(notebook: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    cell = json.loads(repository.with_badge(notebook.read_text(encoding="utf-8"), notebook.name, ""))["cells"][1]
    with pytest.raises(SystemExit, match="upload its wheel"):
        exec(source(cell), {})


@pytest.mark.usefixtures("quick_runs")
@pytest.mark.parametrize("notebook", [soak_if_long(notebook) for notebook in NOTEBOOKS], indirect=True)
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
