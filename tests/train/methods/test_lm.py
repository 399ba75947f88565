"""`jaxspec-train lm`, from a folder of text to a checkpoint that generates."""

from functools import partial
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import jaxspec
from jaxspec.checkpoint.parameters import module_to_dict
from jaxspec.model.llama import Llama
from jaxspec.train.data import text
from jaxspec.train.data.text import Encoded, Windows
from jaxspec.train.methods import lm
from jaxspec.train.run.packed import hidden_states
from jaxspec.train.run.trainer import mean_loss
from tests.train.command import command

TINY = ("--layers", 1, "--hidden-size", 16, "--head-dim", 8, "--vocab-size", 280, "--context", 32, "--batch-size", 4)
MODEL = lm.shape(40, layers=2, hidden_size=16, head_dim=8, context=12)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Some repetitive text; `shutil.py` is held out by its name."""
    path = tmp_path_factory.mktemp("text")
    for name in ("a.py", "b.py", "shutil.py"):
        (path / name).write_text("".join(f"def f{i}(x):\n    return x + {i}\n" for i in range(60)))
    return path


def parameters(path: Path) -> dict[str, np.ndarray]:
    return {name: np.asarray(array) for name, array in module_to_dict(jaxspec.load(path).target).items()}


def random_windows(batch: int, length: int) -> Windows:
    rng = np.random.default_rng(0)
    rows = np.split(rng.integers(2, MODEL.vocab_size, batch * length), [5, length + 3])
    encoded = [Encoded(row.astype(np.int32), np.ones(len(row), bool)) for row in rows if len(row)]
    return jax.tree.map(jnp.asarray, text.windows(encoded, length, 1))


def test_from_text_to_a_checkpoint_that_generates(folder: Path, tmp_path: Path):
    code, err = command("lm", tmp_path / "one", "--data", folder, *TINY, "--steps", 50, "--learning-rate", 1e-2)
    assert code == 0, err
    lines = err.splitlines()
    assert lines[0] == "learning a vocabulary of 280 tokens from 2 files"
    assert any(line.startswith("step 50 of 50: loss ") for line in lines)
    assert lines[-2].startswith("step 50: held out: loss ")
    held_out_loss = float(lines[-1].rpartition("held-out loss ")[2])
    assert 1.0 < held_out_loss < 4.5 < np.log(280)

    model = jaxspec.load(tmp_path / "one")
    assert (model.config.source_format, model.config.bos, model.config.eos) == ("jaxspec", 0, (1,))
    assert model.config.model.max_length == 32
    generated = jaxspec.Engine(model, "plain").generate("def f", max_new_tokens=8)[0]
    assert generated.prompt_tokens[0] == 0
    assert 0 < len(generated.tokens) <= 8

    assert command("lm", tmp_path / "two", "--data", folder, *TINY, "--steps", 50, "--learning-rate", 1e-2)[0] == 0
    first, second = parameters(tmp_path / "one"), parameters(tmp_path / "two")
    assert all(first[name].tobytes() == second[name].tobytes() for name in first)
    assert (tmp_path / "one/tokenizer.json").read_bytes() == (tmp_path / "two/tokenizer.json").read_bytes()

    assert command("lm", tmp_path / "one", "--data", folder)[0] == 2
    assert sorted(path.name for path in tmp_path.iterdir()) == ["one", "one.run", "two", "two.run"]
    assert (tmp_path / "one.run/metrics.jsonl").read_bytes() == (tmp_path / "two.run/metrics.jsonl").read_bytes()
    assert (tmp_path / "one.run/training.svg").stat().st_size > 1000


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--data", "/nowhere"], "/nowhere is neither a file nor a folder"),
        (["--data", "FOLDER", "--vocab-size", 5000], "too little text: it gives"),
        (["--data", "FOLDER", "--vocab-size", 260, "--batch-size", 999], "too little text: it fills"),
        (["--data", "FOLDER", "--hidden-size", 100], "--hidden-size 100 is not a multiple of 32, the width"),
        (["--data", "FOLDER", "--context", 1], "--context must be at least 2"),
        (["--data", "FOLDER", "--steps", 0], "--steps must be above 0, not 0"),
        (["--data", "FOLDER", "--seed", -1], "--seed must not be below 0, not -1"),
        (["--data", "FOLDER", "--layer-dropout", 1], "--layer-dropout must be from 0 to below 1"),
        (
            ["--data", "FOLDER", "--batch-size", 4, "--accumulate", 3],
            "--batch-size 4 is not a multiple of --accumulate 3",
        ),
        (["--data", "FOLDER", *TINY, "--learning-rate", 1e30, "--clip", 1e30, "--steps", 5], "lower --learning-rate"),
    ],
)
def test_bad_input_ends_in_one_sentence(arguments: list[object], words: str, folder: Path, tmp_path: Path):
    code, err = command(
        "lm", tmp_path / "out", *(folder if argument == "FOLDER" else argument for argument in arguments)
    )
    assert code == 2
    assert words in err.splitlines()[-1]
    assert list(tmp_path.iterdir()) == []


def test_interrupt_leaves_nothing(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(lm, "fit", interrupted)
    code, err = command("lm", tmp_path / "out", "--data", folder, *TINY)
    assert (code, err.splitlines()[-1]) == (130, "interrupted")
    assert list(tmp_path.iterdir()) == []


def test_one_file_is_not_held_out(folder: Path, tmp_path: Path):
    some = (folder / "a.py").read_text()  # in a file whose name would be held out among others
    (tmp_path / "shutil.py").write_text(some + some.replace("return x +", "yield -x *"))
    few = ("--data", tmp_path / "shutil.py", *TINY, "--steps", 1)
    code, err = command("lm", tmp_path / "out", *few)
    assert (code, err.splitlines()[-1].rpartition(", ")[2]) == (0, "no file was held out")
    code, err = command("lm", tmp_path / "inf", *few, "--learning-rate", "inf")
    assert (code, err.splitlines()[-1]) == (2, "error: --learning-rate must be finite, not inf")


def test_documents_of_one_window_do_not_see_each_other():
    model, packed = Llama(MODEL, rngs=nnx.Rngs(0)), random_windows(1, 12)
    predict = jax.jit(hidden_states)
    whole = predict(model, packed.tokens, packed.segment)
    alone = predict(model, packed.tokens[:, 5:], packed.segment[:, 5:])
    np.testing.assert_allclose(whole[:, 5:], alone, rtol=1e-4, atol=1e-5)


@jax.jit
def value(model: Llama, packed: Windows) -> jax.Array:
    """The mean loss of a batch."""
    total, sums = lm.loss(model, None, packed, None)
    return total / jnp.maximum(sums["count"], 1)


def test_gradient_matches_a_finite_difference():
    model, packed = Llama(MODEL, rngs=nnx.Rngs(0)), random_windows(3, 12)
    gradient = jax.grad(value)(model, packed)
    squares = sum(float((leaf**2).sum()) for leaf in jax.tree.leaves(gradient))
    at = lambda size: float(value(jax.tree.map(lambda p, g: p + size / squares**0.5 * g, model, gradient), packed))
    assert (at(1e-2) - at(-1e-2)) / 2e-2 == pytest.approx(squares**0.5, rel=1e-2)


def test_tokens_that_do_not_count_change_nothing():
    model, packed = Llama(MODEL, rngs=nnx.Rngs(0)), random_windows(3, 12)
    whole = float(value(model, packed))
    for rows in (2, 3):  # of 2, the last batch is filled up
        assert mean_loss(lm.loss, packed, rows)(model, None) == pytest.approx(whole, rel=1e-5)
    first = packed.counted & (np.arange(12) < 6)
    half = Windows(tokens=packed.tokens, segment=packed.segment, counted=first)
    other = Windows(tokens=jnp.where(first, packed.tokens, 3), segment=packed.segment, counted=first)
    assert float(value(model, half)) == pytest.approx(float(value(model, other)), rel=1e-5)
    none = Windows(tokens=packed.tokens, segment=packed.segment, counted=jnp.zeros_like(first))
    assert float(value(model, none)) == 0.0


def test_layer_dropout_grows_with_depth():
    keys = jax.random.split(jax.random.key(0), 4000)
    kept = jax.vmap(lambda key: lm.kept_layers(key, 5, 0.6))(keys).mean(axis=0)
    expected = 1 - 0.6 * (2.0 ** (np.arange(5) / 4) - 1)
    assert float(kept[0]) == 1.0
    np.testing.assert_allclose(kept, expected, atol=0.03)

    model, packed = Llama(MODEL, rngs=nnx.Rngs(0)), random_windows(3, 12)
    loss = jax.jit(partial(lm.loss, layer_dropout=0.9))
    whole = float(loss(model, None, packed, None)[0])
    losses = {float(loss(model, None, packed, key)[0]) for key in keys[:20]}
    assert any(loss == pytest.approx(whole, rel=1e-6) for loss in losses)
    assert not all(loss == pytest.approx(whole, rel=1e-6) for loss in losses)
