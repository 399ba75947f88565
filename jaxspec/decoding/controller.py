"""The interface of controllers, and the signals that they receive after each drafted level."""

import abc
from typing import Any, ClassVar

import chex
import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Bool, Float, Int, Key

from jaxspec.decoding.builder import TreeBuilder
from jaxspec.decoding.drafter import FLOAT32, Drafts, Models, State, log_top, of_node
from jaxspec.decoding.round_records import RoundCounts
from jaxspec.decoding.strategy import Strategy
from jaxspec.decoding.tree import DraftTree, Frontier, Rows, take


@chex.dataclass(frozen=True)
class DraftSignals:
    """Inputs of a controller after a drafted level, along each row's most confident path to that level."""

    level: Int[Array, ""]  # depth of the newest nodes, from 1
    drafted: Bool[Array, " B"]  # whether the row has nodes of this level; False in rows that copy
    active: Bool[Array, " B"]  # whether the builder would expand any of them; False in rows that copy
    top_prob: Float[Array, " B"]  # largest probability after the newest node's parent
    token_prob: Float[Array, " B"]  # probability of the newest node's token
    log_confidence: Float[Array, " B"]  # log confidence of the path to the newest node
    log_coverage: Float[Array, " B"]  # log of the summed confidences of the level: P(one of its nodes is accepted)
    draft_hidden: Float[Array, "B E"] | None  # hidden state from which the newest node was drafted; None: there is none
    target_hidden: Float[Array, "B D"]  # the target's feature at the last verified position


def draft_signals(
    tree: DraftTree, newest: Frontier, expanded: Frontier, drafts: Drafts, feature: Float[Array, "B D"]
) -> DraftSignals:
    """The signals along each row's most confident path to the newest level.

    Args:
        newest: the newest nodes that the builder would expand.
        expanded: the nodes of `drafts`.
        feature: the target's feature at the last verified position.
    """
    at_level = tree.live & (tree.depth == newest.level)
    tip = jnp.where(at_level, tree.log_confidence, -jnp.inf).argmax(axis=1)[:, None]
    parent = take(tree.parent, tip)
    slot = (expanded.node == parent).argmax(axis=1)[:, None]
    confidence = take(tree.log_confidence, tip)[:, 0]
    return DraftSignals(
        level=newest.level,
        drafted=at_level.any(axis=1),
        active=newest.live.any(axis=1),
        top_prob=jnp.exp(log_top(drafts, slot)),
        token_prob=jnp.exp(confidence - take(tree.log_confidence, parent)[:, 0]),
        log_confidence=confidence,
        log_coverage=jax.nn.logsumexp(tree.log_confidence, axis=1, where=at_level),
        draft_hidden=None if drafts.hidden is None else of_node(drafts.hidden, slot),
        target_hidden=feature,
    )


class Controller(Strategy):
    """Decides whether a sequence drafts another level. It never removes a drafted node.

    Attributes:
        stops: it may end drafting before the builder's full depth.
        depends_on_batch: its decisions depend on more than the row's own text, such as other rows or measured costs.
            Above temperature 0 such a method needs Gumbel coupling, under which drafts never change the text
            (`Method.rule`).
        needs_estimates: it reads `Drafts.log_accept`, which only some heads give (`Drafter.estimates`).
        goes_plain: verification of a single node is compiled, for rounds in which no row drafts. Such rounds also skip
            the drafter's first pass, unless verification reuses it or the drafter copies text.
    """

    stops: ClassVar[bool] = True
    depends_on_batch: ClassVar[bool] = False
    needs_estimates: ClassVar[bool] = False
    goes_plain: ClassVar[bool] = False

    @property
    def needs_weights(self) -> bool:
        """Whether it has weights of its own: those in HEAD/`weights_folder`, or `Engine(..., control=)`."""
        return False

    @property
    def weights_folder(self) -> str:
        """The folder of its weights inside the folder of the drafter's head."""
        return self.name

    def build_weights(
        self, target_hidden: int, draft_hidden: int, dtype: jnp.dtype = FLOAT32, **settings: Any
    ) -> nnx.Module:
        """Random weights for hidden states of these widths, into which trained ones are restored.

        `settings` are the remaining values in the `config.json` of the weights. Raises ValueError if the controller has
        no weights, or none with these settings.
        """
        raise ValueError(f"{self.name} has no weights")

    def beside_history(self, own_levels: int | None) -> "Controller":
        """The same controller for a head with history, which drafts at most `own_levels` levels (None: any number).

        Deeper levels are copies of earlier text, and take no pass of the head.
        """
        return self

    def init(self, batch: int) -> State:
        """Initial state of `batch` sequences. No array may occur twice, because the state is donated to the loop."""
        return ()

    def begin(
        self, models: Models, keys: Key[Array, " B"], state: State, unfinished: Rows, builder: TreeBuilder
    ) -> tuple[State, Rows]:
        """Called before a round. Returns the state, perhaps with values for this round, and whether each row drafts.

        Finished rows keep their state and do not draft, whatever is returned for them. `builder` grows this round's
        trees.
        """
        return state, jnp.ones(keys.shape, bool)

    def admits(self, drafts: Drafts) -> Bool[Array, "B Q"] | None:
        """Whether drafts after each node of a frontier are added to the tree; None: all are.

        It must not depend on the drafts' tokens, unless the rule lets nodes be pruned. Rows that copy ignore it.
        """
        return None

    def on_level(self, state: State, signals: DraftSignals) -> State:
        """Called after each drafted level. Returns the updated state; rows that drafted no node keep theirs."""
        return state

    @abc.abstractmethod
    def keep_drafting(self, models: Models, keys: Key[Array, " B"], state: State, signals: DraftSignals) -> Rows:
        """Whether each row drafts another level. Nodes drafted so far are verified in either case."""

    def update(self, state: State, counts: RoundCounts) -> State:
        """Learns from a round's counts [B], all 0 in finished rows. Rows that copied earlier text keep their state."""
        return state
