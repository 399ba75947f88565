"""Hook of mkdocs: the README is the first page, the public names make a reference, links out of docs/ are rewritten.

A link to a file outside docs/ leads to the repository that pyproject.toml names; without one its text stands alone. A
link to a file that does not exist is a warning, which fails the build.
"""

import ast
import logging
import re
import tomllib
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parent.parent
REPOSITORY = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["tool"]["jaxspec"]["repository"]
LINK = re.compile(r"(!?)\[([^\[\]]*)\]\((?!https?:|#)([^)\s#]+)(#[^)\s]*)?\)")
GROUPS = {
    "Generate and measure": ("engine", "checkpoint", "model", "methods", "options"),
    "Strategies": ("decoding",),
    "Training": ("train",),
}
"""The parts of the reference, by the package in which a public name is defined."""

log = logging.getLogger("mkdocs.hooks.site")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Adds the pages that are generated."""
    files.append(File.generated(config, "index.md", content=(ROOT / "README.md").read_text("utf-8")))
    files.append(File.generated(config, "reference.md", content=reference()))
    return files


def reference() -> str:
    """A page with each public name, in the order of `jaxspec/__init__.pyi`."""
    stub = ast.parse((ROOT / "jaxspec" / "__init__.pyi").read_text("utf-8"))
    names = [
        (node.module or "", one.name) for node in stub.body if isinstance(node, ast.ImportFrom) for one in node.names
    ]
    text = "# Reference\n\nThe public names, each of which is in `import jaxspec`.\n"
    for title, packages in GROUPS.items():
        own = [f"::: {module}.{name}" for module, name in names if module.split(".")[1] in packages]
        text += "\n\n".join([f"\n## {title}", *own, ""])
    return text


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Rewrites the links of a page."""
    source = ROOT / ("README.md" if page.file.src_uri == "index.md" else f"docs/{page.file.src_uri}")

    def rewritten(link: re.Match[str]) -> str:
        image, text, path, anchor = link.groups(default="")
        place = (source.parent / path).resolve()
        if not place.is_relative_to(ROOT) or not place.exists():
            log.warning("%s has a dead link: %s", source.relative_to(ROOT), path)
        if place == ROOT / "README.md":
            return f"[{text}](index.md{anchor})"
        if place.parent == ROOT / "docs":
            return f"{image}[{text}]({place.name}{anchor})"
        if not REPOSITORY:
            return text
        kind = "raw" if image else "blob"
        return f"{image}[{text}](https://github.com/{REPOSITORY}/{kind}/main/{place.relative_to(ROOT)}{anchor})"

    return LINK.sub(rewritten, markdown)
