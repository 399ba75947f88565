"""Where held-out measurements are made: which windows, how many of their tokens, each counted once."""

import dataclasses
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from jaxspec.checkpoint.config_json import CheckpointConfig
from jaxspec.checkpoint.loading import Checkpoint
from jaxspec.drafters.ngram import Ngram
from jaxspec.model.llama import Llama
from jaxspec.train.data import text
from jaxspec.train.data.text import Encoded, Windows
from jaxspec.train.hyperparameters import Recipe
from jaxspec.train.run import trainer
from tests.controllers.rounds import MODELS, round_of


def windows(count: int, length: int) -> Windows:
    """Token j of window i is 1000 i + j; the first i % length of each window do not count."""
    tokens = 1000 * np.arange(count)[:, None] + np.arange(length)
    counted = np.arange(length) >= (np.arange(count) % length)[:, None]
    return Windows(tokens=tokens, segment=np.zeros_like(tokens), counted=counted)


def measured(packed: Windows, usable: int, monkeypatch: pytest.MonkeyPatch) -> tuple[dict[str, Any], dict[str, Any]]:
    """What the engine was given, and the measurement."""
    asked: dict[str, Any] = {}

    class Fake:
        def __init__(self, model: Any, method: Any, *, draft: Any):
            asked.update(method=str(method), draft=draft)

        def generate(self, prompts: list[list[int]], max_new_tokens: int) -> list[Any]:
            asked.update(prompts=prompts, new=max_new_tokens)
            return [SimpleNamespace(history=round_of([1, 3], [5, 5]))]

    monkeypatch.setattr(trainer, "Engine", Fake)
    shape = dataclasses.replace(MODELS.target.config, max_length=usable)
    config = CheckpointConfig("llama", shape, "float32", "float32", "jaxspec")
    target = Checkpoint(Path("none"), config, Llama(shape, rngs=nnx.Rngs(0)), tokenizer=None, heads=())
    return asked, trainer.measure_chain(target, Ngram(), packed)({"w": jnp.ones(2)})


@pytest.mark.parametrize(
    ("count", "length", "usable", "rows", "tokens", "new"),
    [
        (31, 400, 4096, list(range(0, 31, 2)), 128, 64),  # every second window, the first and the last among them
        (100, 200, 4096, [0, 6, 13, 19, 26, 33, 39, 46, 52, 59, 66, 72, 79, 85, 92, 99], 100, 64),
        (3, 400, 100, [0, 1, 2], 47, 47),  # prompt, text and a round's drafts fit the positions of the model
        (1, 5, 4096, [0], 2, 3),
    ],
)
def test_chains_begin_at_windows_from_the_first_to_the_last(count, length, usable, rows, tokens, new, monkeypatch):
    asked, found = measured(windows(count, length), usable, monkeypatch)
    assert [prompt[0] for prompt in asked["prompts"]] == [1000 * row for row in rows]
    assert all(prompt == list(range(prompt[0], prompt[0] + tokens)) for prompt in asked["prompts"])
    assert asked["new"] == new and asked["method"].endswith("+chain,length=5+fixed")
    assert found["tau"] == 3.0 and found["acceptance"] == [1, 0.5, 1, 0, 0]


def test_a_prompt_has_no_padding(monkeypatch: pytest.MonkeyPatch):
    """It is half of the text before the padding, so that there is something to continue."""
    encoded = [Encoded(np.arange(1, 5, dtype=np.int32), np.array([False, False, False, True]))] * 4
    asked, _ = measured(text.windows(encoded, 12, fill=4), 4096, monkeypatch)
    assert asked["prompts"] == [[1, 2, 3, 4, 1, 2], [1, 2]]
    same = Windows(tokens=np.full((1, 6), 7), segment=np.zeros((1, 6), int), counted=np.zeros((1, 6), bool))
    assert measured(same, 4096, monkeypatch)[0]["prompts"] == [[7, 7, 7]]  # nothing before that could be padded


def test_every_window_counts_once_and_the_score_is_tau_or_minus_the_loss():
    """Seven windows in batches of three: what pads the last batch does not count."""
    packed = windows(7, 4)

    def loss(params: Any, frozen: Any, batch: Windows, key: Any) -> tuple[Any, dict[str, Any]]:
        worth = jnp.where(batch.counted, batch.tokens * params + frozen, 0.0)
        return worth.sum(), {"count": batch.counted.sum().astype(jnp.float32)}

    expected = (packed.tokens * 2.0 + 1)[np.asarray(packed.counted)].mean()
    assert trainer.mean_loss(loss, packed, 3)(2.0, 1.0) == pytest.approx(expected, rel=1e-6)
    assert trainer.mean_loss(loss, dataclasses.replace(packed, counted=packed.counted & False), 3)(2.0, 1.0) == 0
    recipe = Recipe(steps=1, batch_size=6, learning_rate=1.0, accumulate=2)
    measured = trainer.measurement(loss, packed, recipe, 1.0)(2.0)
    assert measured == {"loss": pytest.approx(expected), "score": pytest.approx(-expected)}
    chained = trainer.measurement(loss, packed, recipe, 1.0, lambda params: {"tau": params + 1})(2.0)
    assert chained == {"loss": pytest.approx(expected), "tau": 3.0, "score": 3.0}
