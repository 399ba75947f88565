"""Decoding with random weights: shows a device's speed before any head exists. Only the head's confidences and the
verdict are replaced: they follow from given acceptance rates by position, such as EAGLE's n-α (its Table 2).
"""

import contextlib
import dataclasses
import functools
from pathlib import Path
from typing import Any, ClassVar, TypeVar, final

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float, Int

from jaxspec.builders.top_paths import ConfidencePower
from jaxspec.checkpoint import memory, parameters
from jaxspec.checkpoint.config_json import CheckpointConfig
from jaxspec.checkpoint.loading import Checkpoint, compute_dtype
from jaxspec.checkpoint.parameters import dict_to_module, module_to_dict
from jaxspec.checkpoint.tokenizer import load_tokenizer
from jaxspec.controllers import BetaTS, Fixed, LengthTS
from jaxspec.costs.calibration import measure
from jaxspec.decoding.drafter import Drafter, Drafts
from jaxspec.decoding.rule import Draws, Proposal, Rule, Verdict
from jaxspec.decoding.sampling import argmax
from jaxspec.decoding.tree import DraftTree, take
from jaxspec.drafters import DRAFTERS, LayerSkip, Plain
from jaxspec.engine.engine import Engine
from jaxspec.host.terminal import say
from jaxspec.methods.method import Method
from jaxspec.model.config import LlamaConfig
from jaxspec.rules.greedy import go_down, propose_top_k

LABEL = "simulated"  # of everything that a simulation prints or writes
M = TypeVar("M", bound=nnx.Module)
BLIND = (Fixed, BetaTS, LengthTS)  # controllers that do not use the head's probabilities
LEAST = 1e-6  # smallest confidence of a draft: a builder would drop one of 0, and the tree would be too small


@dataclasses.dataclass(frozen=True)
class MethodWithRule(Method):
    """A method with a rule of its own, which need not be lossless, in place of the one that fits its builder."""

    verification: Rule = dataclasses.field(kw_only=True)

    def rule(self, greedy: bool) -> Rule:
        return self.verification


@final
@dataclasses.dataclass(frozen=True)
class Replayed(Rule):
    """Replaces a rule: accepts drafts at random, whatever their tokens are. NOT lossless; for timing only.

    At position i (from 0; later ones as the last), the likeliest child of an accepted node is the target's token with
    probability a = `acceptance[i]`. Each further child is that token with probability a / 2, given that the children
    before it are not; heads of the builtin model behave similarly. So the child of rank r > 0 has probability
    (1 - a)·(1 - a/2)^(r - 1)·a/2.

    A child's confidence is this probability, so a tree has the same shape in every round, unlike with a real head. The
    verdict draws one rank for each row and position, which holds for all nodes at that position. So a chain has the
    given acceptance, as bench's `acceptance_by_position` shows; a tree also accepts other children. If a static tree
    leaves ranks out, its children count as if it did not. All of the target's logits are computed, for the next token.
    """

    acceptance: tuple[float, ...]
    keeps_probs: ClassVar[bool] = False
    may_prune: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if not self.acceptance or not all(0 <= chance <= 1 for chance in self.acceptance):
            raise ValueError(f"acceptance must be at least one number from 0 to 1, not {self.acceptance}")

    def chance(self, position: Int[Array, "*P"]) -> Float[Array, "*P"]:
        """The chance that the likeliest child at these positions is accepted."""
        known = jnp.array(self.acceptance, jnp.float32)
        return known[jnp.minimum(position, len(self.acceptance) - 1)]

    def propose(self, draws: Draws, drafts: Drafts, width: int, count: int) -> Proposal:
        """The head's own best children, so all of its work is done, with the confidences of the simulation."""
        assert draws.level is not None
        found = propose_top_k(drafts, width, count)
        none = none_of(self.chance(draws.level), found.token.shape[-1])
        confidence = jnp.maximum(-jnp.diff(none, prepend=1.0), LEAST)
        return dataclasses.replace(found, log_prob=jnp.broadcast_to(jnp.log(confidence), found.log_prob.shape))

    def verify(self, draws: Draws, tree: DraftTree, logits: Float[Array, "B N V"], depth: int) -> Verdict:
        nodes, position = tree.token.shape[1], jnp.arange(max(depth, 1))
        uniform = jax.vmap(lambda key: jax.random.uniform(key, position.shape, jnp.float32))(draws.keys)
        rank = (uniform[..., None] >= 1 - none_of(self.chance(position), nodes)).sum(axis=-1)
        agrees = siblings_before(tree) == take(rank, tree.depth - 1)
        return go_down(tree, agrees, argmax(logits), depth)


def none_of(chance: Float[Array, "*P"], count: int) -> Float[Array, "*P C"]:
    """The probability that none of the first 1, 2, … C children is the target's token; the first child has `chance`."""
    chance = chance[..., None]
    return (1 - chance) * (1 - chance / 2) ** jnp.arange(count)


def siblings_before(tree: DraftTree) -> Int[Array, "B N"]:
    """Number of children of the same parent before each node."""
    order = jnp.arange(tree.token.shape[1])
    same = (tree.parent[:, :, None] == tree.parent[:, None, :]) & tree.live[:, None, :]
    return (same & (order[None, :] < order[:, None])).sum(axis=-1)


def parse(text: str) -> tuple[float, ...]:
    """Reads `acceptance=0.75,0.69`: the acceptance by position from 0. Raises ValueError for other texts."""
    name, _, numbers = text.partition("=")
    with contextlib.suppress(ValueError):
        if name == "acceptance":
            return Replayed(tuple(map(float, numbers.split(",")))).acceptance
    raise ValueError(f"--simulate must be acceptance=P0,P1,..., such as acceptance=0.75,0.69, not {text!r}")


def engine(
    model: Checkpoint, method: Method, acceptance: tuple[float, ...], draft: Any = None, batch_size: int = 1
) -> Engine:
    """An engine with a head of random weights, whose verdicts are drawn from `acceptance`.

    Costs that the method needs and does not set are measured now, for `batch_size` sequences, and are not kept. Raises
    ValueError if the drafts depend on the text, or the controller on probabilities of trained weights.

    Args:
        model: a checkpoint from `random_checkpoint`.
        draft: the head of another method with the same drafter.
    """
    if isinstance(method.drafter, Plain):
        return Engine(model, method)
    if method.history:
        raise ValueError(
            "history drafts from the text, which is random in a simulation, so it cannot be simulated; leave it out"
        )
    if not isinstance(method.controller, BLIND):
        raise ValueError(
            f"{method.controller.name} needs the drafter's confidence, meaningless with random weights, so it cannot "
            f"be simulated; {', '.join(kind.name for kind in BLIND)} can"
        )
    if draft is None:
        draft = random_head(method.drafter, model.config.model, model.target.dtype)
    costs = None
    if method.needs_costs:
        say(f"{LABEL}: {method} needs the costs of drafting and verification; measuring them")
        costs = measure(model, method, draft, batch_size)
    return Engine(model, simulated(method, acceptance), draft=draft, costs=costs)


def simulated(method: Method, acceptance: tuple[float, ...]) -> Method:
    """The method with verdicts and confidences that are drawn from `acceptance`.

    Builders that correct a head's confidence (`ConfidencePower`) use it uncorrected, because it is the true acceptance.
    """
    builder: Any = method.builder
    if issubclass(type(builder), ConfidencePower):
        method = dataclasses.replace(method, builder=dataclasses.replace(builder, power=1.0, greedy_power=1.0))
    return MethodWithRule(**vars(method), verification=Replayed(acceptance))


def random_checkpoint(target: Path, shape: CheckpointConfig, dtype: str | None = None) -> Checkpoint:
    """A target of random weights that never ends a text. Raises CheckpointError if it does not fit into memory.

    Args:
        target: the folder of the shape, or a file in it. Its tokenizer is used; weights are not read.
        dtype: as in `load`.
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
    """Random weights for a drafter's head, in the shape of its paper for this target. Raises ValueError without a head.

    `layer-skip` leaves out every second layer: a draft takes half the time of the target (Draft & Verify, Figure 2).
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
    """The module with random parameters, made one by one to save memory: matrices from N(0, 1/inputs), and ones."""
    key = jax.random.key(0)
    params = {
        name: _draw(jax.random.fold_in(key, i), tuple(leaf.shape), jnp.dtype(dtype))
        for i, (name, leaf) in enumerate(module_to_dict(abstract).items())
    }
    return dict_to_module(abstract, params)


@dataclasses.dataclass(frozen=True)
class Bytes:
    """Replaces a missing tokenizer: one token per byte."""

    vocab_size: int
    chat_template: ClassVar[None] = None

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        return [byte % self.vocab_size for byte in text.encode()]

    def decode(self, tokens: list[int], skip_special_tokens: bool = True) -> str:
        return "".join(chr(97 + token % 26) for token in tokens)

    def decode_after(self, before: list[int], tokens: list[int]) -> str:
        return self.decode(tokens)


@functools.partial(jax.jit, static_argnames=("shape", "dtype"))
def _draw(key: jax.Array, shape: tuple[int, ...], dtype: Any) -> jax.Array:
    if len(shape) < 2:
        return jnp.ones(shape, dtype)
    return jax.random.normal(key, shape, dtype) * jnp.asarray(shape[-2] ** -0.5, dtype)
