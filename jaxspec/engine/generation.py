"""The result of one prompt: its text, and what happened in its rounds."""

import dataclasses
from functools import partial
from typing import Any

import jax
import numpy as np
from jaxtyping import Array, Int

from jaxspec.decoding.round_records import RoundCounts, first_tokens
from jaxspec.engine.session import Session
from jaxspec.engine.statistics import Statistics, statistics_of
from jaxspec.engine.stop_strings import StopStrings
from jaxspec.host.processes import fetch


@dataclasses.dataclass(frozen=True)
class Round:
    """One round of one sequence. Node 0 is the root; padding is left out.

    Attributes:
        token, parent: [N] int; the root's parent is -1.
        log_confidence: [N] float, log confidence of the path to each node.
        accepted: [N] bool, the root included.
        committed: tokens that the round added to the text. The bonus token is the last, unless the text was cut.
    """

    token: np.ndarray
    parent: np.ndarray
    log_confidence: np.ndarray
    accepted: np.ndarray
    committed: list[int]


def rounds_of(trace: Any, history: RoundCounts, tokens: list[int], begin: int) -> list[Round]:
    """The rounds of the text `tokens[begin:]`, after its prompt, from its `Trace` [R N] and counts on the host."""
    at, rounds = begin + 1, []
    for i, committed in enumerate(np.asarray(history.committed).tolist()):
        live = np.flatnonzero(trace.live[i])
        renumber = np.full(trace.live.shape[1] + 1, -1)
        renumber[live] = np.arange(len(live))
        rounds.append(
            Round(
                token=trace.token[i, live],
                parent=renumber[trace.parent[i, live]],
                log_confidence=trace.log_confidence[i, live],
                accepted=trace.on_path[i, live],
                committed=tokens[at : at + committed],
            )
        )
        at += committed
    return rounds


@dataclasses.dataclass(frozen=True, eq=False)  # arrays have no truth value
class Generation:
    """One prompt's result.

    Attributes:
        text: the generated text, without special tokens, cut before a stop string.
        tokens: generated token ids, including an EOS.
        finish_reason: `eos`, `length` or `stop`.
        history: counts of each round, [rounds].
        log_probs: [tokens] float, log-probability of each token under the target at temperature 1; None unless
            requested.
        rounds: tree and verdict of every round; None unless recorded.
        prefill_seconds: time of the prefill, shared with prompts that were prefilled together.
        decode_seconds: time of the batch from this prompt's prefill to the end of its text.
        controller: the controller's final state: its arrays, without the axis B. It includes rounds after a stop
            string, but not the rounds of other rows.
    """

    prompt_tokens: list[int]
    tokens: list[int]
    text: str
    finish_reason: str
    history: RoundCounts
    log_probs: np.ndarray | None
    rounds: list[Round] | None
    prefill_seconds: float
    decode_seconds: float
    controller: Any

    @property
    def statistics(self) -> Statistics:
        """tau, acceptance and the rest, counted from `history`."""
        return statistics_of([self.history])


def text_of_row(session: Session, row: int, stops: StopStrings) -> Generation:
    """The result of one row so far. Only this row is copied to the host."""
    state = session.state
    with session.model.context():
        host = fetch(_one_row((state.tokens, state.history, state.log_prob, state.trace, state.controller), row))
    text, (all_tokens, history, log_prob, trace, controller) = session.texts[row], jax.tree.map(lambda x: x[0], host)
    begin = len(text.request.tokens)
    kept, decoded, stopped = stops.cut(all_tokens[begin : int(session.length[row])].tolist(), text.request.tokens)
    tokens = all_tokens[begin : begin + kept].tolist()
    rounds = np.arange(text.first_round, session.round) % len(history.committed)
    of_rounds = partial(jax.tree.map, lambda column: column[rounds])
    counts = first_tokens(of_rounds(history), len(tokens))
    ended = bool(tokens) and tokens[-1] in session.model.config.eos
    return Generation(
        prompt_tokens=text.request.tokens,
        tokens=tokens,
        text=decoded,
        finish_reason="stop" if stopped else "eos" if ended else "length",
        history=counts,
        log_probs=None if log_prob is None else log_prob[begin : begin + len(tokens)],
        rounds=None if trace is None else rounds_of(of_rounds(trace), counts, text.request.tokens + tokens, begin),
        prefill_seconds=text.prefill_seconds,
        decode_seconds=session.decode_seconds - text.decoded_before,
        controller=controller,
    )


@jax.jit
def _one_row(arrays: Any, row: Int[Array, ""] | int) -> Any:
    return jax.tree.map(lambda x: jax.lax.dynamic_slice_in_dim(x, row, 1), arrays)
