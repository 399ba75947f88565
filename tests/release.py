"""Makes a release of the committed version: `make release`, or `python -m tests.release`.

It builds sdist and wheel from a clone of the commit, installs each into a fresh environment, and runs `tests.smoke`
there. Only then are `dist/` filled, with NOTES.md from the changelog, and the commit tagged. It takes about ten minutes
and needs a network.
"""

import os
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
CLEAN = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}  # which may name a checkout


def run(*command: str | Path, cwd: Path = ROOT, stdout: int | None = None) -> None:
    subprocess.run(command, cwd=cwd, env=CLEAN, stdout=stdout, check=True)


def git(*arguments: str) -> str:
    """What git prints, or "" if it fails."""
    return subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True).stdout.strip()


def notes(changelog: str, version: str) -> str:
    """The section of this version. Raises SystemExit if there is none."""
    found = re.search(rf"^## \[?{re.escape(version)}\b[^\n]*\n(.*?)(?=^## |\Z)", changelog, re.MULTILINE | re.DOTALL)
    if found is None:
        sys.exit(f"CHANGELOG.md has no section {version}: rename `## Unreleased` to `## {version}`, and commit")
    return found[1].strip() + "\n"


def environment(folder: Path, *packages: str | Path) -> Path:
    """The Python of a new environment with these packages, in the versions of constraints.txt."""
    venv.create(folder, with_pip=True)
    python = folder / ("Scripts" if os.name == "nt" else "bin") / "python"
    pip = ("-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--constraint", ROOT / "constraints.txt")
    run(python, *pip, *packages)
    return python


def main() -> None:
    """Builds, tests and tags. Ends with one sentence if the tree, the tag or the changelog is not ready."""
    version = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["version"]
    commit, tag = git("rev-parse", "HEAD"), f"v{version}"
    if git("status", "--porcelain"):
        sys.exit("the working tree has changes: commit them, or stash them")
    if git("tag", "--list", tag):
        sys.exit(f"the tag {tag} exists: raise the version in pyproject.toml")
    text = notes((ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), version)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        run("git", "clone", "--quiet", ROOT, folder / "source")  # only what is committed, and no old egg-info
        built = folder / "dist"
        python = environment(folder / "build", "build")
        # It builds the wheel from the sdist, and prints each file that it copies.
        run(python, "-m", "build", "--outdir", built, cwd=folder / "source", stdout=subprocess.DEVNULL)
        (folder / "tests").mkdir()
        for file in ("__init__.py", "smoke.py"):
            shutil.copy(ROOT / "tests" / file, folder / "tests")
        for kind in ("*.whl", "*.tar.gz"):
            (package,) = built.glob(kind)
            print(f"Installing {package.name} and testing it ...", flush=True)
            python = environment(folder / "fresh", f"{package}[quant,report,search]")
            run(python, "-m", "tests.smoke", cwd=folder)  # where no jaxspec but the installed one can be imported
            shutil.rmtree(folder / "fresh")
        (built / "NOTES.md").write_text(text, encoding="utf-8")
        shutil.copytree(built, ROOT / "dist", dirs_exist_ok=True)
    run("git", "tag", "--annotate", tag, "--message", f"jax-specdec {version}", commit)
    print(f"Tagged {tag}. To publish: git push origin {tag}, and twine upload dist/jax_specdec-{version}*")


if __name__ == "__main__":
    main()
