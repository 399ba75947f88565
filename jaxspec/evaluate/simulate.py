"""Decoding with random weights whose drafts are accepted by chance: what a device gives before any head exists.

Speed depends on shapes and on how many drafts are accepted, hardly on what the tokens are. So a target and a head of
random weights go through the very loop that trained ones do, and only the verdict is replaced: the acceptance by
position is given, such as EAGLE's n-α (its Table 2). The text means nothing, and nothing of it is compared.
"""

import dataclasses
import functools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar, TypeVar

import jax
import jax.numpy as jnp
from flax import nnx

from jaxspec.builders.chain import Chain
from jaxspec.builders.static import Static
from jaxspec.builders.uniform import Uniform
from jaxspec.checkpoint import config_json, memory, parameters
from jaxspec.checkpoint.config_json import CheckpointConfig
from jaxspec.checkpoint.loading import Checkpoint, compute_dtype, load_tokenizer
from jaxspec.checkpoint.parameters import dict_to_module, module_to_dict
from jaxspec.controllers.beta_ts import BetaTS
from jaxspec.controllers.fixed import Fixed
from jaxspec.decoding.drafter import Drafter
from jaxspec.decoding.rule import Proposal, Verdict
from jaxspec.decoding.sampling import argmax
from jaxspec.decoding.tree import levels, path_to
from jaxspec.drafters.draft_model import DraftModel
from jaxspec.drafters.eagle import Eagle, EagleHead
from jaxspec.drafters.early_exit import EarlyExit, EarlyExitHead, default_first
from jaxspec.drafters.edd import Edd, EddHead, default_tap
from jaxspec.drafters.layer_skip import LayerSkip, skip
from jaxspec.drafters.medusa import Medusa, MedusaHeads
from jaxspec.drafters.plain import Plain
from jaxspec.engine.engine import Engine
from jaxspec.methods.method import Method, name_of
from jaxspec.model.config import LlamaConfig
from jaxspec.model.llama import Llama
from jaxspec.rules.greedy import propose_top_k

LABEL = "simulated"
"""Stands in everything that a simulation prints or writes."""

MEDUSA_HEADS = 5
M = TypeVar("M", bound=nnx.Module)

BLIND = (Chain, Static, Uniform, Fixed, BetaTS)
"""Builders and controllers that come to as many nodes and levels whatever a draft's confidence is: random weights have
none to go by."""


@dataclasses.dataclass(frozen=True)
class Replayed:
    """In place of a rule: accepts by chance, whatever the tokens are. NOT lossless; for timing only.

    The accepted path leads to the deepest node, and the draft at position i of it is accepted with `acceptance[i]` once
    those before it were: what bench's `acceptance_by_position` measures, for trees too. Beyond the last of the numbers
    that one goes on. The target's logits at the end of the path still say the next token, so that all of them are
    computed.
    """

    acceptance: tuple[float, ...]
    keeps_probs: ClassVar[bool] = False
    may_prune: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if not self.acceptance or not all(0 <= chance <= 1 for chance in self.acceptance):
            raise ValueError(f"acceptance is one number or more from 0 to 1, not {self.acceptance}")

    def propose(self, keys, sampling, logits, count) -> Proposal:
        return propose_top_k(logits, count)

    def verify(self, keys, sampling, tree, logits, depth) -> Verdict:
        beyond = (self.acceptance[-1],) * depth
        chance = jnp.array([*self.acceptance, *beyond][:depth], jnp.float32)
        coin = jax.vmap(lambda key: jax.random.uniform(key, (depth,)))(keys)
        passed = jnp.cumprod(coin < chance, axis=1).sum(axis=1, dtype=jnp.int32)
        accepted = jnp.minimum(passed, levels(tree))
        deepest = jnp.where(tree.live, tree.depth, -1).argmax(axis=1)
        path = path_to(tree, deepest, depth + 1)
        last = jnp.take_along_axis(path, accepted[:, None], axis=1)
        path = jnp.where(jnp.arange(depth + 1) <= accepted[:, None], path, last)
        says = argmax(logits)
        return Verdict(path=path, accepted=accepted, next_token=jnp.take_along_axis(says, last, axis=1)[:, 0])


def parse(text: str) -> tuple[float, ...]:
    """Reads `acceptance=0.75,0.69`: the chance of a draft at each position, from 0, once those before are accepted."""
    name, equals, numbers = text.partition("=")
    try:
        if name != "acceptance" or not equals:
            raise ValueError
        return Replayed(tuple(map(float, numbers.split(",")))).acceptance
    except ValueError:
        raise ValueError(
            f"--simulate is acceptance=CHANCE,CHANCE,... such as acceptance=0.75,0.69, not {text!r}"
        ) from None


def engine(model: Checkpoint, method: Method, acceptance: tuple[float, ...], draft: Any = None) -> Engine:
    """An engine whose verdicts are drawn from `acceptance`.

    Args:
        model: such as `random_checkpoint` makes.
        draft: weights of the drafter; random ones if not given.

    Raises:
        ValueError: a method whose drafts depend on what trained weights are confident of, or on the text.
    """
    if isinstance(method.drafter, Plain):
        return Engine(model, method)
    for part in (method.builder, method.controller):
        if not isinstance(part, BLIND):
            raise ValueError(
                f"{name_of(part)} goes by the confidence of drafts, which random weights do not have, so it cannot be "
                f"simulated; {', '.join(name_of(kind()) for kind in BLIND)} can"
            )
    if draft is None:
        draft = random_head(method.drafter, model.config.model, model.target.norm[...].dtype)
    return Engine(model, dataclasses.replace(method, verification=Replayed(acceptance)), draft=draft)


def random_checkpoint(target: Path, dtype: str | None = None) -> Checkpoint:
    """A target of random weights that never ends a text, of the shape that a config.json describes.

    Args:
        target: a checkpoint's folder, a Hugging Face one, or a config.json of either; weights are not read.
        dtype: float32 or bfloat16; None: the device's, as `load` has it.

    Raises:
        CheckpointError: there is no such config, or a model of that shape does not fit into memory.
    """
    config = dataclasses.replace(read_shape(target), eos=())
    chosen = compute_dtype(dtype)
    memory.check_fits(config.model, chosen)
    folder = target if target.is_dir() else target.parent
    return Checkpoint(
        path=folder,
        config=config,
        target=randomise(parameters.abstract(config.model), chosen),
        tokenizer=load_tokenizer(folder) or Bytes(config.model.vocab_size),
        heads=(),
    )


def read_shape(target: Path) -> CheckpointConfig:
    """The config that a folder or file holds: jaxspec's or Hugging Face's. Raises CheckpointError where it is none."""
    file = target / "config.json" if target.is_dir() else target
    try:
        text = file.read_text(encoding="utf-8")
    except OSError as error:
        raise config_json.CheckpointError(
            f"there is no config.json of a model at {target}: {error.strerror}"
        ) from error
    try:
        values = json.loads(text)
        if not isinstance(values, dict) or "model_type" not in values:
            return CheckpointConfig.from_json(text)
    except (ValueError, TypeError) as error:
        raise config_json.CheckpointError(f"{file} is not the config of a model: {error}") from error
    from jaxspec.convert.hf_config import to_llama  # only commands come here

    return CheckpointConfig(values["model_type"], to_llama(values), "bfloat16", "bfloat16", "huggingface")


def random_head(drafter: Drafter, target: LlamaConfig, dtype: Any) -> Any:
    """Random weights for a drafter as they would be trained for this target; None where it has none.

    `draft-model` gets one layer of the target's shape (EDD's VDM), and `layer-skip` leaves out every second layer, so
    that a draft takes half the time of the target (Draft & Verify, Figure 2).

    Raises:
        ValueError: a drafter that drafts from the text, which means nothing here.
    """
    if isinstance(drafter, LayerSkip):
        half = range(1, target.num_layers, 2)
        return skip(target.num_layers, half, half)
    if type(drafter) not in HEADS:
        offers = ", ".join(name_of(kind()) for kind in (*HEADS, LayerSkip))
        raise ValueError(f"{name_of(drafter)} drafts from the text, which is random here; {offers} can be simulated")
    return randomise(nnx.eval_shape(lambda: HEADS[type(drafter)](target)), dtype)


def randomise(abstract: M, dtype: Any, seed: int = 0) -> M:
    """The module with random parameters, one after the other, so that memory stays near what they take.

    Matrices draw from N(0, 1/columns in), as training begins; norms are ones.
    """
    key = jax.random.key(seed)
    drawn = {
        name: _draw(jax.random.fold_in(key, i), tuple(leaf.shape), jnp.dtype(dtype))
        for i, (name, leaf) in enumerate(module_to_dict(abstract).items())
    }
    return dict_to_module(abstract, drawn)


class Bytes:
    """In place of a tokenizer where a shape comes without one: a token a byte."""

    chat_template = None

    def __init__(self, vocab_size: int):
        self.vocab_size = vocab_size

    def __call__(self, text: str) -> dict[str, list[int]]:
        return {"input_ids": [byte % self.vocab_size for byte in text.encode()]}

    def decode(self, tokens: list[int], skip_special_tokens: bool = True) -> str:
        """A text as long as the tokens are many; they mean nothing."""
        return "".join(chr(97 + token % 26) for token in tokens)


@functools.partial(jax.jit, static_argnames=("shape", "dtype"))
def _draw(key: jax.Array, shape: tuple[int, ...], dtype: Any) -> jax.Array:
    if len(shape) < 2:
        return jnp.ones(shape, dtype)
    return jax.random.normal(key, shape, dtype) * jnp.asarray(shape[-2] ** -0.5, dtype)


def _one_layer(target: LlamaConfig) -> LlamaConfig:
    return dataclasses.replace(target, num_layers=1)


HEADS: dict[type, Callable[[LlamaConfig], nnx.Module]] = {
    DraftModel: lambda target: Llama(_one_layer(target), rngs=nnx.Rngs(0)),
    Eagle: lambda target: EagleHead(_one_layer(target.without_experts), rngs=nnx.Rngs(0), bias=True),
    EarlyExit: lambda target: EarlyExitHead(
        _one_layer(target), rngs=nnx.Rngs(0), first=default_first(target.num_layers)
    ),
    Edd: lambda target: EddHead(_one_layer(target), rngs=nnx.Rngs(0), tap=default_tap(target.num_layers)),
    Medusa: lambda target: MedusaHeads.blank(target.hidden_size, target.vocab_size, MEDUSA_HEADS),
}
