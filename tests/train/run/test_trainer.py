"""The trainer: a step, the files of a run, and that a killed run resumes to the same parameters and log."""

import contextlib
import dataclasses
import io
import json
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import jaxspec
from jaxspec.checkpoint.parameters import module_to_dict
from jaxspec.decoding.drafter import Drafter
from jaxspec.drafters import Eagle, EarlyExit, Edd, Medusa
from jaxspec.model.llama import Llama
from jaxspec.train.data import dataset, text
from jaxspec.train.data.text import Encoded, Windows
from jaxspec.train.hyperparameters import Recipe
from jaxspec.train.methods import lm
from jaxspec.train.options import Lm
from jaxspec.train.run import log, trainer
from jaxspec.train.run.folder import Run, as_typed, open_run
from jaxspec.train.run.packed import Summed
from jaxspec.train.run.trainer import fit, kinds_of, make_optimizer, make_step, start
from tests.train.command import command

MODEL = lm.shape(40, layers=1, hidden_size=16, head_dim=8, context=12)
RECIPE = Recipe(steps=12, batch_size=4, learning_rate=1e-2, warmup=2, evaluate_every=4, save_every=3)


def model() -> Llama:
    return Llama(MODEL, rngs=nnx.Rngs(0))


@pytest.fixture(scope="module")
def packed() -> Windows:
    """Windows whose tokens partly count."""
    rng = np.random.default_rng(0)
    return text.windows([Encoded(rng.integers(2, 40, 250).astype(np.int32), rng.random(250) < 0.8)], 12, 1)


def parameters(module: nnx.Module) -> dict[str, np.ndarray]:
    return {name: np.asarray(array) for name, array in module_to_dict(module).items()}


def same(first: nnx.Module, second: nnx.Module) -> bool:
    one, two = parameters(first), parameters(second)
    return all(one[name].tobytes() == two[name].tobytes() for name in one)


def test_a_batch_in_parts_is_the_batch(packed):
    """By Muon, which leaves some parameters to AdamW."""
    batch, steps = text.take(packed, slice(4)), {}

    def loss(*given: Any) -> Summed:
        total, sums = lm.loss(*given)
        tokens = jnp.asarray(given[2].tokens)
        rows = tokens > tokens.mean(axis=1, keepdims=True)  # more in one part than in another
        return total, {**sums, "share": (rows & (tokens % 2 == 0)).sum() + 0.0, "share/rows": rows.sum() + 0.0}

    for parts in (1, 4):
        recipe = dataclasses.replace(RECIPE, accumulate=parts, optimizer="muon")
        chosen = make_optimizer(recipe)
        step, state = make_step(loss, chosen, recipe), start(model(), chosen)
        for _ in range(2):  # the first step of a warm-up has a learning rate of 0
            state, measures = step(state, None, batch)
        steps[parts] = state, measures
    (whole, expected), (state, measures) = steps.values()
    assert measures.keys() == expected.keys() == {"loss", "share"}
    for name, value in measures.items():
        assert float(value) == pytest.approx(float(expected[name]), rel=1e-5)
    for name, array in parameters(state.params).items():
        np.testing.assert_allclose(array, parameters(whole.params)[name], atol=2e-4, err_msg=name)
    assert not same(whole.params, model())


@pytest.mark.parametrize(
    ("drafter", "hidden"),
    [
        (Eagle(), {"fc.kernel", "layer.attention.q.kernel", "layer.mlp.down.kernel"}),
        (Medusa(), {"heads.0.residual.kernel", "heads.4.residual.kernel"}),
        (EarlyExit(), {"layers.0.attention.q.kernel", "layers.0.mlp.down.kernel"}),
        (Edd(), {"decoder.layers.0.attention.q.kernel", "decoder.layers.0.mlp.down.kernel"}),
    ],
)
def test_muon_takes_matrices_between_hidden_states(drafter: Drafter, hidden: set[str]):
    """Not matrices with a vocabulary axis, and not vectors."""
    head = nnx.eval_shape(lambda: drafter.build_head(drafter.head_for(MODEL), nnx.Rngs(0)))
    kinds = module_to_dict(kinds_of(head))
    assert hidden <= {name for name, kind in kinds.items() if kind == "hidden"}
    shapes = {name: leaf.shape for name, leaf in module_to_dict(head).items()}
    assert {name for name, kind in kinds.items() if kind == "others"} == {
        name for name, shape in shapes.items() if len(shape) == 1 or MODEL.vocab_size in shape
    }


def test_the_gradient_is_clipped(packed):
    batch, moved = text.take(packed, slice(4)), []
    for clip, by in ((1e9, "norm"), (1e-9, "norm"), (1e-9, "value")):
        recipe = dataclasses.replace(RECIPE, clip=clip, clip_by=by, weight_decay=0.0, warmup=0)
        chosen = make_optimizer(recipe)
        state, _ = make_step(lm.loss, chosen, recipe)(start(model(), chosen), None, batch)
        before = parameters(model())
        moved.append(max(np.abs(array - before[name]).max() for name, array in parameters(state.params).items()))
    assert max(moved[1:]) < 0.5 * moved[0]  # Adam divides by the size, down to its epsilon


def test_bfloat16_computes_and_float32_keeps(packed):
    recipe = dataclasses.replace(RECIPE, dtype="bfloat16")
    chosen = make_optimizer(recipe)
    state, measures = make_step(lm.loss, chosen, recipe)(start(model(), chosen), None, text.take(packed, slice(4)))
    assert {leaf.dtype for leaf in jax.tree.leaves(state.params)} == {jnp.dtype("float32")}
    exact, sums = jax.jit(lm.loss)(model(), None, jax.tree.map(jnp.asarray, text.take(packed, slice(4))), None)
    exact = float(exact / sums["count"])
    assert float(measures["loss"]) != exact
    assert float(measures["loss"]) == pytest.approx(exact, rel=0.02)


def test_every_epoch_shuffles_anew_and_a_place_is_kept(packed):
    count = len(packed.tokens)
    stream = dataset.batches(packed, 3, seed=1)
    seen = [next(stream) for _ in range(2 * count)]
    order = np.concatenate([np.asarray(batch.index) for batch in seen]).reshape(-1, count)
    assert all(sorted(epoch) == list(range(count)) for epoch in order.tolist())
    assert order[0].tolist() != order[1].tolist()
    for batch in seen[:5]:
        assert (np.asarray(batch.tokens) == packed.tokens[np.asarray(batch.index)]).all()

    alone = dataset.batches(packed, 1, seed=1)
    assert [next(alone).index.item() for _ in range(9)] == order.ravel()[:9].tolist()

    other = dataset.batches(packed, 3, seed=1)
    for _ in range(7):
        next(other)
    place = json.loads(json.dumps(other.get_state()))
    fresh = dataset.batches(packed, 3, seed=1)
    fresh.set_state(place)
    assert all(np.asarray(next(fresh).index).tolist() == np.asarray(b.index).tolist() for b in seen[7:20])
    assert np.asarray(next(dataset.batches(packed, 3, seed=2)).index).tolist() != order[0, :3].tolist()


def test_too_few_windows_for_a_batch(packed):
    with pytest.raises(ValueError, match=r"too little text: it fills 21 windows of 12 tokens and a batch takes 22"):
        dataset.batches(packed, 22, seed=0)


def test_best_is_kept_beside_last(packed, tmp_path):
    scores, seen = iter([1.0, 3.0, 2.0]), []

    def measure(params):
        seen.append(jax.tree.map(jnp.copy, params))
        return {"score": next(scores)}

    with open_run(tmp_path / "run", {}) as run:
        best, measured = fit(lm.loss, model(), None, packed, RECIPE, run, measure=measure)
    assert same(best, seen[1])
    assert measured == {"score": 3.0}
    assert sorted(path.name for path in run.checkpoints.iterdir()) == ["12", "8"]
    evaluations = [line for line in log.read(run.metrics) if "evaluation" in line]
    assert [(line["step"], line["evaluation"]["score"]) for line in evaluations] == [(4, 1.0), (8, 3.0), (12, 2.0)]


class CrashError(Exception):
    """Stands for a crash."""


def test_an_interrupted_run_goes_on_bit_for_bit(packed, tmp_path):
    with open_run(tmp_path / "whole", {}) as run:
        whole, measured = fit(lm.loss, model(), None, packed, RECIPE, run)

    with open_run(tmp_path / "cut", {}) as cut:
        for at in (1, 5, 6):  # steps before the first checkpoint, between two, just after one
            steps = iter(range(100))

            def complete(batch, at=at, steps=steps):
                if next(steps) >= at:
                    raise CrashError
                return batch

            with contextlib.suppress(CrashError):
                fit(lm.loss, model(), None, packed, RECIPE, cut, complete=complete)
        resumed, _ = fit(lm.loss, model(), None, packed, RECIPE, cut)
    assert measured is None
    assert same(resumed, whole)
    assert cut.metrics.read_bytes() == run.metrics.read_bytes()
    assert [line["step"] for line in log.read(cut.metrics)] == list(range(1, 13))


def test_a_loss_that_is_not_finite_is_refused(packed, tmp_path):
    recipe = dataclasses.replace(RECIPE, learning_rate=1e30, clip=1e30, save_every=100)
    with (
        pytest.raises(ValueError, match=r"the loss at step \d+ is (nan|inf); lower --learning-rate"),
        open_run(tmp_path / "run", {}) as run,
    ):
        fit(lm.loss, model(), None, packed, recipe, run)
    assert not (tmp_path / "run").exists()


def test_weights_that_are_not_finite_are_not_kept(packed, tmp_path):
    def loss(model, frozen, batch, key):
        total, sums = lm.loss(model, frozen, batch, key)
        return total + jnp.sqrt(0 * total), sums  # whose gradient is not finite

    with open_run(tmp_path / "a", {}) as run, pytest.raises(ValueError, match="weights after step 1 are not finite"):
        fit(loss, model(), None, packed, dataclasses.replace(RECIPE, steps=1), run)


def test_a_step_is_compiled_once(packed, tmp_path, monkeypatch):
    """Also where the target's weights are committed to a device, as those of a checkpoint are."""
    steps = []
    monkeypatch.setattr(trainer, "make_step", lambda *given: steps.append(make_step(*given)) or steps[0])
    target = jax.device_put(model(), jax.devices()[0])
    loss = lambda params, frozen, batch, key: lm.loss(jax.tree.map(jnp.add, params, frozen), None, batch, key)
    with open_run(tmp_path / "run", {}) as run:
        fit(loss, model(), target, packed, RECIPE, run)
    assert steps[0]._cache_size() == 1


def test_a_run_is_of_one_command(packed, tmp_path):
    opened = lambda **options: open_run(tmp_path / "run", {"command": "lm", "--seed": 1, **options})
    with opened() as run:
        fit(lm.loss, model(), None, packed, RECIPE, run)
    with opened():
        pass
    for other, words in (({"--seed": 2}, "--seed is 1 there and 2 here"), ({"command": "x"}, "command is lm ")):
        with pytest.raises(ValueError, match=f"run belongs to a run with other settings .{words}"), opened(**other):
            pass


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (None, "is not the folder of a run"),
        ('{"editor.tabSize": 4}', "is not of a run of jaxspec-train"),
        ("[1]", "is not of a run of jaxspec-train"),
        ('{"command": "train", "lr": 1}', "is not of a run of jaxspec-train"),
        ('{"command": "lm"}', "holds thesis.txt, which is not of a run"),
    ],
)
def test_what_others_have_in_a_folder_stays(content, words, tmp_path):
    """Also if they have settings.json there, as editors do."""
    (tmp_path / "thesis.txt").write_text("precious")
    if content is not None:
        (tmp_path / "settings.json").write_text(content)
    with pytest.raises(ValueError, match=words), open_run(tmp_path, {"command": "lm"}):
        pass
    assert (tmp_path / "thesis.txt").exists()


def test_what_comes_into_a_run_that_fails_stays(tmp_path):
    with contextlib.suppress(CrashError), open_run(tmp_path / "run", {"command": "lm"}):
        (tmp_path / "run/notes.txt").write_text("precious")
        raise CrashError
    assert (tmp_path / "run/notes.txt").exists()


def test_a_run_that_was_killed_while_it_wrote_its_settings_begins_anew(tmp_path):
    (tmp_path / "run").mkdir()
    (tmp_path / "run/.settings.json.host.1.01234567.part").touch()
    with open_run(tmp_path / "run", {"--seed": 1}) as run:
        assert [path.name for path in run.folder.iterdir()] == ["settings.json"]


def test_a_bar_on_a_terminal(monkeypatch, tmp_path):
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    monkeypatch.setattr(sys, "stderr", terminal := Terminal())
    with log.open_log(tmp_path / "metrics.jsonl", 0, 3, 100) as shown:
        for step, value in enumerate((3.0, 2.0, 1.0), 1):
            shown.step(step, {"loss": jnp.asarray(value)})
    assert "3 of 3" in terminal.getvalue()
    assert "loss 1.000" in terminal.getvalue()


# --- real processes


TINY = (
    *("--layers", "1", "--hidden-size", "16", "--head-dim", "8", "--vocab-size", "270", "--context", "16"),
    *("--batch-size", "4", "--evaluate-every", "100", "--save-every", "20"),
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """Some text; `shutil.py` is held out by its name."""
    path = tmp_path_factory.mktemp("text")
    for name in ("a.py", "shutil.py"):
        (path / name).write_text("".join(f"def f{i}(x):\n    return x + {i}\n" for i in range(200)))
    return path


def typed(out: Path, folder: Path, steps: int) -> list[str]:
    return ["lm", str(out), "--data", str(folder), "--steps", str(steps), *TINY]


def process(*run: Any) -> subprocess.Popen:
    command = [sys.executable, "-m", "jaxspec.commands.train", *typed(*run)]
    return subprocess.Popen(command, stderr=subprocess.PIPE, text=True)


def finish(running: subprocess.Popen) -> tuple[int, str]:
    _, err = running.communicate(timeout=300)
    return running.returncode, err


@pytest.mark.parametrize("kills", [1, pytest.param(10, marks=pytest.mark.soak)])
def test_a_run_ended_by_signals_goes_on(kills, folder, tmp_path):
    """SIGTERM, which saves first, then SIGKILL at random moments: the parameters and curve of an undisturbed run."""
    reference, out, steps = tmp_path / "whole", tmp_path / "lm", 200 * kills  # every kill may cost a checkpoint
    code, err = command(*typed(reference, folder, steps))
    assert code == 0, err
    rng, run, began = random.Random(0), Run(tmp_path / "lm.run"), time.monotonic()
    running = process(out, folder, steps)
    while not (run.metrics.exists() and run.started):
        assert running.poll() is None
        time.sleep(0.02)
    seconds = time.monotonic() - began
    running.send_signal(signal.SIGTERM)
    code, err = finish(running)
    if code == 0:
        pytest.skip("it was done before the signal came")
    assert (code, err.splitlines()[-1]) == (143, "terminated")
    saved = int(err.splitlines()[-2].removeprefix("saved at step ").split(" ")[0])
    assert (run.checkpoints / str(saved)).exists()
    assert not out.exists()

    step = lambda: max((int(path.name) for path in run.checkpoints.glob("*") if path.name.isdecimal()), default=0)
    for _ in range(kills):
        # At a random moment of its start, or soon after it has got on by one checkpoint: so it is there to be killed.
        before, deadline = step(), time.monotonic() + rng.uniform(0, 3 * seconds)
        running = process(out, folder, steps)
        while step() == before and time.monotonic() < deadline:
            time.sleep(0.002)
        time.sleep(rng.uniform(0, 0.05))
        running.kill()
        assert finish(running)[0] == -signal.SIGKILL, "it had ended before"
    code, err = command(*typed(out, folder, steps))
    assert code == 0, err
    assert same(jaxspec.load(out).target, jaxspec.load(reference).target)
    curve = lambda out: (out.with_name(f"{out.name}.run") / "metrics.jsonl").read_text()
    assert curve(out) == curve(reference)


def test_options_that_do_not_decide_a_run_may_change():
    options = lambda **changed: as_typed("lm", Lm(out=Path("x"), recipe=dataclasses.replace(RECIPE, **changed)), "x")
    assert options() == options(save_every=7, evaluate_every=9)
    assert options() != options(seed=1)
