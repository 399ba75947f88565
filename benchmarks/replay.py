"""A target and heads with random weights whose drafts are accepted as often as published ones, by the real greedy rule.

The target counts: its LM head is the embedding, shifted by one token, so that the token after t is t + 1, with a margin
far above the rounding of bfloat16. A head's drafts are computed and ranked as always. Then the token t + 1 takes the
rank that is drawn from published acceptance. So verification is the library's own, and every text equals plain
decoding's. Shapes and programs are those of trained models, apart from this one exchange.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any, ClassVar, final

import jax
import jax.numpy as jnp

from jaxspec.checkpoint import memory, parameters
from jaxspec.checkpoint.parameters import dict_to_module, module_to_dict
from jaxspec.decoding.drafter import Committed, Drafter, Drafts, Models, Prefix, for_each
from jaxspec.decoding.speculation import Speculation
from jaxspec.decoding.tree import DraftTree, Frontier, root_frontier, take
from jaxspec.evaluate import simulate
from jaxspec.methods.method import parse_method
from jaxspec.model.config import LlamaConfig
from jaxspec.model.llama import Llama
from jaxspec.model.quantization import quantized
from jaxspec.rules.greedy import propose_top_k

PLAIN = "plain"
SPREAD = 2.0  # standard deviation of the embedding; most of a feature still comes from the 32 layers
RESERVED = 6e9  # bytes for heads, caches and temporaries


@final
@dataclasses.dataclass(frozen=True)
class Replayed(Drafter):
    """A drafter whose drafts are right as often as `acceptance` says, for a target that counts.

    Attributes:
        head: the drafter, whose passes all run.
        acceptance: as for `simulate.Replayed`, whose model of ranks this is.
        count: most children of a node.
    """

    name: ClassVar[str] = "replayed"
    head: Drafter
    acceptance: tuple[float, ...]
    count: int

    def taps(self, models: Models) -> tuple[int, ...]:
        return self.head.taps(models)

    def init(self, models: Models, batch: int, cache_len: int) -> Any:
        return self.head.init(models, batch, cache_len)

    def observe(self, models: Models, state: Any, committed: Committed) -> Any:
        return self.head.observe(models, state, committed)

    def widen(self, state: Any, width: int) -> Any:
        return self.head.widen(state, width)

    def root(self, models: Models, state: Any, prefix: Prefix, tree: DraftTree) -> tuple[Drafts, Any]:
        drafts, state = self.head.root(models, state, prefix, tree)
        return self._exchanged(models, drafts, prefix, tree, root_frontier(tree.token.shape[0])), state

    def expand(
        self, models: Models, state: Any, prefix: Prefix, tree: DraftTree, frontier: Frontier
    ) -> tuple[Drafts, Any]:
        drafts, state = self.head.expand(models, state, prefix, tree, frontier)
        return self._exchanged(models, drafts, prefix, tree, frontier), state

    def _exchanged(self, models: Models, drafts: Drafts, prefix: Prefix, tree: DraftTree, frontier: Frontier) -> Drafts:
        """The head's best drafts after each node, with t + 1 at the rank that is drawn for this position of the row."""
        token = take(tree.token, frontier.node)
        right = ((token + 1) % models.target.config.vocab_size)[..., None]
        own = propose_top_k(drafts, token.shape[1], self.count).token
        wrong = jnp.where(own == right, (right + 1) % models.target.config.vocab_size, own)

        none = simulate.none_of(simulate.Replayed(self.acceptance).chance(frontier.level), own.shape[-1])

        def draw(row: jax.Array, length: jax.Array) -> jax.Array:
            key = jax.random.key(0)
            for number in (row, length, frontier.level):
                key = jax.random.fold_in(key, number)
            return jax.random.uniform(key)

        uniform = jax.vmap(draw)(jnp.arange(len(token)), prefix.length)
        rank = (uniform[:, None] >= 1 - none).sum(axis=-1)
        here = jnp.arange(own.shape[-1]) == rank[:, None, None]
        confidence = jnp.maximum(-jnp.diff(none, prepend=1.0), simulate.LEAST)
        return Drafts(
            logits=jnp.broadcast_to(jnp.log(confidence), own.shape),
            token=jnp.where(here, right, wrong),
            hidden=None if drafts.hidden is None else for_each(drafts.hidden, token.shape[1]),
        )


def replayed(name: str, head: Any, acceptance: Mapping[str, tuple[float, ...]]) -> Speculation:
    """The loop of a method at temperature 0 with replayed acceptance, by the drafter's name."""
    method = parse_method(name)
    if name == PLAIN:
        return method.speculation(greedy=True)
    spec = method.fitted(head).speculation(greedy=True)
    children = 1 if spec.builder.is_chain else vars(spec.builder)["width"]
    return dataclasses.replace(spec, drafter=Replayed(spec.drafter, acceptance[spec.drafter.name], children))


def counting_target(shape: LlamaConfig, dtype: str, quantize: str | None = None) -> Llama:
    """A target with random weights, made on the device, whose greedy text counts upwards."""
    params = module_to_dict(simulate.randomise(parameters.abstract(shape), dtype))
    params["embedding"], params["head.kernel"] = _counting(params["embedding"])
    target = dict_to_module(parameters.abstract(shape), params)
    return target if quantize is None else quantized(target, quantize)


def layers_that_fit(shape: LlamaConfig, dtype: str) -> int:
    """The number of layers, up to all, with which the target and all else fit into the device's free memory."""
    free = memory.available_bytes(jax.devices()[0]) - RESERVED
    one, two = (memory.required_bytes(dataclasses.replace(shape, num_layers=n), dtype) for n in (1, 2))
    return max(1, min(shape.num_layers, int(1 + (free - one) / (two - one))))


@jax.jit
def _counting(table: jax.Array) -> tuple[jax.Array, jax.Array]:
    """The embedding with standard deviation SPREAD, from one that `simulate.randomise` drew; and the LM head."""
    vocab, width = table.shape
    wide = (table.astype(jnp.float32) * (SPREAD * vocab**0.5)).astype(table.dtype)
    return wide, (jnp.roll(wide, 1, axis=0).T * width**-0.5).astype(table.dtype)
