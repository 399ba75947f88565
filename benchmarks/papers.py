"""Runs the commands of docs/papers.md that need no model but the builtin one, in the order of the page.

    python benchmarks/papers.py --folder papers --list
    python benchmarks/papers.py --folder papers

They run in the folder, since some read what earlier ones wrote. What a command prints is kept there as NUMBER.txt, the
results of a benchmark as NUMBER.json, and `done.jsonl` gets a line with its exit code and time. The same call resumes,
without commands that succeeded; `--again` runs all. One folder holds one commit's run. The exit code is 1 if a command
fails.
"""

import argparse
import re
import shlex
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from string import Template

from jaxspec.host.json_lines import LineLog

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs" / "papers.md"
OUTPUT = {"bench": "--json", "sweep": "--out"}  # the option that names a benchmark's results


def commands() -> Iterator[str]:
    """Every command of the page, on one line, with the page's shell variables replaced."""
    variables: dict[str, str] = {}
    for block in re.findall(r"^```bash\n(.*?)^```", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL):
        for line in block.replace("\\\n", " ").splitlines():
            command = Template(" ".join(line.split())).substitute(variables)
            if assigned := re.fullmatch(r'(\w+)="(.*)"', command):
                variables[assigned[1]] = assigned[2]
            elif not command.startswith("#"):
                yield command


def needs_builtin_only(command: str) -> bool:
    """Whether the command's target is the builtin model, or it is a script of this folder."""
    words = shlex.split(command)
    return words[0] == "python" or ("--target" in words and words[words.index("--target") + 1] == "builtin")


def output_of(command: str) -> str | None:
    """The file that a benchmark is told to write its results to."""
    words = shlex.split(command)
    option = OUTPUT.get(words[1])
    return words[words.index(option) + 1] if option in words else None


def run(command: str, folder: Path, output: Path) -> int:
    """Runs a command in a folder with this Python's programs; returns its exit code.

    Benchmarks write their results beside the output, as .json, unless the command names a file.
    """
    program, *words = shlex.split(command)
    if words[0] in OUTPUT and output_of(command) is None:
        words += [OUTPUT[words[0]], output.with_suffix(".json").name]
    program = sys.executable if program == "python" else str(Path(sys.executable).parent / program)
    with output.open("w", encoding="utf-8") as file:
        file.write(f"$ {command}\n")
        file.flush()
        done = subprocess.run([program, *words], cwd=folder, stdout=file, stderr=subprocess.STDOUT, check=False)
    return done.returncode


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, required=True, help="where the commands run; made if missing")
    parser.add_argument("--list", action="store_true", help="print the commands with their numbers and run none")
    parser.add_argument("--only", type=int, nargs="+", metavar="NUMBER", help="run these of the list")
    parser.add_argument("--again", action="store_true", help="also run what succeeded before")
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
    about = {"commit": commit}
    log = LineLog(options.folder / "done.jsonl", "the log of benchmarks/papers.py", "another --folder")
    try:
        lines = log.read(about)
    except ValueError as error:
        parser.error(str(error))
    log.write(about, lines)
    done = {line["command"] for line in lines if line["exit_code"] == 0}
    failed = 0
    for number, command in chosen.items():
        if command in done and not options.again:
            continue
        print(f"{time.strftime('%H:%M')} {number:3}  {command}", flush=True)
        began = time.monotonic()
        exit_code = run(command, options.folder, options.folder / f"{number}.txt")
        log.append([{"command": command, "exit_code": exit_code, "seconds": time.monotonic() - began}])
        if exit_code:
            print(f"exit code {exit_code}: see {options.folder / f'{number}.txt'}", file=sys.stderr)
            failed += 1
    sys.exit(bool(failed))


if __name__ == "__main__":
    main()
