"""The EDD paper's two tables out of a run's methods."""

from rich.console import Console

from jaxspec.evaluate.table import PAPER_COLUMNS, Group, groups, show_groups

DRAFTERS = ("draft-model@vdm+chain,length=5", "eagle+chain,length=5")
BUILDERS = ("eagle", "eagle+eagle2,total=50", "eagle+static")


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


def test_each_number_stands_under_its_title(capsys):
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
