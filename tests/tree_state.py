"""A name for the state of the working tree, under which results are stored."""

import hashlib
import subprocess
from pathlib import Path

ROOT = Path(__file__).parent.parent


def name() -> str:
    """The commit, and a hash of what was changed since; `unknown` outside of a git checkout."""
    try:
        changes = _git("diff", "HEAD") + _git("status", "--porcelain")
        commit = _git("rev-parse", "--short=12", "HEAD").strip()
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return f"{commit}+{hashlib.sha256(changes.encode()).hexdigest()[:8]}" if changes else commit


def _git(*arguments: str) -> str:
    return subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=True).stdout
