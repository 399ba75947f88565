"""The output files of `jaxspec eval`.

`OUT.jsonl` holds only answers, one line each, in order of completion and sorted at the end. `OUT.json` holds the
settings from the start, to recognise a killed run, and the results at the end.
"""

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from jaxspec.host.atomic import write_whole
from jaxspec.host.json_lines import append_lines, flat, to_line
from jaxspec.host.processes import is_first, of_first


@dataclasses.dataclass
class AnswerFile:
    """The two output files of one run.

    Attributes:
        path: the file of answers; None: nothing is written. Only the first process has a path.
        settings: the settings that the answers depend on.
        lines: the answers so far, in order of completion.
    """

    path: Path | None
    settings: dict[str, Any]
    lines: list[dict[str, Any]]

    @classmethod
    def open(cls, path: Path | None, settings: dict[str, Any]) -> "AnswerFile":
        """Opens the files, with the answers of an earlier run in every process. An incomplete last line is dropped.

        Raises:
            ValueError: the files belong to another run, or are not files of `eval`.
        """
        if path is None:
            return cls(None, settings, [])
        lines = of_first(lambda: _resume(path, settings))
        return cls(path if is_first() else None, settings, lines)

    @property
    def sorted_lines(self) -> list[dict[str, Any]]:
        """The answers in the order of the questions."""
        return sorted(self.lines, key=lambda line: (line["index"], line["sample"]))

    def add(self, line: dict[str, Any]) -> None:
        """Adds an answer and writes it to disk."""
        self.lines.append(line)
        if self.path is not None:
            append_lines(self.path, [line])

    def finish(self, results: Callable[[dict[str, Any]], str]) -> None:
        """Sorts the answers on disk, and writes `results(settings)` to the .json file beside them."""
        if self.path is not None:
            write_whole(self.path, "".join(map(to_line, self.sorted_lines)))
            write_whole(self.path.with_suffix(".json"), results(self.settings))


def _resume(path: Path, settings: dict[str, Any]) -> list[dict[str, Any]]:
    """The answers of an earlier run. Rewrites both files, with these answers only."""
    lines = _read(path, settings) if path.exists() else []
    write_whole(path.with_suffix(".json"), json.dumps(settings, indent=2) + "\n")
    write_whole(path, "".join(map(to_line, lines)))
    return lines


def _read(path: Path, settings: dict[str, Any]) -> list[dict[str, Any]]:
    beside = path.with_suffix(".json")
    try:
        there = json.loads(beside.read_text(encoding="utf-8"))["settings"]
        *ended, _ = path.read_text(encoding="utf-8").split("\n")
        lines = [json.loads(line) for line in ended]
        if not all({"index", "sample", "turns"} <= line.keys() for line in lines):
            raise ValueError("a line is not an answer")
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(
            f"{path} exists, but it and {beside.name} are not results of `jaxspec eval`: choose another --out"
        ) from error
    for name, ours in flat(json.loads(json.dumps({"settings": settings["settings"]}))).items():
        if (theirs := there.get(name)) != ours:
            raise ValueError(
                f"{path} belongs to a run with other settings ({name} is {theirs} there and {ours} here); delete it or "
                "choose another --out"
            )
    return lines
