"""The tables that `bench` prints, those of the EDD paper among them, and its sentence about the fastest method."""

import pytest
from rich.console import Console

from jaxspec.evaluate.table import PAPER_COLUMNS, Group, fastest, groups, show, show_groups

DRAFTERS = ("draft-model@vdm+chain,length=5", "eagle+chain,length=5")
BUILDERS = ("eagle", "eagle+eagle2,total=50", "eagle+static")
VALUES = {"depth_per_round": 4.0, "draft_cost": 0.1, "nodes_per_round": 4.0, "verify_cost": 1.3, "tau": 2.5}


def test_the_fastest_method_is_named_or_plain_decoding_where_that_is():
    found = {"ngram+chain": {**VALUES, "speedup": 1.5}, "eagle+eagle2": {**VALUES, "speedup": 0.7}}
    assert fastest(found).startswith("Fastest: ngram+chain, 1.50x plain. Each round drafts 4.0 levels")
    found["ngram+chain"]["speedup"] = 0.9
    said = fastest(found)
    assert said.startswith("Fastest: plain decoding. The best method that drafts is ngram+chain, 0.90x plain. Each")


def test_each_number_stands_under_its_title(capsys: pytest.CaptureFixture):
    """No two numbers are equal, so none can be printed in the place of another."""
    values = {
        "tokens_per_second": 123.4,
        "speedup": 1.23,
        "tau": 2.34,
        "tau_drafted": 1.45,
        "acceptance_rate": 0.56,
        "nodes_per_round": 6.7,
        "modelled_speedup": 7.89,
        "flat_speedup": 8.91,
        "divergences": [{}, {}, {}],
        "unexplained_divergences": 0,
        "speedup_interval": [1.11, 1.35],
        "tau_interval": [2.22, 2.46],
        "tau_uncut": 2.57,
        "against_fastest": None,
        "nodes_drafted_per_round": 9.1,
        "depth_per_round": 4.5,
        "expected_calibration_error": 0.123,
        "quality": {"exact_match": 0.25, "exact_match_flexible": 0.75},
    }
    show({"m": values}, None, Console(width=100))
    printed = [line.split() for line in capsys.readouterr().out.splitlines()]
    places = [place for place, line in enumerate(printed) if line[:1] == ["m"]]
    assert [printed[place][1:] for place in places] == [
        ["123.4", "1.23", "2.34", "1.45", "0.56", "6.7", "7.89", "8.91", "3"],
        ["[1.11,", "1.35]", "[2.22,", "2.46]", "2.57", "fastest"],
        ["9.1", "6.7", "4.5", "0.123"],
        ["0.250", "0.750"],
    ]
    assert printed[: places[0]] == [
        ["speed-", "tau", "accep-", "mod-", "diver-"],
        ["method", "tok/s", "up", "tau", "drafted", "tance", "nodes", "elled", "flat", "gences"],
    ]
    assert [printed[place - 1] for place in places[1:]] == [
        ["uncertainty", "95", "%", "95", "%", "uncut", "fastest", "p"],
        ["drafts", "per", "round", "drafted", "verified", "depth", "ECE"],
        ["quality", "exact_match", "exact_match_flexible"],
    ]


def test_what_differs_in_one_part_is_a_group():
    assert groups(["plain", *DRAFTERS]) == [Group("drafter", "chain,length=5", DRAFTERS)]
    assert groups(["plain", *BUILDERS]) == [Group("builder", "eagle", BUILDERS)]
    assert groups(["plain", *DRAFTERS, *BUILDERS]) == [
        Group("drafter", "chain,length=5", DRAFTERS),
        Group("builder", "eagle", (DRAFTERS[1], *BUILDERS)),
    ]


def test_two_heads_of_a_drafter_are_two_drafters():
    names = ("eagle@a", "eagle@b")
    assert groups(names) == [Group("drafter", "chain", names)]


def test_what_differs_in_two_parts_or_in_settings_alone_is_none():
    assert groups(["plain", "eagle+chain,length=2", "eagle+chain,length=3"]) == []
    assert groups(["eagle+static", "ngram+chain", "early-exit+chain+beta-ts"]) == []


def test_a_controller_is_shared_too():
    names = ("eagle+static+beta-ts", "eagle+eagle2+beta-ts")
    assert groups(["eagle+chain", *names]) == [Group("builder", "eagle+beta-ts", names)]


def test_the_tables_show_a_line_a_method(capsys):
    names = ["plain", *DRAFTERS, *BUILDERS]
    methods = {name: {key: i + 0.25 for key, _ in PAPER_COLUMNS.values()} for i, name in enumerate(names)}
    show_groups(methods, Console(width=80))
    out = capsys.readouterr().out
    drafters, builders = out.split("Builders for eagle:")
    assert "Drafters under chain,length=5:" in drafters
    rows = lambda text: [line.split()[0] for line in text.splitlines() if line.strip()]
    assert rows(drafters) == ["Drafters", "drafter", "draft-model@vdm", "eagle"]
    assert rows(builders) == ["builder", "chain,length=5", "chain", "eagle2,total=50", "static"]
    assert "3.25" in builders
    assert all(len(line.rstrip()) <= 80 for line in out.splitlines())


def test_each_number_of_the_papers_stands_under_its_title(capsys):
    numbers = {
        "speedup": 1.11,
        "modelled_speedup": 2.22,
        "acceptance_rate": 0.33,
        "tau_drafted": 4.44,
        "tau": 5.55,
        "nodes_per_round": 6.6,
        "depth_per_round": 7.7,
    }
    show_groups(dict.fromkeys(DRAFTERS, numbers), Console(width=80))
    _, _, titles, row, _ = capsys.readouterr().out.splitlines()
    assert titles.split() == ["drafter", "speedup", "modelled", "acceptance", "tau", "drafted", "tau", "nodes", "depth"]
    assert row.split()[1:] == ["1.11", "2.22", "0.33", "4.44", "5.55", "6.6", "7.7"]


def test_a_number_that_is_not_known_is_a_dash(capsys):
    """As the modelled speedup of `bench --no-prices`."""
    methods = {name: {key: 1.0 for key, _ in PAPER_COLUMNS.values()} | {"modelled_speedup": None} for name in DRAFTERS}
    show_groups(methods, Console(width=80))
    assert all(line.split()[2] == "–" for line in capsys.readouterr().out.splitlines()[3:])
