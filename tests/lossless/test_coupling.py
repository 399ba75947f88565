"""Under Gumbel coupling a sampled text is plain decoding's for the same seed, token by token, whatever is drafted.

That plain decoding has the target's distribution is shown in `test_sampling.py`, and that other noise gives another
text in `test_wrong_rules.py`.
"""

import dataclasses
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import pytest
from jaxtyping import Array, Float

from jaxspec.decoding.batch import start
from jaxspec.decoding.loop import decode
from jaxspec.decoding.request import Request, SamplingParams
from jaxspec.decoding.sampling import Sampling, probabilities
from jaxspec.decoding.speculation import Speculation
from jaxspec.drafters.draft_model import DraftModel
from jaxspec.methods.method import Method, parse_method
from jaxspec.model import kv_cache as kv
from jaxspec.model.attention import causal_mask
from jaxspec.model.llama import Llama, forward
from tests.lossless import combinations
from tests.lossless.harness import (
    NEW,
    TREE_SIZES,
    check_texts,
    prefilled,
    requests,
    run,
    run_refilled,
    speculation,
    texts_of,
    weights,
    with_kept_blocks,
)

KEPT_BLOCKS = [name for name in combinations.WITH_KEPT_BLOCKS if combinations.is_coupled(name)]
PLAIN = speculation(parse_method("plain"), False)
HOW = (
    SamplingParams(temperature=0.7, top_p=0.8, seed=1),
    SamplingParams(temperature=1.0, seed=2),
    SamplingParams(temperature=1.3, top_k=5, seed=3),
    SamplingParams(temperature=0.0, top_p=0.5),  # a greedy text among sampled ones
)


def mixed(prompts: Sequence[Sequence[int]], new: int) -> list[Request]:
    """One request per prompt, each with other sampling settings."""
    hows = [HOW[i % len(HOW)] for i in range(len(prompts))]
    each = zip(prompts, hows, strict=True)
    return [Request(list(p), dataclasses.replace(how, max_new_tokens=new), i) for i, (p, how) in enumerate(each)]


@pytest.fixture(scope="module")
def plain(target, prompts):
    """Plain decoding's text of each prompt, sampled."""
    texts, _ = run(PLAIN, target, mixed(prompts, NEW))
    assert [len(text) for text in texts] == [NEW] * 4
    return texts


def coupled(method: Method) -> Speculation:
    """Compiled for two sizes of verification with one drafter only: `test_greedy.py` has both with every drafter."""
    return method.speculation(greedy=False, tree_sizes=TREE_SIZES if isinstance(method.drafter, DraftModel) else ())


@pytest.mark.parametrize("method", combinations.coupled(), scope="class")  # so each is traced once
class TestCoupled:
    def test_equals_plain_decoding(self, method: Method, target, prompts, plain):
        check_texts(coupled(method), target, mixed(prompts, NEW), plain)

    def test_rows_do_not_see_each_other(self, method: Method, target, prompts, plain):
        asked, others = mixed(prompts, NEW), requests([[5], [7, 7, 7]], NEW, seed=9, temperature=2.0, top_k=3)
        texts, _ = run(coupled(method), target, [others[0], asked[2], others[1], asked[0]])
        assert [texts[1], texts[3]] == [plain[2], plain[0]]

    def test_budget_and_eos_cut_inside_an_accepted_run(self, method: Method, target, prompts, plain):
        for budget in (1, 2, 5):
            texts, _ = run(coupled(method), target, mixed(prompts, budget))
            assert texts == [text[:budget] for text in plain]
        for at in (0, 5, 17):  # 0: prefill's own token ends the text
            eos = [plain[1][at], plain[2][at]]
            ends = [next((i + 1 for i, token in enumerate(text) if token in eos), NEW) for text in plain]
            texts, _ = run(coupled(method), target, mixed(prompts, NEW), eos)
            assert texts == [text[:end] for text, end in zip(plain, ends, strict=True)]


@pytest.mark.parametrize("method", combinations.refilled(coupled=True))
def test_rows_of_continuous_batching(method: Method, target, prompts, plain):
    budgets, asked = (NEW, 5, 17, 1, 23, NEW, 9), mixed(prompts, NEW)
    several = [
        dataclasses.replace(asked[i % 4], sampling=dataclasses.replace(asked[i % 4].sampling, max_new_tokens=b))
        for i, b in enumerate(budgets)
    ]
    expected = [plain[i % 4][:budget] for i, budget in enumerate(budgets)]
    assert run_refilled(coupled(method), target, several) == expected


@pytest.mark.parametrize("name", combinations.some(KEPT_BLOCKS, KEPT_BLOCKS[0]))
def test_a_skip_set_with_weights_of_its_own(name: str, target, prompts, plain):
    check_texts(speculation(parse_method(name), False), with_kept_blocks(target), mixed(prompts, NEW), plain)


def test_a_batch_without_truncation(target, prompts):
    for temperature in (0.4, 1.5):
        asked = requests(prompts, NEW, seed=4, temperature=temperature)
        spec = speculation(parse_method("eagle+static"), False)
        assert run(spec, target, asked)[0] == run(PLAIN, target, asked)[0]


def test_prefill_and_decoding_in_pieces(target, prompts, plain):
    """Chunks of another size, two rounds a call."""
    spec = speculation(parse_method("eagle+eagle2,total=12,depth=4,width=3"), False)
    chosen, asked = weights(spec, target), mixed(prompts, NEW)
    for chunk in (4, 32):
        state = prefilled(spec, chosen, start(spec, chosen, asked, (), 128), chunk)
        while not state.done.all():
            state = decode(spec, chosen, state, jnp.int32(2))
        assert texts_of(state, asked) == plain


def test_a_drafter_that_is_the_target_is_always_right(target, prompts):
    """As drafter and target add the same noise, every first child is the target's token, at any temperature."""
    same = dataclasses.replace(target, draft={DraftModel: target.target})
    asked = [request for request in mixed(prompts, NEW) if request.sampling.temperature]
    _, history = run(speculation(parse_method("draft-model+static"), False), same, asked)
    full = history.levels == 5
    assert full.sum() > 10 and (history.accepted == history.levels)[full][:-1].all()


def logits_after(target: Llama, text: Sequence[int]) -> Float[Array, "1 T V"]:
    """The target's logits after every token, from one forward over all of them."""
    tokens = jnp.asarray([text])
    empty = kv.allocate(target.config, 1, 1, jnp.dtype("float32"))
    positions, causal = jnp.arange(len(text))[None], causal_mask(1, len(text))
    out = forward(target, tokens, positions, causal, empty, jnp.zeros(1, jnp.int32))
    return target.logits(out.hidden)


def test_plain_takes_the_largest_of_log_p_plus_the_noise_of_the_position(target, prompts, plain):
    """The draws written again from their definition: one Gumbel vector for a text's key and a position."""
    asked = mixed(prompts, NEW)
    for row, request in enumerate(asked[:3]):
        text = [*request.tokens, *plain[row]]
        logits = logits_after(target.target, text)[:, len(request.tokens) : -1]  # prefill draws the first new token
        how = request.sampling
        sampling = Sampling(
            temperature=jnp.array([how.temperature]), top_k=jnp.array([how.top_k]), top_p=jnp.array([how.top_p])
        )
        own = jax.random.fold_in(jax.random.key(how.seed), row)
        first = len(request.tokens) + 1
        keys = [jax.random.fold_in(jax.random.fold_in(own, first + i), 1) for i in range(NEW - 1)]
        noise = jnp.stack([jax.random.gumbel(key, (23,)) for key in keys])
        best = jnp.argmax(jnp.log(probabilities(logits, sampling)[0]) + noise, axis=-1)
        assert best.tolist() == plain[row][1:]
