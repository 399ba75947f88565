"""`jaxspec calibrate`, and methods that decode with its stored table."""

import dataclasses
import json

import pytest
from flax import nnx

from jaxspec.builders.budgeted import Budgeted
from jaxspec.builders.pruned import Pruned
from jaxspec.checkpoint import heads
from jaxspec.checkpoint.config_json import CheckpointError
from jaxspec.checkpoint.loading import load
from jaxspec.costs import calibration, timing
from jaxspec.decoding.strategy import CostTable
from jaxspec.drafters.dflash import Dflash
from jaxspec.engine.engine import Engine
from jaxspec.engine.head_weights import head_config
from jaxspec.evaluate import bench, calibrate
from jaxspec.evaluate.simulate import random_head
from jaxspec.methods.method import parse_method
from jaxspec.model import backend
from jaxspec.options.by_command import Calibrate
from jaxspec.train.run.heads import initial_shape
from tests.evaluate import tiny
from tests.programs import run

TABLE = CostTable(plain=1e-3, verify=((1, 1e-3), (8, 2e-3)), level=((1, 1e-4), (4, 2e-4)))


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory):
    return tiny.checkpoint(tmp_path_factory.mktemp("calibrate") / "ckpt")


@pytest.fixture(scope="module")
def model(path):
    return load(path)


@pytest.fixture(autouse=True)
def kept(tmp_path, monkeypatch: pytest.MonkeyPatch):
    """A cache folder for this test alone; and few, short timings."""
    monkeypatch.setenv("JAXSPEC_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(timing, "LEAST_SECONDS", 1e-3)
    monkeypatch.setattr(timing, "REPEATS", 1)
    return tmp_path / "cache" / "costs"


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Nothing is timed: every measurement gives TABLE, and is counted here by its drafter."""
    found: list[str] = []

    def measure(model, method, weights, batch_size):
        found.append(repr(method.drafter))
        return TABLE

    monkeypatch.setattr(calibration, "measure", measure)
    return found


def test_the_command_measures_prints_and_keeps(path, kept, monkeypatch, capsys: pytest.CaptureFixture):
    monkeypatch.setattr(calibration, "WIDTHS", (1, 2))
    monkeypatch.setattr(backend, "CPU_TREE_SIZES", (1, 4))
    code, out, err = run("jaxspec", "calibrate", "--target", path, "--head", "ngram")
    assert code == 0
    (file,) = kept.iterdir()
    assert f"kept in {file}" in err
    model = load(path)
    table = calibration.read_costs(calibration.costs_key(model, parse_method("ngram"), 1))
    assert [nodes for nodes, _ in table.verify] == [1, 4]
    assert [nodes for nodes, _ in table.level] == [1]  # a copy is no cheaper for one node than for two
    assert f"{1e3 * table.plain:.3f}" in out
    engine = Engine.calibrated(model, "ngram+budgeted")
    assert capsys.readouterr().err == ""  # read, not measured
    assert isinstance(engine.method.builder, Budgeted)
    assert [nodes for nodes, _ in engine.method.builder.verify or ()] == [1, 4]


def test_the_first_run_measures_and_says_so(model, measured, capsys):
    assert Engine.calibrated(model, "ngram+pruned").method.builder == Pruned(cost=0.2)
    assert "takes about a minute" in capsys.readouterr().err
    assert Engine.calibrated(model, "ngram+budgeted").method.builder == Budgeted(cost=0.2, verify=((1, 1.0), (8, 2.0)))
    assert len(measured) == 1
    assert capsys.readouterr().err == ""


def test_what_is_given_is_not_measured(model, measured):
    Engine.calibrated(model, "ngram+pruned,cost=0.1")
    Engine.calibrated(model, "ngram+budgeted,cost=0.1,verify=1:1/8:2")
    assert measured == []
    half = Engine.calibrated(model, "ngram+budgeted,cost=0.1").method.builder
    assert half == Budgeted(cost=0.1, verify=((1, 1.0), (8, 2.0)))
    assert len(measured) == 1


@pytest.mark.parametrize(
    ("damage", "says"),
    [
        (lambda values: "{", "cannot be read"),
        (lambda values: json.dumps({**values, "plain": -1}), "cannot be read"),
        (lambda values: json.dumps({**values, "of": {**values["of"], "versions": {}}}), "measured with other versions"),
    ],
)
def test_a_table_that_is_no_good_is_measured_again(model, kept, measured, capsys, damage, says):
    Engine.calibrated(model, "ngram+pruned")
    (file,) = kept.iterdir()
    good = file.read_text()
    file.write_text(damage(json.loads(good)))
    capsys.readouterr()
    assert Engine.calibrated(model, "ngram+pruned").method.builder == Pruned(cost=0.2)
    assert says in capsys.readouterr().err
    assert len(measured) == 2
    assert file.read_text() == good


def test_where_nothing_can_be_kept_it_still_decodes(model, kept, measured, capsys):
    kept.parent.write_text("a file, where the folder would be")
    assert Engine.calibrated(model, "ngram+pruned").method.builder == Pruned(cost=0.2)
    assert "not kept" in capsys.readouterr().err


def test_a_table_is_of_its_drafter_dtype_and_batch(model, kept, measured):
    Engine.calibrated(model, "ngram+pruned")
    for batch_size in (3, 4):  # filled up to 4
        Engine.calibrated(model, "ngram+pruned", batch_size=batch_size)
    Engine.calibrated(model, "ngram,longest=5+pruned")
    Engine.calibrated(load(model.path, "bfloat16"), "ngram+pruned")
    assert len(list(kept.iterdir())) == len(measured) == 4


def test_methods_of_a_bench_share_one_table(model, monkeypatch, measured):
    monkeypatch.setattr(calibration, "store", lambda key, write: None)
    names = ("ngram+pruned", "ngram+budgeted", "ngram+pruned,leaf=0.1", "ngram,longest=5+pruned")
    engines = bench.build_engines(model, {name: parse_method(name) for name in names})
    assert len(measured) == 2
    assert ",leaf=0.01,cost=0.2,total=64," in str(engines["ngram+pruned"].method)


def test_what_can_be_calibrated(model, path):
    assert calibrate.method_of(path, "ngram,longest=5").drafter == parse_method("ngram,longest=5").drafter
    assert calibrate.method_of(path, "eagle@mine").head == "mine"
    by_path = calibrate.method_of(path, str(path))  # a checkpoint is a draft model
    assert (by_path.drafter, by_path.head) == (parse_method("draft-model").drafter, str(path))
    with pytest.raises(ValueError, match="plain drafts nothing"):
        calibrate.method_of(path, "plain")
    with pytest.raises(ValueError, match="no head 'nothing'"):
        calibrate.method_of(path, "nothing")


def test_questions_that_nothing_would_read_are_refused(path, monkeypatch):
    monkeypatch.setattr(calibrate, "measure", None)
    with pytest.raises(ValueError, match="--limit has no effect with --head ngram, which has no confidence output"):
        calibrate.run(Calibrate(target=path, head="ngram", limit=1))


def test_questions_are_read_before_anything_is_measured(path, tmp_path, monkeypatch):
    monkeypatch.setattr(calibrate, "load", None)
    none = str(tmp_path / "none.jsonl")
    for option, value, said in (
        ("--prompts", none, "none.jsonl cannot be read"),
        ("--limit", "0", "be at least 1, not 0"),
    ):
        found = run("jaxspec", "calibrate", "--target", path, "--all", option, value)
        assert found.code == 2 and said in found.err


def test_verification_that_goes_on_from_drafting_is_what_is_measured(tmp_path, monkeypatch):
    monkeypatch.setattr(calibration, "WIDTHS", (2,))
    monkeypatch.setattr(backend, "CPU_TREE_SIZES", (1, 4))
    model = load(tiny.checkpoint(tmp_path / "ckpt", num_layers=2))
    method = dataclasses.replace(parse_method("early-exit"), head="in memory")
    seen: list[bool] = []

    def timed(jobs):
        seen.extend(job.func is timing.resume for job in jobs)
        return [1.0, 2.0, 20.0, 21.0, 60.0, 6.0]

    monkeypatch.setattr(timing, "seconds_per_iteration", timed)
    table = calibration.measure(model, method, random_head(method.drafter, model.config.model, "float32"), 1)
    assert seen == [False] * 5 + [True]
    # Forwards over 1 and 4 tokens take 1 and 2 s. Rounds of one level and of five take 20 and 21 s, and those without
    # drafts 60. Verification of 4 nodes takes 6 s, and of 1 node half of it; the rest of a round 21 - 6 - 5 / 4 s.
    verify = ((1, 3.0 + 13.75), (4, 6.0 + 13.75))
    assert dataclasses.replace(table, context=0) == CostTable(1.0, verify, ((2, 0.25),), idle=60.0)


def test_a_batch_is_timed_as_it_is_decoded(tmp_path, monkeypatch):
    """Rounds and forwards of all of its rows, filled up to a power of two."""
    monkeypatch.setattr(calibration, "WIDTHS", (1,))
    monkeypatch.setattr(backend, "CPU_TREE_SIZES", (1, 4))
    model, seen = load(tiny.checkpoint(tmp_path / "ckpt", num_layers=1)), set[int]()

    def target_job(target, batch, size, rows):
        seen.add(batch)
        return lambda iterations: iterations

    def round_job(spec, models, state, levels):
        seen.add(state.length.shape[0])
        return lambda iterations: levels

    monkeypatch.setattr(timing, "target_job", target_job)
    monkeypatch.setattr(timing, "round_job", round_job)
    monkeypatch.setattr(timing, "seconds_per_iteration", lambda jobs: [1.0 + i for i in range(len(jobs))])
    calibration.measure(model, parse_method("ngram"), None, 3)
    assert seen == {4}


LONGER = dataclasses.replace(
    TABLE, idle=1.1e-3, context=100, longer=(
        CostTable(2e-3, ((1, 2e-3), (8, 4e-3)), ((1, 3e-4), (4, 4e-4)), 2.2e-3, 1100),
        CostTable(9e-3, ((1, 9e-3), (8, 9e-3)), ((1, 2e-4), (4, 8e-4)), 9.9e-3, 8100),
    ),
)  # fmt: skip


def test_costs_of_longer_texts_are_kept_and_tables_without_them_mean_what_they_did(model, kept):
    key = calibration.costs_key(model, parse_method("ngram"), 1)
    calibration.store(key, dataclasses.asdict(LONGER))
    assert calibration.read_costs(key) == LONGER
    # A level of four nodes, in units of a forward at the shortest; what is cheaper over a longer text is noise.
    measured = Engine.calibrated(model, "ngram+budgeted").method.builder
    assert isinstance(measured, Budgeted)
    base, second, third = measured.contexts
    assert (base, second) == ((100, 1.1, 0.2, (1.0, 2.0)), (1100, 2.2, 0.4, (2.0, 4.0)))
    assert third == (8100, 9.9, 0.8, (9.0, 9.0))
    assert LONGER.by_context(1)[2][2] == 0.3
    (file,), new = kept.iterdir(), {"idle", "context", "longer"}
    values = {name: value for name, value in json.loads(file.read_text()).items() if name not in new}
    file.write_text(json.dumps(values))
    assert calibration.read_costs(key) == TABLE
    assert Engine.calibrated(model, "ngram+budgeted").method.builder == Budgeted(cost=0.2, verify=((1, 1.0), (8, 2.0)))
    typed = parse_method("ngram+budgeted,cost=0.5").with_costs(LONGER).builder
    assert isinstance(typed, Budgeted) and typed.contexts == ()


def test_of_longer_texts_few_costs_are_timed(model, monkeypatch):
    asked = []

    def measure(tokens, model, method, weights, batch, sizes, widths):
        asked.append((tokens, sizes, widths))
        add = 1e-3 * (tokens > 64)
        verify = tuple((size, 1e-3 * size + add * (1 + size)) for size in sizes)
        return CostTable(1e-3 + add, verify, tuple((width, 1e-4 * width + add) for width in widths), 1e-3, tokens)

    monkeypatch.setattr(backend, "CPU_TREE_SIZES", (1, 4, 16))
    monkeypatch.setattr(calibration, "_measure_at", measure)
    monkeypatch.setattr(calibration, "TOKENS", 64)
    monkeypatch.setattr(calibration, "LONGER", (100, 1000))  # the model is made for fewer tokens
    table = calibration.measure(model, parse_method("early-exit"), None, 1)
    assert asked == [(64, (1, 4, 16), (1, 4, 16)), (100, (1, 16), (1,))]
    (longer,) = table.longer
    assert dict(longer.level) == pytest.approx({1: 1.1e-3, 4: 1.4e-3, 16: 2.6e-3})
    assert dict(longer.verify) == pytest.approx({1: 3e-3, 4: 9e-3, 16: 33e-3})


def test_a_level_between_two_measured_ones_is_interpolated():
    assert TABLE.level_cost(1) == pytest.approx(0.1)
    assert TABLE.level_cost(2) == pytest.approx(0.1 + 0.1 / 3)
    assert TABLE.level_cost(9) == pytest.approx(0.2)


def test_times_between_are_interpolated():
    sizes = (1, 2, 6, 16, 32, 64)
    assert timing.spread(sizes) == [1, 2, 6, 16, 64] and timing.spread((5, 1)) == [1, 5] and timing.spread(()) == []
    assert timing.interpolated({1: 1.0, 6: 2.0}, (1, 2, 6)) == {1: 1.0, 2: pytest.approx(1.2), 6: 2.0}


def test_a_confidence_head_is_fitted_and_decodes_with_it(tmp_path, monkeypatch):
    """Chains of a random DSpark head; its temperatures are kept in its folder, and `inspect`'s kind stays DSpark."""
    monkeypatch.setattr(calibrate, "measure", lambda *_: TABLE)
    ckpt = tiny.checkpoint(tmp_path / "ckpt", num_layers=1)
    model, drafter = load(ckpt), Dflash()
    shape = drafter.head_for(
        model.config.model, layers=1, block=3, taps=[0], markov_rank=2, anchor=True, confidence="markov"
    )
    (folder := ckpt / "heads" / "dflash").mkdir(parents=True)
    heads.write_head(
        folder, head_config(drafter, shape, model.config, "float32"), drafter.build_head(shape, nnx.Rngs(0))
    )
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text("".join(json.dumps({"prompt": text}) + "\n" for text in ("def f", "import", "x = 1")))
    options = ("--head", "dflash", "--prompts", prompts, "--max-new-tokens", 24)
    printed = run("jaxspec", "calibrate", "--target", ckpt, *options)
    assert not printed.code and "temperature" in printed.out, printed.err
    found = json.loads((folder / "confidence.json").read_text())["temperatures"]
    engine = Engine(load(ckpt), "dflash+chain+confidence,threshold=0.3")
    assert len(found) == 3 and engine.models.draft.options.temperatures == tuple(found)
    assert "temperatures" not in initial_shape("dflash", model, drafter).settings  # more training makes them stale
    with pytest.raises(ValueError, match="needs a head with a confidence output"):
        Engine(model, "ngram+chain,length=2+confidence")
    (folder / "confidence.json").write_text('{"temperatures": [0.5, "1"]}')
    with pytest.raises(CheckpointError, match=r"confidence.json is damaged"):
        Engine(model, "dflash")
