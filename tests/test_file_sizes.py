"""The library has few files that are very short, none that is very long, and no package of too many."""

from collections import Counter

from tests.test_imports import MODULES, package

SHORT, LONG = 60, 450  # lines
SHORT_FILES = 45
FILES = {"decoding": 20, "engine": 20, "convert": 21, "evaluate": 20, "planning": 20}
"""Most files of a package, `__init__.py` apart."""

PATHS = {name: path for name, path in MODULES.items() if path.name != "__init__.py"}
LINES = {name: len(path.read_text(encoding="utf-8").splitlines()) for name, path in PATHS.items()}


def test_few_files_are_short():
    assert sum(lines < SHORT for lines in LINES.values()) <= SHORT_FILES


def test_no_file_is_long():
    assert {name: lines for name, lines in LINES.items() if lines > LONG} == {}


def test_no_package_has_too_many_files():
    counts = Counter(package(name) for name in PATHS)
    assert {name: counts[name] for name, most in FILES.items() if counts[name] > most} == {}
