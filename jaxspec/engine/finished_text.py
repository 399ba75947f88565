"""Makes the results of prompts from the batch rows whose texts are finished."""

from functools import partial
from typing import Any

import jax
import numpy as np
from jaxtyping import Array, Int

from jaxspec.decoding.decode_state import DecodeState
from jaxspec.decoding.round_counts import first_tokens
from jaxspec.engine.generation import Generation
from jaxspec.engine.recorded_rounds import rounds_of
from jaxspec.engine.session import Session
from jaxspec.engine.stop_strings import StopStrings
from jaxspec.host.processes import fetch


def all_texts(session: Session, stops: StopStrings) -> list[Generation]:
    """The results of all rows, in their order."""
    host = fetch(_what_counts(session.state))
    return [_generation(session, host, row, row, stops) for row in sorted(session.texts)]


def text_of_row(session: Session, row: int, stops: StopStrings) -> Generation:
    """The result of one row. Only this row is copied to the host."""
    with session.model.context():
        host = fetch(_one_row(_what_counts(session.state), row))
    return _generation(session, host, 0, row, stops)


def _what_counts(state: DecodeState) -> tuple:
    return state.tokens, state.history, state.log_prob, state.trace, state.controller


@jax.jit
def _one_row(arrays: Any, row: Int[Array, ""] | int) -> Any:
    return jax.tree.map(lambda x: jax.lax.dynamic_slice_in_dim(x, row, 1), arrays)


def _generation(session: Session, host: tuple, at: int, row: int, stops: StopStrings) -> Generation:
    """The result of a row, whose index in the arrays on the host is `at`."""
    text, (all_tokens, history, log_prob, trace, controller) = session.texts[row], jax.tree.map(lambda x: x[at], host)
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
