"""A page of made-up runs: every number in it comes from the logs, and nothing in it from elsewhere."""

import json
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from jaxspec.report import page, papers
from jaxspec.report import runs as finished
from jaxspec.report.generations import turn_to_json
from tests.report import made_up
from tests.report.rebuilt import Rebuilt


class Numbers(HTMLParser):
    """Collects (where it is from, value, text) of what says where it is from, and the text of other cells of ours."""

    def __init__(self, text: str):
        super().__init__()
        self.found: list[tuple[Any, float, str]] = []
        self.tags: list[str] = []
        self.bare: list[str] = []
        self.ours = self.cell = self.inside = False
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]):
        values = dict(attrs)
        self.tags.append(tag)
        self.ours = values.get("class") == "ours" if tag == "tbody" else self.ours
        self.cell, self.inside = (tag == "td" or (self.cell and tag == "data")), tag == "data"
        if source := values.get("data-of"):
            self.found.append((json.loads(source), float(values.get("value") or values["data-value"] or "nan"), ""))

    def handle_data(self, data: str):
        if self.inside:
            self.found[-1] = (*self.found[-1][:2], data)
        elif self.ours and self.cell:
            self.bare.append(data)

    def handle_endtag(self, tag: str):
        self.inside = False
        self.cell = self.cell and tag != "td"


@pytest.fixture(scope="module")
def numbers(html: Path) -> Numbers:
    return Numbers(html.read_text(encoding="utf-8"))


def rebuild(source: list, logs: list[Rebuilt]) -> float:
    match source:
        case ["ratio", first, second]:
            return rebuild(first, logs) / rebuild(second, logs)
        case ["difference", first, second]:
            return rebuild(first, logs) - rebuild(second, logs)
        case ["histogram", run, method, column, value]:
            return logs[run].rounds_with(method, column, value)
        case ["replayed", run, method, at]:
            return logs[run].learnt(method, at)
        case ["unexplained", run]:
            return sum(len(found) for found in logs[run].measured["divergences"].values())
        case [run, method, *keys]:
            return logs[run].value(method, keys)
    raise AssertionError(source)


def test_every_number_follows_from_the_logs(numbers: Numbers, runs: list[Path]):
    logs = [Rebuilt(path) for path in runs]
    known: dict[str, float] = {}
    for source, value, _ in numbers.found:
        key = json.dumps(source)
        if key not in known:
            known[key] = rebuild(source, logs)
        assert value == pytest.approx(known[key], rel=1e-4, abs=1e-4), source
    kinds = {str(source[2]) for source, *_ in numbers.found if isinstance(source[0], int)}
    assert {"speedup", "tau", "acceptance_by_position", "categories", "calibration", "quality"} <= kinds
    operations = {source[0] for source, *_ in numbers.found if isinstance(source[0], str)}
    assert operations == {"ratio", "difference", "histogram", "replayed", "unexplained"}
    assert len(known) > 1000


def test_what_is_shown_is_the_value(numbers: Numbers):
    shown = [(value, text) for _, value, text in numbers.found if text]
    for value, text in shown:
        digits = text.rstrip("×").replace("−", "-")
        half = 0.501 * 10.0 ** -len(digits.partition(".")[2])
        assert any(abs(float(digits) - value * unit) <= half for unit in (1, 100, 1000)), (value, text)
    assert len(shown) > 300


def test_no_number_of_ours_comes_from_nowhere(numbers: Numbers):
    assert set(numbers.bare) == {"–"}


def test_the_tables_of_four_papers(runs: list[Path]):
    tables = [table for _, tables in papers.every(finished.read(runs)) for table in tables]
    sources = " ".join(table.source for table in tables)
    for source in ("EAGLE, Table 1", "EAGLE, Table 2", "EAGLE, Table 5", "EAGLE, Table 7", "EESD, Tables 1 to 3",
                   "EESD, Table 8", "EDD, Table 1", "EDD, Table 2", "Draft & Verify, Table 1", "Table 5"):  # fmt: skip
        assert source in sources
    for table in tables:
        assert table.published, table.source
        assert {len(row) for row in (*table.ours, *table.published)} == {len(table.columns)}, table.source
        assert sum(wide for _, wide in table.groups) in (0, len(table.columns))
    ours = {table.source: len(table.ours) for table in tables}
    assert ours["EAGLE, Table 5"] == 2  # the runs that have a chain of five and the static tree
    assert ours["EAGLE, Table 7"] == 5  # EAGLE's methods, over two batch sizes
    assert ours["EDD, Table 1"] == 3 + 3  # chains of five; the run of GSM8K adds columns to the first row
    assert ours["Draft & Verify, Table 1"] == 0  # no summaries


def test_text_is_escaped(html: Path, numbers: Numbers):
    text = html.read_text(encoding="utf-8")
    assert "img" not in numbers.tags
    assert text.count("</script>") == numbers.tags.count("script") == 2
    assert "<img" not in text
    data = re.search(r'id="generations-data">(.*?)</script>', text, re.DOTALL)
    assert data is not None
    assert made_up.NASTY in json.loads(data[1])[0]["questions"][0]["methods"]["plain"][0]["asked"]


def test_nothing_is_fetched(html: Path):
    text = html.read_text(encoding="utf-8")
    assert not re.findall(r'(?:src|href)="(?!#|data:)', text)
    assert "@import" not in text and "url(" not in text
    assert set(re.findall(r"https?://[^\"' ]*", text)) == {"http://www.w3.org/2000/svg"}  # a name, not a place


def test_rounds_of_a_generation(runs: list[Path]):
    (run, *_) = finished.read(runs)
    turn = run.turns("eagle+static")[0]
    found = turn_to_json(turn)
    said = "".join(found["first"]) + "".join(piece for each in found["rounds"] for piece in each["pieces"])
    assert said == turn.text
    for each, row in zip(found["rounds"], turn.rounds, strict=True):
        assert len(each["tree"]["accepted"]) == each["accepted"] + 1 == row[1] + 1
        assert len(each["tree"]["words"]) == row[4] + 1


def test_a_simulated_run_says_so(tmp_path: Path):
    out = made_up.write(tmp_path / "out.json", made_up.METHODS[:2], simulate="acceptance=0.7")
    text = page.render(finished.read([out]))
    assert "Simulated: weights are random" in text
    assert text.count("simulated") > 10


@pytest.mark.parametrize(
    ("lines", "says"),
    [
        (slice(0, 3), "not finished; run the same"),
        (slice(1, 3), "is not the log of a bench run"),
        (slice(0, 0), "not finished"),
    ],
)
def test_a_run_that_is_not_whole_is_refused(lines: slice, says: str, runs: list[Path], tmp_path: Path):
    whole = Path(f"{runs[0]}.jsonl").read_text(encoding="utf-8").splitlines(keepends=True)
    (tmp_path / "out.json.jsonl").write_text("".join(whole[lines]), encoding="utf-8")
    with pytest.raises(ValueError, match=says):
        page.write([tmp_path / "out.json"], tmp_path / "report.html")
    assert not (tmp_path / "report.html").exists()


def test_what_is_not_there_is_named(tmp_path: Path, runs: list[Path]):
    with pytest.raises(ValueError, match=r"there is no .*nowhere\.json\.jsonl, which `jaxspec bench --json"):
        page.write([tmp_path / "nowhere.json"], tmp_path / "report.html")
    with pytest.raises(ValueError, match="name at least one file"):
        page.write([], tmp_path / "report.html")
    with pytest.raises(ValueError, match="there is no folder"):
        page.write(runs, tmp_path / "nowhere" / "report.html")
