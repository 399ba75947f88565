"""A page of made-up runs: every number on it comes from the logs, and it loads nothing from elsewhere."""

import dataclasses
import json
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from jaxspec.evaluate.runlog import log_of
from jaxspec.options.by_command import Report
from jaxspec.report import page, papers, svg
from jaxspec.report import runs as finished
from jaxspec.report.figures import _rounds_drawn, colours_of, control
from jaxspec.report.page import turn_to_json
from jaxspec.report.papers import published
from tests.report import made_up
from tests.report.rebuilt import Rebuilt


class Numbers(HTMLParser):
    """Collects (where it is from, value, text) of what says where it is from, and the text of other cells of ours.

    Of those in tables `columns` has (title of the table, title of the column), by their place in `found`.
    """

    def __init__(self, text: str):
        super().__init__()
        self.found: list[tuple[Any, float, str]] = []
        self.columns: dict[int, tuple[str, str]] = {}
        self.table, self.titles, self.row = "", list[str](), list[str]()
        self.tags: list[str] = []
        self.bare: list[str] = []
        self.ours = self.cell = self.inside = False
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]):
        values = dict(attrs)
        self.tags.append(tag)
        self.table = values.get("aria-label") or "" if values.get("role") == "region" else self.table
        self.row = [] if tag == "tr" else [*self.row, ""] if tag in ("th", "td") else self.row
        self.ours = values.get("class") == "ours" if tag == "tbody" else self.ours
        self.cell, self.inside = (tag == "td" or (self.cell and tag == "data")), tag == "data"
        if source := values.get("data-of"):
            if "td" in (tag, *self.tags[-2:-1]):
                self.columns[len(self.found)] = (self.table, self.titles[len(self.row) - 1])
            self.found.append((json.loads(source), float(values.get("value") or values["data-value"] or "nan"), ""))

    def handle_data(self, data: str):
        if self.row:
            self.row[-1] += data
        if self.inside:
            self.found[-1] = (*self.found[-1][:2], data)
        elif self.ours and self.cell:
            self.bare.append(data)

    def handle_endtag(self, tag: str):
        self.inside = False
        self.titles = self.row if tag == "thead" else self.titles  # its last row
        self.row = [] if tag == "table" else self.row
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
        case ["replayed", run, method, at]:
            return logs[run].learnt(method, at)
        case ["unexplained", run]:
            found = logs[run].measured["divergences"].values()
            return sum(not each["explained"] for listed in found for each in listed)
        case ["a question", run, *source]:
            return rebuild([run, *source], logs) / logs[run].questions()
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
        assert value == pytest.approx(known[key], rel=1e-4, abs=1e-8), source
    kinds = {str(source[2]) for source, *_ in numbers.found if isinstance(source[0], int)}
    assert {"speedup", "tau", "acceptance_by_position", "categories", "calibration", "quality"} <= kinds
    operations = {source[0] for source, *_ in numbers.found if isinstance(source[0], str)}
    assert operations == {"ratio", "difference", "replayed", "unexplained", "a question"}
    assert len(known) > 500


HUNDREDTHS = {"Harmonic mean of v_d and r_d, and speedup, by data", "What the harmonic mean is made of"}
MILLI = {"Where the time of a token goes"}


def unit(table: str, column: str) -> int:
    """In what the papers print a column."""
    return 1000 if table in MILLI else 100 if table in HUNDREDTHS and column == "HM" else 1


def test_what_is_shown_is_the_value(numbers: Numbers):
    """In the unit of its column; numbers outside tables have none."""
    units = []
    for at, (_, value, text) in enumerate(numbers.found):
        if text:
            units.append(unit(*numbers.columns.get(at, ("", ""))))
            digits = text.rstrip("×").replace("−", "-")
            half = 0.501 * 10.0 ** -len(digits.partition(".")[2])
            assert float(digits) == pytest.approx(value * units[-1], abs=half, rel=0), (value, text)
    assert len(units) > 300 and {units.count(each) > 10 for each in (1, 100, 1000)} == {True}
    assert ("Where the seconds of a question go", "drafting") in numbers.columns.values()


def test_no_number_of_ours_comes_from_nowhere(numbers: Numbers):
    assert set(numbers.bare) == {"–"}


def test_the_tables_of_the_papers(runs: list[Path]):
    tables = [table for _, tables in papers.by_paper(finished.read(runs)) for table in tables]
    sources = " ".join(table.source for table in tables)
    for source in ("EAGLE, Table 1", "EAGLE, Tables 2, 3 and 8", "EAGLE, Table 4", "EAGLE, Table 5", "EAGLE, Table 7",
                   "EAGLE-3, Table 1", "EESD, Tables 1 to 3", "EESD, Table 5", "EESD, Table 7", "EESD, Table 8",
                   "EDD, Table 1", "EDD, Table 2", "Draft & Verify, Table 1", "Table 5"):  # fmt: skip
        assert source in sources
    for table in tables:
        filled = lambda rows: sorted(cell for row in rows for cell in row if cell != "–")
        assert table.published, table.source
        assert filled(table.published) == filled(published()[table.source].rows)
        assert {len(row) for row in (*table.ours, *table.published)} == {len(table.columns)}, table.source
        assert sum(wide for _, wide in table.groups) in (0, len(table.columns))
    assert published().keys() == {table.source for table in tables}
    ours = {table.source: len(table.ours) for table in tables}
    assert ours["EAGLE, Table 5"] == 2  # the runs that have a chain of five and the static tree
    assert ours["EAGLE, Table 7"] == 5  # EAGLE's methods, over two batch sizes
    assert ours["EESD, Table 5"] == ours["EESD, Table 7"] == 2  # early-exit, in the runs that have all methods
    assert ours["EDD, Table 1"] == 3 + 3  # chains of five; the run of GSM8K adds columns to the first row
    assert ours["Draft & Verify, Table 1"] == 0  # no summaries


def test_tables_of_several_heads_and_of_quantised_weights(tmp_path: Path):
    methods = (
        *("plain", "eagle+chain,length=2", "eagle@other+chain,length=2", "layer-skip@a+chain,length=2"),
        *("layer-skip@b+chain,length=2", "edd+pruned,cost=0.1"),
    )
    paths = [
        made_up.write(tmp_path / "floats.json", methods, 1),
        made_up.write(tmp_path / "ints.json", methods, 1, quantize="int8"),
        made_up.write(tmp_path / "one.json", methods[:2], 1, max_new_tokens=9),
    ]
    ours = {
        table.source: [row[1] for row in table.ours]
        for _, tables in papers.by_paper(finished.read(paths))
        for table in tables
    }
    assert ours["EAGLE, Table 4"] == [*methods[:3]], "the run with integer weights"
    assert ours["EAGLE, Table 6"] == [*methods[1:3]] * 2, "the runs with two heads"
    assert ours["EDD, Table 3"] == [methods[5]] * 2
    assert ours["Draft & Verify, Tables 8 to 10"] == [*methods[3:5]] * 2
    assert ours["Draft & Verify, Tables 12 and 13"] == [*methods[3:5]]


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
    assert "Simulated: the weights are random" in text
    assert text.count("simulated") > 10


@pytest.mark.parametrize(
    ("lines", "says"),
    [
        (slice(0, 3), "not the log of a finished `jaxspec bench`; run the same"),
        (slice(1, 3), "is not the log of a bench run"),
        (slice(0, 0), "not the log of a finished"),
    ],
)
def test_a_run_that_is_not_whole_is_refused(lines: slice, says: str, runs: list[Path], tmp_path: Path):
    whole = Path(f"{runs[0]}.jsonl").read_text(encoding="utf-8").splitlines(keepends=True)
    (tmp_path / "out.json.jsonl").write_text("".join(whole[lines]), encoding="utf-8")
    with pytest.raises(ValueError, match=says):
        page.run(Report(runs=(tmp_path / "out.json",), out=tmp_path / "report.html"))
    assert not (tmp_path / "report.html").exists()


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("[1]", "is not the log of a bench run"),
        ('{"measured": {"forms": {}}}', "not complete, was changed, or is another version's"),
        ('{"measured": {"noise": 0.1, "cost": 2}}', "not complete, was changed, or is another version's"),
        ('{"question": 0, "turns": []}\n{"measured": {}}', "not complete, was changed, or is another version's"),
    ],
)
def test_another_versions_log_is_refused(line: str, says: str, runs: list[Path], tmp_path: Path):
    settings = Path(f"{runs[0]}.jsonl").read_text(encoding="utf-8").partition("\n")[0]
    (tmp_path / "out.json.jsonl").write_text(f"{settings}\n{line}\n", encoding="utf-8")
    with pytest.raises(ValueError, match=says):
        finished.read([tmp_path / "out.json"])


@pytest.mark.parametrize("change", [{"trees": []}, {"rounds": [[1]]}, {"rounds": ["x"], "trees": [{}]}])
def test_a_log_that_was_changed_is_refused(change: dict, runs: list[Path], tmp_path: Path):
    lines = [json.loads(line) for line in Path(f"{runs[0]}.jsonl").read_text(encoding="utf-8").splitlines()]
    lines[1]["turns"][0] |= change
    (tmp_path / "out.json.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines), encoding="utf-8")
    with pytest.raises(ValueError, match="not complete, was changed, or is another version's"):
        finished.read([tmp_path / "out.json"])


@pytest.mark.parametrize(
    ("one", "other", "distinct"),
    [
        ({"dtype": "float32"}, {}, ["float32", "bfloat16"]),
        ({"device": "H100"}, {"device": "H200"}, ["H100", "H200"]),
        ({"quantize": "int8"}, {"quantize": None}, ["int8", ""]),
        ({"mesh": "model=8"}, {"mesh": None}, ["mesh model=8", ""]),
        ({"max_new_tokens": 40}, {"max_new_tokens": 80}, ["40 tokens", "80 tokens"]),
        (
            {"simulate": "acceptance=1"},
            {"simulate": "acceptance=0"},
            ["acceptance=1, simulated", "acceptance=0, simulated"],
        ),
        ({"target": "a/m"}, {"target": "b/m"}, ["in a", "in b"]),
        ({"seed": 1}, {"seed": 2}, ["run 1", "run 2"]),
        ({}, {}, ["run 1", "run 2"]),
    ],
)
def test_no_run_is_written_over_another(one: dict, other: dict, distinct: list[str], tmp_path: Path):
    methods = made_up.METHODS[:2]
    paths = [made_up.write(tmp_path / f"{i}.json", methods, 1, **each) for i, each in enumerate((one, other))]
    read = finished.read(paths)
    assert [run.title.partition("T = 0")[2].removeprefix(", ") for run in read] == distinct
    for table in (table for _, tables in papers.by_paper(read) for table in tables):
        assert len({tuple(map(str, row[:2])) for row in table.ours}) == len(table.ours), table.source
    by_data = next(table for _, tables in papers.by_paper(read) for table in tables if table.source == "EAGLE, Table 1")
    assert len(by_data.ours) == 2


def test_batch_sizes_are_compared_on_one_device(tmp_path: Path):
    runs = [(1, "H100"), (4, "H200"), (1, "H200"), (4, "H200")]
    paths = [
        made_up.write(
            tmp_path / f"{i}.json", made_up.METHODS[:2], 1, batch_size=size, device=device, resolved=f"costs {i}"
        )
        for i, (size, device) in enumerate(runs)
    ]
    groups = papers.same_but_batch_size(finished.read(paths))
    assert [[run.number for run in alike] for alike in groups] == [[0], [1, 2]]


@pytest.mark.parametrize(
    ("prompts", "data"),
    [
        ("data/mt_bench/question.jsonl", "MT-bench"),
        ("data/spec_bench/question.jsonl", "Spec-Bench"),
        ("question.jsonl", "question"),
        ("mine/questions.jsonl.gz", "mine"),
        ("data/GSM8K.jsonl", "GSM8K"),
        ("data/cnn_dm.json", "CNN/DM"),
        ("Other.jsonl", "Other"),
        ("builtin", "held-out Python"),
    ],
)
def test_data_has_its_published_name(prompts: str, data: str, tmp_path: Path):
    (run,) = finished.read([made_up.write(tmp_path / "out.json", made_up.METHODS[:1], 1, prompts=prompts)])
    assert run.data == data
    assert dataclasses.replace(run, found={**run.found, "settings": {**run.settings, "target": "."}}).target == "."


def test_a_run_without_rounds_has_a_page(tmp_path: Path):
    """One new token, which is prefill's."""
    out = made_up.write(tmp_path / "out.json", made_up.METHODS, 2, length=1)
    assert "Where the time goes" in page.render(finished.read([out]))


def test_long_runs_are_thinned(tmp_path: Path):
    methods = ("plain", "layer-skip+chain+adaptive")
    out = made_up.write(tmp_path / "out.json", methods, 1, length=3000)
    (run,) = finished.read([out])
    figure = control(run, colours_of([run]))
    assert figure is not None
    assert 500 <= figure.body.count("<circle") <= 1001
    assert _rounds_drawn(0) == [] and _rounds_drawn(3) == [0, 1, 2] and _rounds_drawn(5001)[-2:] == [4990, 5000]


def test_what_a_page_leaves_out_is_said(runs: list[Path]):
    read = finished.read(runs)
    assert "2 of 3 questions; <code>--generations 3</code> shows all" in page.render(read, 2)
    whole = page.render(read, 3)
    assert "shows all" not in whole
    assert "EAGLE: tables with your numbers: 4 of 6" in whole
    assert "Draft &amp; Verify: tables with your numbers: 3 of 6" in whole
    papers_at = whole.index('<section id="papers">')
    assert whole.index('id="generations"') < whole.index('id="figures"') < papers_at
    for table in re.finditer('<tbody class="published">', whole):
        opened, closed = (whole[papers_at : table.start()].count(tag) for tag in ("<details", "</details>"))
        assert opened == closed + 1, "a published table is not folded away"


def test_a_method_has_one_colour(tmp_path: Path):
    """Over runs of other methods too, and every one its own as long as there are enough."""
    paths = [
        made_up.write(tmp_path / f"{i}.json", methods, 1)
        for i, methods in enumerate((made_up.METHODS, made_up.METHODS[:4][::-1]))
    ]
    colours = colours_of(finished.read(paths))
    assert colours.keys() == {*made_up.METHODS} - {"plain"}
    assert len(set(colours.values())) == len(colours)
    style = (Path(page.__file__).parent / "page.css").read_text(encoding="utf-8")
    assert all(style.count(f".s{i}") == 2 for i in range(10, svg.COLOURS)) and f".s{svg.COLOURS}" not in style


def test_what_is_not_there_is_named(tmp_path: Path, runs: list[Path]):
    with pytest.raises(ValueError, match=r"there is no .*nowhere\.json\.jsonl, which `jaxspec bench --json"):
        page.run(Report(runs=(tmp_path / "nowhere.json",), out=tmp_path / "report.html"))
    with pytest.raises(ValueError, match="name at least one file"):
        page.run(Report(runs=(), out=tmp_path / "report.html"))
    for out in (runs[0], log_of(runs[0])):
        with pytest.raises(ValueError, match="is read by this command"):
            page.run(Report(runs=tuple(runs), out=out))
    with pytest.raises(ValueError, match="there is no folder"):
        page.run(Report(runs=tuple(runs), out=tmp_path / "nowhere" / "report.html"))
