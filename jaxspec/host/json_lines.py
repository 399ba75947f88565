"""A JSON-lines file from which a killed run resumes: the settings come first, then the results so far."""

import dataclasses
import json
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from jaxspec.host import buckets
from jaxspec.host.atomic import write_whole

_BEGIN = '{"settings":'  # of the first line


@dataclasses.dataclass(frozen=True)
class LineLog:
    """Such a file; for errors, its kind, such as `the log of a bench run`, and `other`, such as `another --json`."""

    path: Path
    kind: str
    other: str

    def read(self, settings: dict[str, Any]) -> list[dict[str, Any]]:
        """The lines after the settings; none if there is no file. Raises as `lines`, and if settings differ."""
        if not self.path.exists() or not (lines := self.lines()):
            return []
        there, here = flat(lines[0]["settings"]), flat(json.loads(json.dumps(settings)))
        for name, ours in here.items():
            if (theirs := there.get(name)) != ours:
                raise ValueError(
                    f"{self.path} belongs to a run with other settings ({name} is {theirs} there and {ours} here); "
                    f"delete it or choose {self.other}"
                )
        return lines[1:]

    def resume(self, settings: dict[str, Any], size: int = 1) -> list[dict[str, Any]]:
        """The whole batches of `size` lines that a killed run has left. Removes the rest. Raises as `read`."""
        lines = self.read(settings)
        kept = lines[: len(lines) // size * size]
        self.write(settings, kept)
        return kept

    def lines(self) -> list[dict[str, Any]]:
        """All complete lines, the settings first. Raises ValueError if the file is no log."""
        *ended, rest = self.path.read_text(encoding="utf-8", errors="replace").split("\n")
        if not ended and rest[: len(_BEGIN)] != _BEGIN[: len(rest)]:
            raise ValueError(f"{self.path} is not {self.kind}; delete it or choose {self.other}")
        try:
            lines = [json.loads(line) for line in ended]
        except ValueError as error:
            raise ValueError(f"{self.path} is not {self.kind} ({error}); delete it or choose {self.other}") from error
        are_objects = all(isinstance(line, dict) for line in lines)
        if not are_objects or (lines and not isinstance(lines[0].get("settings"), dict)):
            raise ValueError(f"{self.path} is not {self.kind}; delete it or choose {self.other}")
        return lines

    def write(self, settings: dict[str, Any], lines: Iterable[dict[str, Any]]) -> None:
        """Replaces the file."""
        write_whole(self.path, "".join(map(to_line, [{"settings": settings}, *lines])))

    def append(self, lines: Iterable[dict[str, Any]]) -> None:
        append_lines(self.path, lines)


def append_lines(path: Path, lines: Iterable[dict[str, Any]]) -> None:
    """Adds lines to a file, and waits until they are on disk; in a bucket they may be there some seconds later."""
    if buckets.in_bucket(path):
        buckets.append(path, "".join(map(to_line, lines)))
        return
    with path.open("a", encoding="utf-8") as file:
        file.write("".join(map(to_line, lines)))
        file.flush()
        os.fsync(file.fileno())


def to_line(values: dict[str, Any]) -> str:
    return json.dumps(values, separators=(",", ":")) + "\n"


def flat(values: dict[str, Any]) -> dict[str, Any]:
    """One level of nesting less; the inner keys are distinct."""
    return {
        name: inner
        for key, value in values.items()
        for name, inner in (value.items() if isinstance(value, dict) else [(key, value)])
    }
