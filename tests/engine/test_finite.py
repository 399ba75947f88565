"""Logits that are not finite end generation with one sentence, and name the prompt; other prompts are no matter."""

import dataclasses

import jax.numpy as jnp
import pytest

from jaxspec import Engine, load
from jaxspec.checkpoint.loading import Checkpoint
from jaxspec.checkpoint.parameters import dict_to_module, module_to_dict
from jaxspec.engine.scoring import scores

PROMPTS = [[5, 6, 7], [9, 8, 7, 6]]


def with_nan_after(model: Checkpoint, token: int) -> Checkpoint:
    """The same model, except that what follows this token is NaN."""
    params = module_to_dict(model.target)
    params["embedding"] = params["embedding"].at[token].set(jnp.nan)
    return dataclasses.replace(model, target=dict_to_module(model.target, params))


@pytest.mark.parametrize(
    ("dtype", "temperature"),
    [("float32", 0.0), ("bfloat16", 1.0), pytest.param("float16", 0.0, marks=pytest.mark.soak)],
)
def test_where_they_arise(dtype: str, temperature: float, model: Checkpoint):
    model, how = load(model.path, dtype), {"max_new_tokens": 12, "temperature": temperature, "batch_size": 2}
    texts = [one.tokens for one in Engine(model, "ngram+chain").generate(PROMPTS, **how)]
    used = {*texts[0], *texts[1], *PROMPTS[0], *PROMPTS[1]}
    among_others = [token for token in texts[1][:-1] if token not in {*texts[0], *PROMPTS[0], *PROMPTS[1]}][2]
    for token, which in ((PROMPTS[0][1], 0), (among_others, 1)):
        broken = with_nan_after(model, token)
        with pytest.raises(FloatingPointError, match=f"logits for prompt {which} are not finite in {dtype}"):
            Engine(broken, "ngram+chain").generate(PROMPTS, **how)
    with pytest.raises(FloatingPointError, match=f"logits for text 1 are not finite in {dtype}"):
        dict(scores(with_nan_after(model, 9), [([5, 6], [7]), ([9, 8], [7])], 2))
    unread = with_nan_after(model, next(token for token in reversed(range(259)) if token not in used))
    assert [one.tokens for one in Engine(unread, "ngram+chain").generate(PROMPTS, **how)] == texts
