"""Decoding with random weights and random acceptance: shows a device's speed before any head exists.

Speed depends on shapes and on the number of accepted drafts, hardly on the tokens. So a target and a head with random
weights run through the real loop, and only the verdict is replaced: the user gives the acceptance rate by position,
such as EAGLE's n-α (its Table 2). The text is meaningless, and is not compared.
"""

import dataclasses
import functools
from pathlib import Path
from typing import Any, ClassVar, TypeVar, final

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float

from jaxspec.builders import Chain, Static, Uniform
from jaxspec.checkpoint import memory, parameters
from jaxspec.checkpoint.config_json import CheckpointConfig
from jaxspec.checkpoint.loading import Checkpoint, compute_dtype, load_tokenizer
from jaxspec.checkpoint.parameters import dict_to_module, module_to_dict
from jaxspec.controllers import BetaTS, Fixed, LengthTS
from jaxspec.decoding.drafter import Drafter
from jaxspec.decoding.drafts import Drafts
from jaxspec.decoding.rule import Draws, Proposal, Rule, Verdict
from jaxspec.decoding.sampling import argmax
from jaxspec.decoding.tree import DraftTree, levels, path_to
from jaxspec.drafters import DRAFTERS, LayerSkip, Plain
from jaxspec.engine.engine import Engine
from jaxspec.methods.method import Method
from jaxspec.model.config import LlamaConfig
from jaxspec.rules.greedy import propose_top_k

LABEL = "simulated"
"""Stands in everything that a simulation prints or writes."""

M = TypeVar("M", bound=nnx.Module)

BLIND = (Chain, Static, Uniform, Fixed, BetaTS, LengthTS)
"""Builders and controllers that come to as many nodes and levels whatever a draft's confidence is: random weights have
none to go by."""


@final
@dataclasses.dataclass(frozen=True)
class Replayed(Rule):
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
            raise ValueError(f"acceptance must be at least one number from 0 to 1, not {self.acceptance}")

    def propose(self, draws: Draws, drafts: Drafts, width: int, count: int) -> Proposal:
        return propose_top_k(drafts, width, count)

    def verify(self, draws: Draws, tree: DraftTree, logits: Float[Array, "B N V"], depth: int) -> Verdict:
        beyond = (self.acceptance[-1],) * depth
        chance = jnp.array([*self.acceptance, *beyond][:depth], jnp.float32)
        coin = jax.vmap(lambda key: jax.random.uniform(key, (depth,)))(draws.keys)
        passed = jnp.cumprod(coin < chance, axis=1).sum(axis=1, dtype=jnp.int32)
        accepted = jnp.minimum(passed, levels(tree))
        deepest = jnp.where(tree.live, tree.depth, -1).argmax(axis=1)
        path = path_to(tree, deepest, depth + 1)
        last = jnp.take_along_axis(path, accepted[:, None], axis=1)
        path = jnp.where(jnp.arange(depth + 1) <= accepted[:, None], path, last)
        best = argmax(logits)
        return Verdict(path=path, accepted=accepted, next_token=jnp.take_along_axis(best, last, axis=1)[:, 0])


def parse(text: str) -> tuple[float, ...]:
    """Reads `acceptance=0.75,0.69`: the chance of a draft at each position, from 0, once those before are accepted."""
    name, equals, numbers = text.partition("=")
    try:
        if name != "acceptance" or not equals:
            raise ValueError
        return Replayed(tuple(map(float, numbers.split(",")))).acceptance
    except ValueError:
        raise ValueError(
            f"--simulate must be acceptance=P0,P1,..., such as acceptance=0.75,0.69, not {text!r}"
        ) from None


def engine(model: Checkpoint, method: Method, acceptance: tuple[float, ...], draft: Any = None) -> Engine:
    """An engine with a head of random weights, whose verdicts are drawn from `acceptance`.

    Args:
        model: such as `random_checkpoint` makes.
        draft: the head, where another method has one for the same drafter.

    Raises:
        ValueError: a method whose drafts depend on what trained weights are confident of, or on the text.
    """
    if isinstance(method.drafter, Plain):
        return Engine(model, method)
    if method.history:
        raise ValueError(
            "history drafts from the text, which is random in a simulation, so it cannot be simulated; leave it out"
        )
    for part in (method.builder, method.controller):
        if not isinstance(part, BLIND):
            raise ValueError(
                f"{part.name} needs the drafter's confidence, meaningless with random weights, so it cannot be "
                f"simulated; {', '.join(kind.name for kind in BLIND)} can"
            )
    if draft is None:
        draft = random_head(method.drafter, model.config.model, model.target.norm[...].dtype)
    return Engine(model, dataclasses.replace(method, verification=Replayed(acceptance)), draft=draft)


def random_checkpoint(target: Path, shape: CheckpointConfig, dtype: str | None = None) -> Checkpoint:
    """A target of random weights that never ends a text.

    Args:
        target: where the shape was found, a folder or a file in it; a tokenizer beside it is taken, weights are not
            read.
        dtype: float32 or bfloat16; None: the device's, as `load` has it.

    Raises:
        CheckpointError: a model of that shape does not fit into memory.
    """
    config, chosen = dataclasses.replace(shape, eos=()), compute_dtype(dtype)
    memory.check_fits(config.model, chosen)
    folder = target if target.is_dir() else target.parent
    return Checkpoint(
        path=folder,
        config=config,
        target=randomise(parameters.abstract(config.model), chosen),
        tokenizer=load_tokenizer(folder) or Bytes(config.model.vocab_size),
        heads=(),
    )


def random_head(drafter: Drafter, target: LlamaConfig, dtype: Any) -> Any:
    """Random weights for a drafter, of the shape that its paper gives a head for this target.

    `layer-skip` leaves out every second layer, so that a draft takes half the time of the target (Draft & Verify,
    Figure 2).

    Raises:
        ValueError: a drafter that drafts from the text, which means nothing here.
    """
    if not drafter.has_head:
        offers = ", ".join(name for name, kind in DRAFTERS.items() if kind.has_head)
        raise ValueError(
            f"{drafter.name} drafts from the text, which is random in a simulation; {offers} can be simulated"
        )
    if isinstance(drafter, LayerSkip):
        return drafter.build_head(drafter.head_for(target, attention_share=0.5, mlp_share=0.5), nnx.Rngs(0))
    return randomise(nnx.eval_shape(lambda: drafter.build_head(drafter.head_for(target), nnx.Rngs(0))), dtype)


def randomise(abstract: M, dtype: Any) -> M:
    """The module with random parameters, one after the other, so that memory stays near what they take.

    Matrices draw from N(0, 1/columns in), as training begins; norms are ones.
    """
    key = jax.random.key(0)
    params = {
        name: _draw(jax.random.fold_in(key, i), tuple(leaf.shape), jnp.dtype(dtype))
        for i, (name, leaf) in enumerate(module_to_dict(abstract).items())
    }
    return dict_to_module(abstract, params)


class Bytes:
    """In place of a tokenizer where a shape comes without one: a token a byte."""

    chat_template = None

    def __init__(self, vocab_size: int):
        self.vocab_size = vocab_size

    def __call__(self, text: str) -> dict[str, list[int]]:
        return {"input_ids": [byte % self.vocab_size for byte in text.encode()]}

    def decode(self, tokens: list[int], skip_special_tokens: bool = True) -> str:
        """A text as long as the tokens are many; they have no meaning."""
        return "".join(chr(97 + token % 26) for token in tokens)


@functools.partial(jax.jit, static_argnames=("shape", "dtype"))
def _draw(key: jax.Array, shape: tuple[int, ...], dtype: Any) -> jax.Array:
    if len(shape) < 2:
        return jnp.ones(shape, dtype)
    return jax.random.normal(key, shape, dtype) * jnp.asarray(shape[-2] ** -0.5, dtype)
