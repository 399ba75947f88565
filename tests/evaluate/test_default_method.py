"""The default method: the fastest of those that `jaxspec calibrate --all` timed, or the first in the order of
preference."""

import dataclasses
import json
from pathlib import Path

import pytest
from flax import nnx

from jaxspec.checkpoint.builtin import locate
from jaxspec.checkpoint.checksums import NAME as CHECKSUMS
from jaxspec.checkpoint.config_json import CheckpointError
from jaxspec.checkpoint.heads import CALIBRATION, HeadConfig, write_head
from jaxspec.checkpoint.loading import Checkpoint, load
from jaxspec.commands import methods as methods_command
from jaxspec.controllers import ExpectedGain
from jaxspec.costs import calibration
from jaxspec.costs.calibration import how_run
from jaxspec.decoding.strategy import CostTable
from jaxspec.drafters import Medusa
from jaxspec.engine.default_method import default_at, default_of
from jaxspec.engine.engine import Engine
from jaxspec.evaluate import calibrate, results
from jaxspec.evaluate.all_methods import all_methods
from jaxspec.methods.method import parse_method
from jaxspec.options.by_command import Calibrate, Methods
from tests.evaluate import tiny

FAST = str(parse_method("ngram+chain,length=2"))
TABLE = CostTable(plain=1e-3, verify=((1, 1e-3), (8, 2e-3)), level=((1, 1e-4), (4, 2e-4)))


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The cache folder of this test alone."""
    monkeypatch.setenv("JAXSPEC_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def model(tmp_path: Path) -> Checkpoint:
    return load(tiny.checkpoint(tmp_path / "ckpt"))


def keep(model: Checkpoint, batch_size: int = 1, **speeds: float) -> Path:
    """Keeps these speeds of plain decoding and of FAST, as if they had been measured."""
    key = calibration.speeds_key(model.path, model.heads, batch_size=batch_size, **how_run(model))
    calibration.store(key, {calibration.SPEEDS: {"plain": speeds["plain"], FAST: speeds["fast"]}})
    return key.file


def test_all_methods_are_timed_kept_and_printed(model, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(calibrate, "all_methods", lambda path: ("plain", "ngram+chain,length=2"))
    monkeypatch.setattr(calibrate, "REPEATS", 1)
    questions = tiny.prompts(tmp_path / "questions.jsonl", [{"prompt": "abab"}])
    calibrate.run(Calibrate(target=model.path, all=True, prompts=questions, max_new_tokens=4))
    out, err = capsys.readouterr()
    assert "kept in" in err
    key = calibration.speeds_key(model.path, model.heads, batch_size=1, **how_run(model))
    speeds = calibration.read_speeds(key)
    assert set(speeds) == {"plain", FAST} and min(speeds.values()) > 0
    fastest = max(speeds, key=speeds.__getitem__)
    assert out.splitlines()[-1] == f"Default from now on: {fastest}"
    assert FAST in "".join(line.partition(" ")[0] for line in out.splitlines())  # folded, but whole
    assert str(default_of(model).method) == fastest


def test_measured_costs_are_not_part_of_the_default(model, tmp_path, monkeypatch):
    """Another machine measures others, and may go on with a run: `Engine.named` is in its identity."""
    monkeypatch.setattr(calibrate, "all_methods", lambda path: ("plain", "ngram+pruned"))
    monkeypatch.setattr(calibrate, "REPEATS", 1)
    monkeypatch.setattr(calibration, "measure", lambda *given: TABLE)
    monkeypatch.setattr(results, "speeds", lambda found: [2.0 if found[0].method == "ngram+pruned" else 1.0])
    questions = tiny.prompts(tmp_path / "questions.jsonl", [{"prompt": "abab"}])
    calibrate.run(Calibrate(target=model.path, all=True, prompts=questions, max_new_tokens=4))
    typed = Engine.calibrated(model, "ngram+pruned")
    assert "cost=measured" in str(typed.named) and "cost=0.2," in str(typed.method)
    for engine in (Engine(model), Engine.calibrated(model)):
        assert (engine.named, engine.method) == (typed.named, typed.method)


def test_the_fastest_is_taken_and_said(model, capsys):
    keep(model, plain=10.0, fast=12.0)
    assert str(Engine.calibrated(model).method) == FAST
    assert f"method: {FAST} (the fastest by `jaxspec calibrate --all`)" in capsys.readouterr().err
    assert str(Engine(model).method) == FAST
    keep(model, plain=10.0, fast=9.0)
    assert str(Engine.calibrated(model).method) == "plain"
    assert str(Engine.calibrated(model, "ngram+chain,length=3").method) == str(parse_method("ngram+chain,length=3"))
    methods_command.run(Methods(target=model.path))
    assert "without --method: plain (the fastest" in capsys.readouterr().out


@pytest.mark.parametrize("changed", [CHECKSUMS, CALIBRATION])
def test_otherwise_the_order_of_preference_holds(model, changed, capsys):
    preferred = str(parse_method("ngram"))
    assert str(Engine.calibrated(model).method) == preferred
    assert "first in the order of preference; `jaxspec calibrate --all` finds" in capsys.readouterr().err
    keep(model, plain=10.0, fast=12.0)
    assert str(Engine.calibrated(model, batch_size=8).method) == preferred  # other batches were not measured
    assert "`jaxspec calibrate --all --batch-size 8`" in capsys.readouterr().err
    assert str(default_of(model).method) == FAST
    (model.path / changed).write_text("of other weights, which other drafts of would be accepted\n")
    assert str(default_of(model).method) == preferred


def test_the_default_is_reduced_to_what_its_head_allows():
    found = default_at(locate("builtin"), ("dflash",), dtype="float32", device="another")
    assert str(found.method) == "dflash,block=6+chain,length=5+fixed"


def test_a_default_head_that_cannot_be_read_is_said_when_it_is_loaded(model):
    folder = model.path / "heads" / "dflash"
    folder.mkdir(parents=True)
    (folder / "config.json").write_text("{")
    found = default_at(model.path, ("dflash",), dtype="float32", device="another")
    assert found.method == parse_method("dflash")
    with pytest.raises(CheckpointError, match="dflash"):
        Engine(model, found.method)
    folder.rename(folder.with_name("mine"))
    found = default_at(model.path, ("mine",), dtype="float32", device="another")
    assert found.method == parse_method("ngram") and "the head mine is left out: " in found.reason


@pytest.mark.parametrize(
    ("name", "method", "expected"),
    [
        ("medusa", None, "medusa"),
        ("eagle", None, "medusa"),  # whatever its folder is called
        ("mine", "medusa,history=4+chain,length=2", "medusa,history=4+chain,length=2"),
        ("medusa", "eagle+chain", "is not one of this head; write medusa before"),
        ("mine", "eagle@mine+chain", "is not one of this head; write medusa@mine before"),
        ("medusa", "medusa+nothing", "there is no builder or controller 'nothing'"),
        ("medusa", 3, "is not the config of a trained head"),
    ],
)
def test_a_head_may_name_its_default(model, name, method, expected):
    folder, config = model.path / "heads" / name, model.config.model
    drafter = Medusa()
    shape = drafter.head_for(config)
    head = drafter.build_head(shape, nnx.Rngs(0))
    write_head(folder, HeadConfig("medusa", shape.model, "float32", "float32", dict(shape.settings)), head)
    file = folder / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"method": method}))
    again = load(model.path)
    if method is None or " " not in expected:
        expected = str(dataclasses.replace(parse_method(expected), head=name))
        assert str(Engine(again).method) == expected
        careful = dataclasses.replace(parse_method(expected), controller=ExpectedGain())
        assert method is None or {expected, str(careful)} <= {
            str(parse_method(each)) for each in all_methods(model.path)
        }
    else:
        with pytest.raises(CheckpointError, match=expected):
            Engine(again)


@pytest.mark.parametrize(
    ("damage", "says"),
    [
        (lambda values: "{", "cannot be read"),
        (lambda values: json.dumps({**values, calibration.SPEEDS: {}}), "cannot be read"),
        (lambda values: json.dumps({**values, calibration.SPEEDS: {"nothing": 1.0}}), "no drafter 'nothing'"),
        (lambda values: json.dumps({**values, "of": {**values["of"], "versions": {}}}), "measured with other versions"),
    ],
)
def test_a_table_that_is_no_good_decides_nothing(model, damage, says):
    file = keep(model, plain=10.0, fast=12.0)
    file.write_text(damage(json.loads(file.read_text())))
    found = default_of(model)
    assert str(found.method) == str(parse_method("ngram")) and says in found.reason


@pytest.mark.parametrize("asked", [{}, {"all": True, "head": "ngram"}])
def test_either_one_head_or_all(asked):
    with pytest.raises(ValueError, match="either --head NAME"):
        calibrate.run(Calibrate(target=Path("anything"), **asked))
