"""Multi-round speculative sampling: children drawn without replacement, tested one by one (EAGLE, Algorithm 1)."""

import dataclasses
from typing import ClassVar, final

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from jaxspec.decoding.drafter import Drafts, for_each, log_mass
from jaxspec.decoding.rule import Draws, Proposal, Rule, Verdict
from jaxspec.decoding.sampling import Sampling, fold, gumbel, never_greedy, probabilities, sample
from jaxspec.decoding.top_k import top_k
from jaxspec.decoding.tree import DraftTree


@final
@dataclasses.dataclass(frozen=True)
class RejectionSampling(Rule):
    """Children drawn without replacement, verified by multi-round speculative sampling (EAGLE, Algorithm 1).

    Children are tested in the order in which they were drawn. A child is accepted with probability min(1, p/q).
    Otherwise p becomes the normalised residual max(0, p - q), and q is renormalised without the child.
    """

    keeps_probs: ClassVar[bool] = True
    may_prune: ClassVar[bool] = False

    def draft_probs(self, sampling: Sampling, drafts: Drafts) -> Float[Array, "B Q support"]:
        # An id below 0 would be one from the vocabulary's end.
        logits = drafts.logits if drafts.token is None else jnp.where(drafts.token < 0, -jnp.inf, drafts.logits)
        return probabilities(logits, never_greedy(sampling))

    def propose(self, draws: Draws, drafts: Drafts, width: int, count: int) -> Proposal:
        sampled, support = (draws.sampling.temperature > 0)[:, None, None], drafts.logits.shape[-1]
        probs = self.draft_probs(draws.sampling, drafts)
        noise = jnp.where(sampled, gumbel(draws.keys, (width, support)), 0.0)
        scores, rank = top_k(jnp.log(probs) + noise, count)
        pick = lambda values: jnp.take_along_axis(for_each(values, width), rank, axis=-1)
        return Proposal(
            token=rank if drafts.token is None else pick(drafts.token),
            log_prob=jnp.log(pick(probs)) + log_mass(drafts),  # the confidence, which may be below q
            live=scores > -jnp.inf,
        )

    def verify(self, draws: Draws, tree: DraftTree, logits: Float[Array, "B N V"], depth: int) -> Verdict:
        batch, nodes = tree.token.shape
        uniform = jax.vmap(lambda key: jax.random.uniform(key, (nodes,), jnp.float32))(fold(draws.keys, 0))
        bonus_keys = fold(draws.keys, 1)
        target = probabilities(logits, draws.sampling)  # for all nodes at once: on a mesh, top-p needs all-reduces
        branching = (tree.parent[:, :, None] == jnp.arange(nodes)).sum(axis=1).max()  # most children of any node

        def visit(carry, step):
            """Tests the children of the path's last node, and draws the token that follows if none is accepted."""
            node, on_path = carry
            at = lambda values: jnp.take_along_axis(values, node[:, None, None], axis=1)[:, 0]
            p, q = at(target), at(tree.draft_probs)
            children = tree.live & (tree.parent == node[:, None]) & on_path[:, None]

            def test(_, carry):
                """Tests the first of the remaining children, unless one (`child`) was accepted."""
                p, q, children, child = carry
                candidate = children.argmax(axis=1).astype(jnp.int32)
                token = jnp.take_along_axis(tree.token, candidate[:, None], axis=1)
                of = lambda values, index: jnp.take_along_axis(values, index, axis=1)[:, 0]
                tested = children.any(axis=1) & (child < 0)
                accept = tested & (of(uniform, candidate[:, None]) * of(q, token) < of(p, token))
                reject = (tested & ~accept)[:, None]
                p, q = jnp.where(reject, residual(p, q), p), jnp.where(reject, without(q, token), q)
                children = children & (jnp.arange(nodes) != candidate[:, None])
                return p, q, children, jnp.where(accept, candidate, child)

            none = jnp.full((batch,), -1, jnp.int32)
            p, _, _, child = jax.lax.fori_loop(0, branching, test, (p, q, children, none))
            token = sample(fold(bonus_keys, step), p)
            found = on_path & (child >= 0)
            node = jnp.where(found, child, node)
            return (node, found), (node, found, token)

        start = (jnp.zeros((batch,), tree.parent.dtype), jnp.ones((batch,), bool))
        _, (reached, found, bonus) = jax.lax.scan(visit, start, jnp.arange(depth + 1))
        accepted = found.sum(axis=0, dtype=jnp.int32)
        path = jnp.concatenate([jnp.zeros((batch, 1), jnp.int32), reached[:depth].T.astype(jnp.int32)], axis=1)
        return Verdict(path=path, accepted=accepted, next_token=jnp.take_along_axis(bonus, accepted[None], axis=0)[0])


def residual(p: Float[Array, "B V"], q: Float[Array, "B V"]) -> Float[Array, "B V"]:
    """max(0, p - q), normalised: the target's distribution after a draw from q was rejected."""
    return _normalised(jnp.maximum(p - q, 0.0), otherwise=p)


def without(q: Float[Array, "B V"], token: Int[Array, "B 1"]) -> Float[Array, "B V"]:
    """q without `token`, normalised: the distribution of the next sibling."""
    return _normalised(jnp.where(jnp.arange(q.shape[1]) == token, 0.0, q), otherwise=q)


def _normalised(weight: Float[Array, "B V"], *, otherwise: Float[Array, "B V"]) -> Float[Array, "B V"]:
    """weight divided by its sum, or `otherwise` if the sum is 0 by rounding."""
    total = weight.sum(axis=-1, keepdims=True)
    return jnp.where(total > 0, weight / jnp.where(total > 0, total, 1.0), otherwise)
