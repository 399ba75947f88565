"""A program that `test_hosts.py` runs as one of two processes: several commands, each a JSON list of arguments."""

import json
import sys

from jaxspec.commands import convert as convert_cli
from jaxspec.commands import main
from jaxspec.commands import train as train_cli

PROGRAMS = {"jaxspec": main, "jaxspec-convert": convert_cli, "jaxspec-train": train_cli}


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
