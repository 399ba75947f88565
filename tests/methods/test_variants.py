"""A method with one setting changed, and the settings that are refused."""

import dataclasses
from typing import ClassVar

import pytest

from jaxspec.builders.pruned import Pruned
from jaxspec.builders.static import Static
from jaxspec.builders.uniform import Uniform
from jaxspec.decoding.controller import Controller
from jaxspec.methods import method
from jaxspec.methods.method import LONGEST, parse_method, vary


@dataclasses.dataclass(frozen=True)
class Unsure(Controller):
    """A controller that stops, and that has a setting which chains have too."""

    name: ClassVar[str] = "unsure"
    length: int = 3
    gamma: float = 0.5
    bold: bool = False

    def keep_drafting(self, models, keys, state, signals):
        return signals.top_prob >= self.gamma


@pytest.fixture
def unsure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(method.CONTROLLERS, "unsure", Unsure)


def texts(method: str, setting: str, *values: str) -> list[str]:
    return list(map(str, vary(parse_method(method), setting, values).values()))


def test_each_value_is_a_whole_method_that_is_read_back():
    found = vary(parse_method("draft-model@small+chain,length=9"), "length", ("1", "3"))
    assert list(found) == [1, 3]
    assert list(map(str, found.values())) == [f"draft-model@small+chain,length={n}+fixed" for n in (1, 3)]
    assert [parse_method(str(method)) for method in found.values()] == list(found.values())


def test_every_part_has_its_settings(unsure: None):
    whole = "ngram,longest={},shortest=1,sharpness=4.0+chain,length={}+unsure,length={},gamma={},bold={}"
    method = "ngram+chain+unsure"
    assert texts(method, "longest", "1", "2") == [whole.format(n, LONGEST, 3, 0.5, "false") for n in (1, 2)]
    assert texts(method, "gamma", ".25", "1") == [whole.format(16, LONGEST, 3, g, "false") for g in (0.25, 1.0)]
    assert texts(method, "chain.length", "1", "2") == [whole.format(16, n, 3, 0.5, "false") for n in (1, 2)]
    assert texts(method, "unsure.length", "1", "2") == [whole.format(16, LONGEST, n, 0.5, "false") for n in (1, 2)]
    assert texts(method, "bold", "true", "false") == [whole.format(16, LONGEST, 3, 0.5, b) for b in ("true", "false")]


def test_what_is_no_number_stays_as_it_was_typed():
    found = vary(parse_method("ngram+static"), "paths", ("0:00", "0:1"))
    assert list(found) == ["0:00", "0:1"]
    assert [method.builder for method in found.values()] == [Static(((0,), (0, 0))), Static(((0,), (1,)))]


def test_costs_and_thresholds():
    found = vary(parse_method("ngram+pruned"), "cost", ("0.05", "0.2", "measured"))
    assert list(found) == [0.05, 0.2, "measured"]
    assert [method.builder for method in found.values()] == [Pruned(cost=0.05), Pruned(cost=0.2), Pruned()]
    assert texts("ngram+pruned,cost=0.1", "leaf", "0", "0.02")[1].endswith(
        "leaf=0.02,cost=0.1,total=64,power=1.0,greedy_power=1.0+fixed"
    )
    assert [method.builder for method in vary(parse_method("ngram+uniform"), "width", ("1", "2")).values()] == [
        Uniform(width=1),
        Uniform(width=2),
    ]


def test_heads():
    found = vary(parse_method("eagle+chain,length=2"), "head", ("eagle", "deep", "runs/a/eagle"))
    assert list(found) == ["eagle", "deep", "runs/a/eagle"]
    assert [method.head for method in found.values()] == ["eagle", "deep", "runs/a/eagle"]
    assert str(found["deep"]) == "eagle@deep+chain,length=2+fixed"


@pytest.mark.parametrize(
    ("method", "setting", "values", "says"),
    [
        ("eagle", "widht", "1,2", "no setting 'widht'; its settings are chain.length, head"),
        (
            "ngram",
            "head",
            "a,b",
            "no setting 'head'; its settings are ngram.longest, ngram.shortest, ngram.sh",
        ),
        ("plain", "length", "1,2", "the method plain has no setting 'length'; it has none"),
        ("ngram+chain+unsure", "length", "1,2", "several parts .*: write chain.length or unsure.length"),
        ("ngram", "length", "3", "two or more values of length"),
        ("ngram", "length", "1,2,01", "length has the value '01' twice"),
        ("ngram", "length", "1,many", "chain,length=many: length must be a whole number, not 'many'"),
        ("ngram", "length", "1,", "length must be a whole number, not ''"),
        ("ngram", "length", "1,-1", "length must be at least 0, not -1"),
        ("eagle", "head", "a,", "a head needs a name"),
        ("ngram+static", "paths", "0,00", "has no parent"),
    ],
)
def test_refusals(unsure: None, method: str, setting: str, values: str, says: str):
    with pytest.raises(ValueError, match=says):
        vary(parse_method(method), setting, values.split(","))
