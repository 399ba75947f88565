"""The tables that `bench` prints, and its sentence about the fastest method."""

import pytest
from rich.console import Console

from jaxspec.evaluate.table import fastest, show

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
        "unconditional_acceptance_by_position": [0.81, 0.42],
        "quality": {"exact_match": 0.25, "exact_match_flexible": 0.75},
    }
    show({"m": values}, None, Console(width=100))
    printed = [line.split() for line in capsys.readouterr().out.splitlines()]
    places = [place for place, line in enumerate(printed) if line[:1] == ["m"]]
    assert [printed[place][1:] for place in places] == [
        ["123.4", "1.23", "2.34", "1.45", "0.56", "6.7", "7.89", "8.91", "3"],
        ["[1.11,", "1.35]", "[2.22,", "2.46]", "2.57", "fastest"],
        ["9.1", "6.7", "4.5", "0.123"],
        ["0.81", "0.42"],
        ["0.250", "0.750"],
    ]
    assert printed[: places[0]] == [
        ["speed-", "tau", "accep-", "mod-", "diver-"],
        ["method", "tok/s", "up", "tau", "drafted", "tance", "nodes", "elled", "flat", "gences"],
    ]
    assert [printed[place - 1] for place in places[1:]] == [
        ["uncertainty", "95", "%", "95", "%", "uncut", "fastest", "p"],
        ["drafts", "per", "round", "drafted", "verified", "depth", "ECE"],
        ["accepted", "at", "position", "0", "1"],
        ["quality", "exact_match", "exact_match_flexible"],
    ]
