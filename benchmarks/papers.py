"""Runs the commands of docs/papers.md that need no model but the builtin one, in the order of the page.

    python benchmarks/papers.py --folder papers --list
    python benchmarks/papers.py --folder papers

They run in the folder, since some read what earlier ones wrote. What a command prints is kept there as NUMBER.txt, and
`done.jsonl` gets a line with its time, exit code and commit. The same call goes on after the last command that
succeeded on this commit; `--again` runs all. Exits with 1 if one fails.
"""

import argparse
import json
import re
import shlex
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs" / "papers.md"


def commands() -> Iterator[str]:
    """Every command of the page, on one line."""
    for block in re.findall(r"^```bash\n(.*?)^```", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL):
        for line in block.replace("\\\n", " ").splitlines():
            if not line.startswith("#"):
                yield " ".join(line.split())


def needs_builtin_only(command: str) -> bool:
    """Whether the command's target is the builtin model, or it is a script of this folder."""
    words = shlex.split(command)
    return words[0] == "python" or ("--target" in words and words[words.index("--target") + 1] == "builtin")


def run(command: str, folder: Path, output: Path) -> int:
    """Runs a command in a folder with this Python's programs; returns its exit code."""
    program, *words = shlex.split(command)
    program = sys.executable if program == "python" else str(Path(sys.executable).parent / program)
    with output.open("w", encoding="utf-8") as file:
        file.write(f"$ {command}\n")
        file.flush()
        return subprocess.run(
            [program, *words], cwd=folder, stdout=file, stderr=subprocess.STDOUT, check=False
        ).returncode


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, required=True, help="where the commands run; made if missing")
    parser.add_argument("--list", action="store_true", help="print the commands with their numbers and run none")
    parser.add_argument("--only", type=int, nargs="+", metavar="NUMBER", help="run these of the list")
    parser.add_argument("--again", action="store_true", help="also run what succeeded before on this commit")
    options = parser.parse_args()
    chosen = {number: command for number, command in enumerate(commands(), 1) if needs_builtin_only(command)}
    if options.only:
        if unknown := [number for number in options.only if number not in chosen]:
            parser.error(f"--only {unknown[0]}: --list prints the numbers")
        chosen = {number: chosen[number] for number in options.only}
    if options.list:
        for number, command in chosen.items():
            print(f"{number:3}  {command}")
        return
    git = ["git", "-C", str(ROOT), "describe", "--always", "--dirty", "--exclude=*"]
    commit = subprocess.run(git, capture_output=True, text=True, check=True).stdout.strip()
    options.folder.mkdir(parents=True, exist_ok=True)
    if not (link := options.folder / "benchmarks").exists():
        link.symlink_to(ROOT / "benchmarks", target_is_directory=True)
    log = options.folder / "done.jsonl"
    lines = [json.loads(line) for line in log.read_text().splitlines()] if log.exists() else []
    done = {line["command"] for line in lines if line["exit_code"] == 0 and line["commit"] == commit}
    failed = 0
    for number, command in chosen.items():
        if command in done and not options.again:
            continue
        print(f"{time.strftime('%H:%M')} {number:3}  {command}", flush=True)
        began = time.monotonic()
        exit_code = run(command, options.folder, options.folder / f"{number}.txt")
        line = {"command": command, "commit": commit, "exit_code": exit_code, "seconds": time.monotonic() - began}
        with log.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")
        if exit_code:
            print(f"exit code {exit_code}: see {options.folder / f'{number}.txt'}", file=sys.stderr)
            failed += 1
    sys.exit(bool(failed))


if __name__ == "__main__":
    main()
