"""Tiny targets, and a way to run any method on them."""

import dataclasses
import functools
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from jaxspec.checkpoint.parameters import dict_to_module, module_to_dict
from jaxspec.controllers.cali_ts import AcceptancePredictor
from jaxspec.convert.draft_cut import cut_params
from jaxspec.decoding import loop
from jaxspec.decoding.batch import insert, padded, start
from jaxspec.decoding.decode_state import DecodeState
from jaxspec.decoding.drafter import HeadShape, Models
from jaxspec.decoding.prefill import read
from jaxspec.decoding.request import Request, SamplingParams
from jaxspec.decoding.round_records import RoundCounts
from jaxspec.decoding.rule import Rule
from jaxspec.decoding.speculation import Speculation
from jaxspec.drafters.dflash import Dflash, DflashHead
from jaxspec.drafters.draft_model import DraftModel
from jaxspec.drafters.draft_vocabulary import ids_of, to_mask
from jaxspec.drafters.eagle import Eagle, EagleHead
from jaxspec.drafters.eagle3 import Eagle3, Eagle3Head
from jaxspec.drafters.early_exit import EarlyExit, EarlyExitHead
from jaxspec.drafters.edd import Edd, EddHead, default_tap
from jaxspec.drafters.history import WithHistory
from jaxspec.drafters.layer_skip import KeptBlocks, LayerSkip, SkipMask, layers_of, skip
from jaxspec.drafters.medusa import Medusa, MedusaHeads
from jaxspec.methods.method import Method
from jaxspec.model.config import LlamaConfig
from jaxspec.model.llama import Llama
from jaxspec.train.methods import early_exit, edd, medusa
from jaxspec.train.methods import kept_blocks as training
from jaxspec.train.run import heads

CHUNK = 8
NEW = 40  # tokens of the usual text
TREE_SIZES = (4,)  # and the largest: that is a choice, and each of them is compiled


@functools.cache
def models(vocab_size: int, num_layers: int = 2, num_heads: int = 2, num_kv_heads: int = 1, **shape: Any) -> Models:
    """A random target, and for every drafter with weights some that agree with it often but not always.

    They are a dictionary by drafter, from which `run` takes what it needs. Cali-TS's predictor is random too, and fits
    all of these drafters: their hidden states are as wide as the target's.

    Args:
        shape: other fields of the target's config.
    """
    config = LlamaConfig(
        vocab_size=vocab_size, hidden_size=16, intermediate_size=32, num_layers=num_layers, num_heads=num_heads,
        num_kv_heads=num_kv_heads, head_dim=8, **shape,
    )  # fmt: skip
    target = Llama(config, rngs=nnx.Rngs(0))
    noise = Llama(config, rngs=nnx.Rngs(1))
    draft_model = jax.tree.map(lambda x, y: x + 0.25 * y, target, noise)
    return Models(
        target=target,
        draft={
            Dflash: dflash_head(target),
            DraftModel: draft_model,
            Eagle: eagle_head(config.without_experts),
            Eagle3: eagle3_head(target),
            EarlyExit: early_exit_head(target),
            Edd: edd_head(target),
            Medusa: medusa_heads(target),
            LayerSkip: skip(num_layers, attention=range(1, num_layers), mlp=[0]),
        },
        control=AcceptancePredictor(config.hidden_size, config.hidden_size, rngs=nnx.Rngs(3)),
    )


def dflash_head(target: Llama, **options: Any) -> DflashHead:
    """A head of two layers and blocks of four, so that the deepest trees have levels that it does not draft.

    Biases make each token attend to the one before it, whose embedding is most of what it then is: so level 1 drafts
    mostly the target's token after the root alone, and the next ones do what a random target often does, repeat it.
    Where rows draft the next position, each attends to itself instead, and the last to the first.
    """
    drafter, width = Dflash(), target.config.hidden_size
    shape = drafter.head_for(target.config, layers=2, block=4, taps=[0], **options)
    biased = dataclasses.replace(shape.model, num_heads=2, num_kv_heads=2, qkv_bias=True)
    head = drafter.build_head(HeadShape(biased, shape.settings), nnx.Rngs(6))
    params = {name: 0.25 * value if name.endswith("kernel") else value for name, value in module_to_dict(head).items()}
    params["fc.kernel"] = jnp.eye(width)
    # Pairs (0, 4) and (1, 5) of a head turn by 1 and 0.1 a token; in the first the keys' bias is a token ahead.
    ahead = [1.0, 0.0] if options.get("anchor") else [0.54, 0.84]
    query, key = jnp.zeros(8).at[:2].set(1.0), jnp.zeros(8).at[jnp.array([0, 4, 1])].set(jnp.array([*ahead, 1.0]))
    for layer in ("layers.0.attention", "layers.1.attention"):
        params |= {f"{layer}.q.bias": 9 * jnp.tile(query, 2), f"{layer}.k.bias": 9 * jnp.tile(key, 2)}
        params |= {f"{layer}.{part}_norm": jnp.full(8, 3.0) for part in ("q", "k")}
        params |= {f"{layer}.v.kernel": jnp.eye(width), f"{layer}.o.kernel": 8 * jnp.eye(width)}
    return dict_to_module(head, params)


def with_dspark(known: Models, draft_ids: Sequence[int] | None = None) -> Models:
    """The same models, but a DSpark head, with all that it may have: rows that draft the next position, a random Markov
    term, so that nodes of a level have different drafts, a random confidence head, and layers with sliding windows."""
    mask = None if draft_ids is None else to_mask(draft_ids, known.target.config.vocab_size)
    head = dflash_head(
        known.target, draft_vocabulary=mask, markov_rank=3, anchor=True, causal=(True, False), windows=(5, 40),
        confidence="markov",
    )  # fmt: skip
    params = module_to_dict(head)
    params["confidence.proj.kernel"] = 0.3 * jax.random.normal(jax.random.key(0), (params["norm"].size + 3, 1))
    if mask is not None:
        params["head.kernel"] = module_to_dict(known.target)["head.kernel"][
            :, ids_of(mask, known.target.config.vocab_size)
        ]
    return dataclasses.replace(known, draft={**known.draft, Dflash: dict_to_module(head, params)})


def eagle_head(config: LlamaConfig) -> EagleHead:
    """A head that predicts the feature of a token to be near its embedding, as a shallow random target's is."""
    head = jax.tree.map(lambda x: 0.25 * x, EagleHead(config, rngs=nnx.Rngs(2), bias=True))
    width = config.hidden_size
    return dict_to_module(head, {**module_to_dict(head), "fc.kernel": jnp.eye(2 * width, width)})


def eagle3_head(target: Llama) -> Eagle3Head:
    """A head that can draft all tokens but one, and drafts mostly the target's token after the pair's token alone."""
    drafter, vocab = Eagle3(), target.config.vocab_size
    shape = drafter.head_for(target.config, ids=[token for token in range(vocab) if token != 1], window=20)
    head = drafter.build_head(shape, nnx.Rngs(5))
    width, wanted = target.config.hidden_size, module_to_dict(target)
    params = {name: 0.25 * value if name.endswith("kernel") else value for name, value in module_to_dict(head).items()}
    table = wanted["embedding"].T if target.config.tie_embeddings else wanted["head.kernel"]
    # The first tap is the embedding of the pair's first token, as a shallow random target's feature nearly is.
    kernels = {"fc.kernel": jnp.eye(3 * width, width), "head.kernel": table[:, head.ids]}
    return dict_to_module(head, {**params, **kernels})


def early_exit_head(target: Llama) -> EarlyExitHead:
    """An exit after the first of two layers, as initialised for training, with noise; else it would always agree."""
    config = dataclasses.replace(target.config, num_layers=1)
    head = EarlyExitHead(config, rngs=nnx.Rngs(3), first=1)
    initial = heads.started(head, target, early_exit.sources_of(head, target.config))
    return jax.tree.map(lambda x, y: x + 0.25 * y, initial, head)


def edd_head(target: Llama) -> EddHead:
    """A head as initialised for training, with noise added."""
    head = edd.initial(target, default_tap(target.config.num_layers))
    noise = EddHead(head.config, rngs=nnx.Rngs(4), tap=head.tap)
    return jax.tree.map(lambda x, y: x + 0.25 * y, head, noise)


def medusa_heads(target: Llama) -> MedusaHeads:
    """Three heads as initialised for training, with noise; the deepest trees have levels that none of them drafts."""
    noise = MedusaHeads(target.config.hidden_size, target.config.vocab_size, rngs=nnx.Rngs(4), heads=3)
    return jax.tree.map(lambda x, y: x + 0.25 * y, medusa.initial(target, 3), noise)


def kept_blocks(target: Llama, skips: SkipMask) -> KeptBlocks:
    """The blocks that a skip set keeps, with weights of their own: as initialised for training, with noise."""
    noise = KeptBlocks(target.config, rngs=nnx.Rngs(4), skips=skips)
    return jax.tree.map(lambda x, y: x + 0.25 * y, training.initial(target, skips), noise)


def with_kept_blocks(models: Models) -> Models:
    """The same, whose skip set has weights of its own."""
    blocks = kept_blocks(models.target, models.draft[LayerSkip])
    return dataclasses.replace(models, draft={LayerSkip: blocks})


def with_draft_vocabulary(models: Models, ids: Sequence[int]) -> Models:
    """The same, whose drafters can draft these tokens only: heads that `jaxspec-convert head --draft-ids` cut."""
    target, mask = models.target, to_mask(ids, models.target.config.vocab_size)
    whole = module_to_dict(target)
    lm_head = whole["embedding"].T if target.config.tie_embeddings else whole["head.kernel"]
    shapes = {
        Dflash: (models.draft[Dflash].config, models.draft[Dflash].options.settings),
        DraftModel: (models.draft[DraftModel].config, {"quantize": None}),
        Eagle: (models.draft[Eagle].config, {"bias": True}),
        EarlyExit: (models.draft[EarlyExit].config, {"first": 1}),
        Edd: (models.draft[Edd].config, {"tap": models.draft[Edd].tap}),
        Medusa: (target.config, {"heads": 3}),
        LayerSkip: (target.config, layers_of(models.draft[LayerSkip])),
    }
    heads = {}
    for drafter, (config, settings) in shapes.items():
        head, shape = models.draft[drafter], HeadShape(config, {**settings, "draft_vocabulary": mask})
        abstract = nnx.eval_shape(lambda drafter=drafter, shape=shape: drafter().build_head(shape, nnx.Rngs(0)))
        params = {} if drafter is LayerSkip else module_to_dict(head)
        found = {name: np.asarray(value) for name, value in params.items()}
        cut = cut_params(found, abstract, ids_of(mask, target.config.vocab_size), lambda: np.asarray(lm_head))
        heads[drafter] = dict_to_module(abstract, {name: jnp.asarray(value) for name, value in cut.items()})
    return dataclasses.replace(models, draft=heads)


def with_padding(models: Models, rows: int) -> Models:
    """The same, whose draft model has another number of rows: as if its vocabulary were padded otherwise."""
    draft = models.draft[DraftModel]
    wide = Llama(dataclasses.replace(draft.config, vocab_size=rows), rngs=nnx.Rngs(9))
    params, shared = module_to_dict(wide) | module_to_dict(draft), min(rows, draft.config.vocab_size)
    for name, axis in (("embedding", 0), ("head.kernel", 1)):
        both = [jnp.split(params[name], [shared], axis)[0], jnp.split(module_to_dict(wide)[name], [shared], axis)[1]]
        params[name] = jnp.concatenate(both, axis)
    return dataclasses.replace(models, draft={DraftModel: dict_to_module(wide, params)})


def speculation(method: Method, greedy: bool) -> Speculation:
    """The method as the engine would compile it on a CPU."""
    return method.speculation(greedy, tree_sizes=TREE_SIZES)


def requests(prompts: Sequence[Sequence[int]], max_new_tokens: int, seed: int = 0, **sampling: Any) -> list[Request]:
    """One request a prompt, greedy unless said otherwise."""
    params = SamplingParams(max_new_tokens=max_new_tokens, seed=seed, **sampling)
    return [Request(list(prompt), params, index=i) for i, prompt in enumerate(prompts)]


def weights(spec: Speculation, models: Models) -> Models:
    """Weights of target, drafter and controller."""
    control = models.control if spec.controller.needs_weights else None
    head = spec.drafter.head if isinstance(spec.drafter, WithHistory) else spec.drafter
    return Models(target=models.target, draft=models.draft.get(type(head)), control=control)


def run(
    spec: Speculation, models: Models, requests: Sequence[Request], eos: Sequence[int] = (), rows: int = 128
) -> tuple[list[list[int]], RoundCounts]:
    """New tokens of every request, and what the rounds came to, [B, rounds]; `rows` bounds prompt, text and margin."""
    state = decoded(spec, models, requests, eos, rows)
    return texts_of(state, requests), rounds_of(state, len(requests))


def texts_of(state: DecodeState, requests: Sequence[Request]) -> list[list[int]]:
    """The tokens so far after each request's prompt."""
    tokens, length = np.asarray(state.tokens), np.asarray(state.length)
    return [tokens[i, len(request.tokens) : length[i]].tolist() for i, request in enumerate(requests)]


def check_texts(
    spec: Speculation, models: Models, requests: Sequence[Request], expected: Sequence[Sequence[int]]
) -> RoundCounts:
    """Decodes. The texts must be the expected ones, and some drafts of them accepted. Returns what the rounds were."""
    texts, history = run(spec, models, requests)
    assert texts == expected
    assert history.accepted.sum() > 0, "no draft was accepted, so nothing was tested"
    return history


def rounds_of(state: DecodeState, rows: int) -> RoundCounts:
    """What the rounds so far came to in the first `rows` rows, on the host."""
    return jax.tree.map(lambda counts: np.asarray(counts)[:rows, : int(state.round)], state.history)


def decoded(
    spec: Speculation, models: Models, requests: Sequence[Request], eos: Sequence[int] = (), rows: int = 128
) -> DecodeState:
    """The state after the last round."""
    models = weights(spec, models)
    state = begun(spec, models, requests, eos, rows)
    state = loop.decode(spec, models, state, jnp.int32(rows), jnp.int32(len(state.done)))
    assert bool(state.done.all())
    return state


def run_refilled(
    spec: Speculation, models: Models, requests: Sequence[Request], eos: Sequence[int] = (), size: int = 4
) -> list[list[int]]:
    """New tokens of every request, decoded in `size` rows; a row that is done is filled with NaN until the next comes.

    A state has room for 128 rows, that of a prompt for 64.
    """
    models, room = weights(spec, models), 128
    state = start(spec, models, padded(requests[:size]), eos, room, requests)
    state = prefilled(spec, models, state)
    places, waiting, texts = dict(enumerate(range(size))), list(range(size, len(requests))), {}
    while places:
        state = loop.decode(spec, models, state, jnp.int32(room), state.done.sum() + 1)
        tokens, length, done = map(np.asarray, (state.tokens, state.length, state.done))
        for row in [row for row in places if done[row]]:
            place = places.pop(row)
            texts[place] = tokens[row, len(requests[place].tokens) : length[row]].tolist()
            state = with_nans(state, jnp.int32(row))
        free = [row for row in range(size) if row not in places]
        if len(texts) % 2 or len(free) == size:  # else those that are done wait for the next to be
            for row, place in zip(free, waiting[: len(free)], strict=False):
                fresh = start(spec, models, [requests[place]], eos, 64, requests)
                fresh = prefilled(spec, models, fresh)
                state = insert(state, fresh, np.array([row], np.int32), np.array([True]))
                places[row] = place
            waiting = waiting[len(free) :]
    return [texts[place] for place in range(len(requests))]


@functools.partial(jax.jit, donate_argnames="state")
def with_nans(state: DecodeState, row: jax.Array) -> DecodeState:
    """The state with NaN in every float that a row has."""

    def spoil(leaf):
        return leaf.at[row].set(jnp.nan) if jnp.issubdtype(leaf.dtype, jnp.floating) else leaf

    def spoiled(part):
        return jax.tree.map(spoil, part)

    return dataclasses.replace(
        state,
        cache=spoiled(state.cache),
        feature=spoiled(state.feature),
        drafter=spoiled(state.drafter),
        controller=spoiled(state.controller),
    )


def begun(spec: Speculation, models: Models, requests: Sequence[Request], eos: Sequence[int], rows: int) -> DecodeState:
    """The state before the first round."""
    state = start(spec, models, padded(requests), eos, rows)
    return prefilled(spec, models, state)


def prefilled(spec: Speculation, models: Models, state: DecodeState, chunk: int = CHUNK) -> DecodeState:
    """The state after prefill of all its prompts."""
    return read(spec.drafter, models, state, chunk, 0, int(state.length.max()))


def with_rule(method: Method, rule: Rule) -> Speculation:
    """The method with another rule, to show that the battery fails."""
    return dataclasses.replace(speculation(method, greedy=False), rule=rule)
