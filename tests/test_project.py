"""The project as it is packaged: versions, files of a wheel, and words that no file may contain."""

import importlib
import os
import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from importlib import metadata
from pathlib import Path

import jax.numpy as jnp
import jaxtyping
import pytest

import jaxspec
from benchmarks import sentences, tables, verify_tables
from jaxspec.model import rope
from tests import release

ROOT = Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
TOP_LEVEL = ("convert", "train")  # directories of the repository that install as jaxspec.NAME


def project_files() -> list[Path]:
    """What belongs to the project: everything that git does not ignore."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    if listed.returncode:
        pytest.skip("not a git checkout")
    return [path for name in listed.stdout.split("\0") if name and (path := ROOT / name).is_file()]


@pytest.mark.soak
def test_it_shares_an_environment():
    """With other projects in JAX, one after the other, as both use one folder; needs a network."""
    runs = lambda name: shutil.which(name) and not subprocess.run([name, "-c", ""], check=False).returncode
    python = next(filter(runs, ("python3.12", "python3.13")), None)
    if python is None:
        pytest.skip("sglang-jax needs Python 3.12")
    inherited = {name: value for name, value in os.environ.items() if name != "XLA_FLAGS"}  # JAX exits at unknown ones
    for package in ("google-tunix", "sglang-jax"):
        command = ["make", "smoke", "LATEST=1", f"WITH={package}", f"PYTHON={python}"]
        subprocess.run(command, cwd=ROOT, env=inherited, check=True)


def test_version_is_the_installed_one():
    assert jaxspec.__version__ == metadata.version(PROJECT["name"]) == PROJECT["version"]


def test_the_other_project_of_this_name_is_refused(tmp_path: Path):
    """`jaxspec` on PyPI is a library of X-ray astronomy; installed beside ours, each overwrites the other's files."""
    folder = tmp_path / "jaxspec-0.4.0.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text(
        "Metadata-Version: 2.1\nName: jaxspec\nVersion: 0.4.0\nSummary: X-ray fits.\n", encoding="utf-8"
    )
    beside = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        [sys.executable, "-c", "import jaxspec"],
        env={**os.environ, "PYTHONPATH": beside},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert "astronomy" in done.stderr.splitlines()[-1]
    assert "pip uninstall jaxspec" in done.stderr.splitlines()[-1]


@pytest.mark.parametrize("name", vars(jaxspec)["__all__"])
def test_public_names_are_found(name: str):
    assert getattr(jaxspec, name) is not None


def test_console_scripts_are_installed_and_callable():
    entries = metadata.distribution(PROJECT["name"]).entry_points
    installed = {script.name: script for script in entries.select(group="console_scripts")}
    assert {name: script.value for name, script in installed.items()} == PROJECT["scripts"]
    for script in installed.values():
        assert callable(script.load())


@pytest.mark.parametrize("name", TOP_LEVEL)
def test_top_level_directories_are_subpackages(name: str):
    package = importlib.import_module(f"jaxspec.{name}")
    assert Path(package.__path__[0]).samefile(ROOT / name)


def test_shapes_are_checked():
    with pytest.raises(jaxtyping.TypeCheckError):
        rope.rotate(jnp.ones((1, 2, 1, 1, 4)), jnp.ones((1, 2, 2)), jnp.ones((1, 2, 1)))


def test_wheel_holds_every_module_and_the_data(tmp_path: Path):
    source = tmp_path / "source"
    source.mkdir()
    for name in ("jaxspec", *TOP_LEVEL):  # without the symlinks, which some systems do not have
        ignored = shutil.ignore_patterns("__pycache__", "*.egg-info", *(TOP_LEVEL if name == "jaxspec" else ()))
        shutil.copytree(ROOT / name, source / name, ignore=ignored)
    for file in filter(Path.is_file, ROOT.iterdir()):
        shutil.copy(file, source)
    build = "import setuptools.build_meta, sys; print(setuptools.build_meta.build_wheel(sys.argv[1]))"
    command = [sys.executable, "-c", build, str(tmp_path)]
    subprocess.run(command, cwd=source, check=True, capture_output=True)
    (wheel,) = tmp_path.glob("*.whl")
    packed = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}

    own = {str(path.relative_to(ROOT)) for path in (ROOT / "jaxspec").rglob("*") if path.is_file()}
    linked = {f"jaxspec/{path.relative_to(ROOT)}" for name in TOP_LEVEL for path in (ROOT / name).rglob("*.py")}
    expected = {name for name in own | linked if "__pycache__" not in name}
    assert "jaxspec/py.typed" in packed
    assert packed == expected


def test_notes_of_a_release_are_its_section_of_the_changelog():
    text = "# Changelog\n\n## Unreleased\n\n- b\n\n## [0.1.0] - 2026-12-01\n\n### Added\n\n- a\n\n## 0.0.9\n- z\n"
    assert release.notes(text, "0.1.0") == "### Added\n\n- a\n"
    with pytest.raises(SystemExit, match="no section"):
        release.notes(text, "0.2.0")


def test_links_of_pages_lead_to_files_and_headings():
    def anchors(page: Path) -> set[str]:
        headings = re.findall(r"^#+ (.*)", page.read_text(encoding="utf-8"), re.MULTILINE)
        return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}

    dead = []
    for page in (path for path in project_files() if path.suffix == ".md"):
        for link in re.findall(r"\]\((?!https?:)([^)\s]+)\)", page.read_text(encoding="utf-8")):
            path, _, anchor = link.partition("#")
            place = page.parent / path if path else page
            if not place.exists() or (anchor and anchor not in anchors(place)):
                dead.append(f"{page.relative_to(ROOT)}: {link}")
    assert dead == []


def test_measured_numbers_of_pages_are_those_of_the_committed_results():
    for name in tables.PAGES:
        page = (ROOT / name).read_text(encoding="utf-8")
        assert tables.BLOCK.search(page) or name in sentences.SENTENCES
        assert page == tables.made(page), "run: python benchmarks/tables.py"
        assert sentences.missing(name, page) == []
    assert len((ROOT / "README.md").read_text(encoding="utf-8").splitlines()) <= 130


def test_table_of_many_methods_sums_up_those_with_few_tokens_or_few_flips(monkeypatch: pytest.MonkeyPatch):
    counts = {"plain": (900, 9), "brief": (100, 90), **{f"m{flips}": (16_000, flips) for flips in range(16)}}
    keys = ("greedy_tokens", "greedy_flips")
    found = {name: dict(zip(keys, each, strict=True)) for name, each in counts.items()}
    again = {"plain": found["brief"], "m15": found["m3"]}  # of another seed
    monkeypatch.setattr(verify_tables, "MOST_ROWS", 12)
    monkeypatch.setattr(verify_tables, "runs_in", lambda dtype: {"a": {"methods": found}, "b": {"methods": again}})
    rows = verify_tables.verify_methods("int8").splitlines()[2:]
    assert rows[:2] == ["| `plain` against itself | 1,000 | 99 | 99.00 |", "| `m14` | 16,000 | 14 | 0.88 |"]
    assert "| `m15` | 32,000 | 18 | 0.56 |" in rows
    assert rows[-1] == f"| all 5 others | {4 * 16_000 + 100:,} | {0 + 1 + 2 + 3 + 90} | 1.50 |"


def test_no_file_names_a_path_of_some_machine():
    absolute = re.compile(rb"(?<![\w.~$}/-])/(?:work|home|root|Users)/")
    named = [str(path.relative_to(ROOT)) for path in project_files() if absolute.search(path.read_bytes())]
    assert not named
