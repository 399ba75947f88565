"""A program that `test_processes.py` runs as one of two processes: several commands, each a JSON list of arguments."""

import json
import sys

from jaxspec.commands import convert, train
from jaxspec.commands import main as jaxspec

PROGRAMS = {"jaxspec": jaxspec, "jaxspec-convert": convert, "jaxspec-train": train}


def main() -> None:
    for command in map(json.loads, sys.argv[1:]):
        sys.argv = command
        try:
            PROGRAMS[command[0]].main()
        except SystemExit as exit_:
            if exit_.code:
                raise


if __name__ == "__main__":
    main()
