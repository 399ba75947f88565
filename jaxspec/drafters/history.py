"""History beside a head: drafts copy earlier text where the text repeats itself, and the head's passes are skipped.

After SAM decoding (arXiv:2411.10666) and hybrid suffix decoding (arXiv:2411.04975), which search on the host. Here the
search is one comparison of the whole text with its end, inside the loop.

This is lossless under every rule. What a row copies, and which probabilities it raises, depends only on its own text
and rounds, and is part of the logits that children are drawn from. Rejection sampling stores these as q; Gumbel
coupling and greedy decoding need no q.
"""

import dataclasses
from collections.abc import Callable
from typing import ClassVar, final

import chex
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from jaxspec.decoding.drafter import Committed, Drafter, Drafts, Models, Prefix, State, for_each, run_if
from jaxspec.decoding.sampling import argmax
from jaxspec.decoding.tree import DraftTree, Frontier, root_frontier, take
from jaxspec.drafters import suffix_match
from jaxspec.drafters.suffix_match import Continuation, MatchState
from jaxspec.model.llama import Output

LONGEST = 16
"""Most tokens of a match that are compared. Of equally long matches the latest is taken."""

AGAINST_THE_HEAD = 0.25
"""Prior chance of a match if the head prefers another token, relative to its prior chance in general. It is a guess,
which comparisons in the text soon outweigh."""
LEAST = -1e30
"""Below every logit but -inf."""


@chex.dataclass(frozen=True)
class HistoryState:
    """The head's own state, and the state of history."""

    head: State
    matches: MatchState  # success of all matches, in copies and behind the head's drafts
    against: MatchState  # success of matches for which the head preferred another token after the root
    head_rounds: Float[Array, " B"]  # number of rounds that the head drafted
    accepted: Float[Array, " B"]  # number of drafts accepted in those rounds
    copied: Bool[Array, " B"]  # rows that copy earlier text in this round
    drafted: Bool[Array, " B"]  # rows for which the head drafts in this round
    skipped: Bool[Array, " B"]  # whether a pass of the head was skipped, the same for every row


@final
@dataclasses.dataclass(frozen=True)
class WithHistory(Drafter):
    """Copies earlier text if at least `history` of the last tokens match it; otherwise drafts with the head.

    A copy is a chain: each token is the only child of the one before. Its confidence is the estimated probability that
    it follows. A row copies only if the expected number of accepted drafts, by the success of matches in its text,
    is at least the head's average, shrunk towards 0 in the first rounds.

    If a row does not copy, the head drafts, but the match raises probabilities: at nodes that continue like the earlier
    text, the earlier next token gets at least the rate at which such matches were right in this text when the head
    preferred another token. The same holds below the head's last level, where it is the only draft.

    `observe` always runs, so the head's keys and values have no gaps. The head's pass runs if any row needs it, which
    does not change the drafts of other rows.
    """

    name: ClassVar[str] = "history"
    abstains: ClassVar[bool] = True  # a copied node has one child
    head: Drafter
    history: int
    depth: int  # the builder's

    @property
    def reuses_drafting(self) -> bool:
        """As the head."""
        return self.head.reuses_drafting

    def taps(self, models: Models) -> tuple[int, ...]:
        return self.head.taps(models)

    def init(self, models: Models, batch: int, cache_len: int) -> HistoryState:
        return HistoryState(
            head=self.head.init(models, batch, cache_len),
            matches=suffix_match.unmatched(batch, LONGEST),
            against=suffix_match.unmatched(batch, LONGEST),
            head_rounds=jnp.zeros(batch, jnp.float32),
            accepted=jnp.zeros(batch, jnp.float32),
            copied=jnp.zeros(batch, bool),
            drafted=jnp.zeros(batch, bool),
            skipped=jnp.zeros(batch, bool),
        )

    def enlarge(self, models: Models, state: HistoryState, cache_len: int) -> HistoryState:
        return dataclasses.replace(state, head=self.head.enlarge(models, state.head, cache_len))

    def observe(self, models: Models, state: HistoryState, committed: Committed) -> HistoryState:
        drafted = state.drafted & (committed.count > 0)
        return dataclasses.replace(
            state,
            head=self.head.observe(models, state.head, committed),
            drafted=jnp.zeros_like(state.drafted),
            matches=suffix_match.learn(state.matches, committed.next_token, committed.count),
            against=suffix_match.learn(state.against, committed.next_token, committed.count),
            head_rounds=state.head_rounds + drafted,
            accepted=state.accepted + jnp.where(drafted, committed.count - 1, 0),
        )

    def from_history(self, state: HistoryState, batch: int) -> Bool[Array, " B"]:
        return state.copied

    def root(self, models: Models, state: HistoryState, prefix: Prefix, tree: DraftTree) -> tuple[Drafts, HistoryState]:
        batch, size = tree.token.shape
        ahead = suffix_match.continuation(prefix.token, prefix.length, LONGEST, size)
        of_head = state.accepted / (state.head_rounds + suffix_match.TRUST)
        frontier = root_frontier(batch)
        if prefix.unfinished is not None:
            frontier = dataclasses.replace(frontier, live=prefix.unfinished[:, None])
        copied = (ahead.matched >= self.history) & (worth(state.matches, ahead.matched, self.depth) >= of_head)
        begun = dataclasses.replace(
            state,
            matches=dataclasses.replace(state.matches, ahead=ahead),
            copied=copied,
            drafted=frontier.live[:, 0] & ~copied,
            skipped=jnp.zeros_like(state.skipped),
        )
        drafts, drafted = self._run_head(begun, frontier, lambda head: self.head.root(models, head, prefix, tree))
        otherwise = (first_choice(drafts) != ahead.token[:, 0]) & ~begun.copied
        guess = Continuation(token=ahead.token[:, :1], matched=jnp.where(otherwise, ahead.matched, 0))
        drafted = dataclasses.replace(drafted, against=dataclasses.replace(state.against, ahead=guess))
        return combine(drafted, tree, frontier, drafts), drafted

    def widen(self, state: HistoryState, width: int) -> HistoryState:
        return dataclasses.replace(state, head=self.head.widen(state.head, width))

    def expand(
        self, models: Models, state: HistoryState, prefix: Prefix, tree: DraftTree, frontier: Frontier
    ) -> tuple[Drafts, HistoryState]:
        run = lambda head: self.head.expand(models, head, prefix, tree, frontier)
        drafts, drafted = self._run_head(state, frontier, run)
        return combine(drafted, tree, frontier, drafts), drafted

    def _run_head(
        self, state: HistoryState, frontier: Frontier, run: Callable[[State], tuple[Drafts, State]]
    ) -> tuple[Drafts, HistoryState]:
        """Runs the head's pass if a live row that does not copy needs it."""
        needed = (frontier.live.any(axis=1) & ~state.copied).any()
        drafts, head = run_if(needed, run, state.head)
        return drafts, dataclasses.replace(state, head=head, skipped=state.skipped | ~needed)

    def target_forward(
        self,
        models: Models,
        state: HistoryState,
        prefix: Prefix,
        tree: DraftTree,
        slots: Int[Array, "B N"],
        leaves: int,
    ) -> Output:
        def resumed() -> Output:
            return self.head.target_forward(models, state.head, prefix, tree, slots, leaves)

        if not self.head.reuses_drafting:
            return resumed()
        whole = super().target_forward  # it needs no results of skipped passes
        return jax.lax.cond(state.skipped.any(), lambda: whole(models, state, prefix, tree, slots, leaves), resumed)


def worth(state: MatchState, matched: Int[Array, " B"], depth: int) -> Float[Array, " B"]:
    """The expected number of accepted drafts of a copy of `depth` tokens. Each of them makes the match longer."""
    return jnp.cumprod(suffix_match.chance(state, matched[:, None] + jnp.arange(depth)), axis=1).sum(axis=1)


def first_choice(drafts: Drafts) -> Int[Array, " B"]:
    """The head's most probable token after the root."""
    best = argmax(drafts.logits[:, :1].astype(jnp.float32))
    if drafts.token is None:
        return best[:, 0]
    ids = jnp.broadcast_to(drafts.token[:, :1], (len(best), 1, drafts.token.shape[-1]))
    return jnp.take_along_axis(ids, best[..., None], axis=-1)[:, 0, 0]


def combine(state: HistoryState, tree: DraftTree, frontier: Frontier, drafts: Drafts) -> Drafts:
    """The head's drafts of a level, combined with the earlier continuation of the text."""
    ahead = state.matches.ahead
    assert ahead is not None, "root comes before expand"
    matched = jnp.where(ahead.matched > 0, ahead.matched + frontier.level, 0)
    against = suffix_match.chance(state.against, matched, AGAINST_THE_HEAD)
    chance = jnp.where(state.copied, suffix_match.chance(state.matches, matched), against)[:, None]
    chance = jnp.where(repeats(tree, frontier, ahead), chance, 0.0)
    follows = jax.lax.dynamic_index_in_dim(ahead.token, frontier.level, axis=1)
    return with_copies(drafts, jnp.broadcast_to(follows, chance.shape), chance, state.copied)


def repeats(tree: DraftTree, frontier: Frontier, ahead: Continuation) -> Bool[Array, "B W"]:
    """Whether the path to each node of the frontier equals the earlier continuation."""
    agrees = (tree.depth == 0) | (tree.token == take(ahead.token, tree.depth - 1))
    return (agrees[:, None] | ~take(tree.ancestors, frontier.node)).all(axis=-1)


def with_copies(
    drafts: Drafts, token: Int[Array, "B W"], chance: Float[Array, "B W"], copied: Bool[Array, " B"]
) -> Drafts:
    """The head's drafts after W nodes, with the probability of each node's `token` raised to at least `chance`.

    If it is raised, all other probabilities are reduced by the same factor. A token that the head cannot draft replaces
    the head's last candidate. In copied rows, and where the head drafts nothing, `token` is the only draft.
    """
    width, count = token.shape[1], drafts.logits.shape[-1]
    logits = for_each(drafts.logits.astype(jnp.float32), width)
    ids = jnp.broadcast_to(jnp.arange(count) if drafts.token is None else drafts.token, logits.shape)
    own, total = ids == token[..., None], jnp.zeros(())
    if drafts.token is None:
        total = jax.nn.logsumexp(logits, axis=-1, keepdims=True)
    log_prob = logits - jnp.where(jnp.isneginf(total), 0.0, total)
    before = jnp.exp(jnp.where(own, log_prob, -jnp.inf).max(axis=-1))
    raised = (chance > before)[..., None]
    if drafts.token is not None:
        likeliest = argmax(jnp.where(own, jnp.maximum(logits, LEAST), -jnp.inf))  # padding may repeat an id
        own = jnp.arange(count) == jnp.where(own.any(axis=-1), likeliest, count - 1)[..., None]
    less, weight = (jnp.log1p(-chance) - jnp.log1p(-before))[..., None], jnp.log(chance)[..., None]
    copied = jnp.broadcast_to(copied[:, None, None], raised.shape)
    more = jnp.where(own, weight, jnp.where(copied, -jnp.inf, log_prob + less))
    alone = copied | jnp.isneginf(log_prob).all(axis=-1, keepdims=True)
    log_accept = drafts.log_accept
    if log_accept is not None:  # it belongs to the most probable draft, now perhaps `token`
        own_draft = for_each(log_accept, width) + less[..., 0]
        log_accept = jnp.where((raised | copied)[..., 0], jnp.maximum(weight[..., 0], own_draft), log_accept)
    return Drafts(
        logits=jnp.where(raised | copied, more, logits),
        log_accept=log_accept,
        log_mass=jnp.where(alone, weight, 0.0)[..., 0] if drafts.token is None else None,
        token=None if drafts.token is None else jnp.where(own & (raised | copied), token[..., None], ids),
        hidden=None if drafts.hidden is None else for_each(drafts.hidden, width),
    )
