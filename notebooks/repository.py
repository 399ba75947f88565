"""Writes the repository's name, `tool.jaxspec.repository` of pyproject.toml, everywhere else: `python repository.py`.

That is `[project.urls]`, and each notebook's Colab badge and install cell. While the name is empty, there is no badge
and no URL, and notebooks install from a clone or an uploaded wheel.
"""

import json
import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
INSTALL = """import importlib.metadata
import importlib.util
import os
import subprocess
import sys
import tempfile
from pathlib import Path

repository = "{repository}"
if Path("/content").is_dir():  # in Colab nothing is written elsewhere
    folders = {{"JAXSPEC_CACHE": "/content/.jaxspec", "HF_HOME": "/content/.huggingface", "TMPDIR": "/content"}}
    os.environ |= folders | dict(os.environ)  # what is set already stays
    tempfile.tempdir = None  # the kernel may have looked it up before
if importlib.util.find_spec("jaxspec") is None:
    wheels = sorted(Path.cwd().glob("jax_specdec-*.whl"))  # uploaded beside this notebook
    clones = [folder for folder in (Path.cwd(), Path.cwd().parent) if (folder / "jaxspec" / "py.typed").is_file()]
    if wheels or clones:
        wanted = f"{{[*clones, *wheels][-1]}}[{extras}]"
    elif repository:
        wanted = f"jax-specdec[{extras}] @ git+https://github.com/{{repository}}"
    else:
        sys.exit("jaxspec is not installed: upload its wheel beside this notebook, or run this in a clone")
    # The JAX of a Colab runtime fits its accelerator. The newest chex would replace toolz, which other packages pin.
    stay = [name for name in ("jax", "toolz") if importlib.util.find_spec(name)]
    kept = [f"{{name}}=={{importlib.metadata.version(name)}}" for name in stay]
    subprocess.run([sys.executable, "-m", "pip", "install", "--quiet", wanted, *kept], check=True)"""


def setting(pyproject: str) -> str:
    """The name OWNER/NAME on GitHub, or nothing. Raises ValueError for anything else."""
    name = tomllib.loads(pyproject)["tool"]["jaxspec"]["repository"]
    if name and not re.fullmatch(r"[\w.-]+/[\w.-]+", name):
        raise ValueError(f"tool.jaxspec.repository must be OWNER/NAME or empty, not {name!r}")
    return name


def with_url(pyproject: str, repository: str) -> str:
    """pyproject.toml with `[project.urls]` of the repository, or without."""
    bare = re.sub(r'\[project\.urls\]\nRepository = "[^"]*"\n\n', "", pyproject)
    urls = f'[project.urls]\nRepository = "https://github.com/{repository}"\n\n' if repository else ""
    return bare.replace("[project.optional-dependencies]", f"{urls}[project.optional-dependencies]")


def with_badge(notebook: str, name: str, repository: str) -> str:
    """A notebook, as JSON, with the badge and install cell of the repository; `name` is its file's."""
    content = json.loads(notebook)
    title, install = content["cells"][:2]
    badge = "[![Open in Colab](https://colab.research.google.com/assets/colab-badge.svg)]"
    link = f"(https://colab.research.google.com/github/{repository}/blob/main/notebooks/{name})"
    lines = [line for line in title["source"] if not line.startswith(badge)]
    while lines[1:2] == ["\n"]:
        del lines[1]
    title["source"] = [lines[0], "\n", *([f"{badge}{link}\n", "\n"] if repository else []), *lines[1:]]
    (extras,) = set(re.findall(r"\[([a-z,]+)\]", "".join(install["source"])))
    code = INSTALL.format(repository=repository, extras=extras)
    install["source"] = code.splitlines(keepends=True)
    return json.dumps(content, indent=1, ensure_ascii=False) + "\n"


def main() -> None:
    """Writes what differs."""
    project = ROOT / "pyproject.toml"
    repository = setting(project.read_text(encoding="utf-8"))
    written = {project: with_url(project.read_text(encoding="utf-8"), repository)}
    for file in sorted((ROOT / "notebooks").glob("*.ipynb")):
        written[file] = with_badge(file.read_text(encoding="utf-8"), file.name, repository)
    for file, text in written.items():
        if text != file.read_text(encoding="utf-8"):
            file.write_text(text, encoding="utf-8")
            print(f"wrote {file.relative_to(ROOT)}")


if __name__ == "__main__":
    main()
