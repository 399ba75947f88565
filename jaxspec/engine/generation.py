"""The result of one prompt: its text, and what happened in its rounds.

A text may end where a stop string first appears, and of a growing text a part can be shown before.
"""

import dataclasses
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import jax
import numpy as np
from jaxtyping import Array, Int

from jaxspec.decoding.round_records import RoundCounts, first_tokens
from jaxspec.engine.session import Session
from jaxspec.engine.statistics import Statistics, statistics_of
from jaxspec.host.processes import fetch

UTF8_BYTES = 4  # of the longest character


class StopStrings:
    """Strings that end a text at their first occurrence. Its truth value is false without any string.

    A special token is no part of a text, but its name as a stop string ends the text too, where it is generated.

    Raises:
        ValueError: a string is empty or not text, or there is no tokenizer.
    """

    def __init__(self, strings: Sequence[str] | None, tokenizer: Any):
        if not isinstance(strings, str | Sequence | None):
            raise ValueError(f"stop must be a string or several, not {strings!r}")
        strings = [strings] if isinstance(strings, str) else list(strings or ())
        for string in strings:
            if not isinstance(string, str) or not string:
                raise ValueError(f"a stop string must be text and not empty, not {string!r}")
            if any("\ud800" <= character <= "\udfff" for character in string):
                raise ValueError(f"the stop string {string!r} has a part that is no character, and no text has it")
        if strings and tokenizer is None:
            raise ValueError("stop strings need a tokenizer, and this checkpoint has none")
        self.strings, self.tokenizer = strings, tokenizer
        special = tokenizer.special_ids if strings else {}
        self._ids = {special[string] for string in strings if string in special}

    def __bool__(self) -> bool:
        return bool(self.strings)

    @property
    def longest(self) -> int:
        """Length of the longest stop string, in characters."""
        return max(map(len, self.strings), default=0)

    def cut(self, tokens: list[int], before: list[int]) -> tuple[int, str, bool]:
        """(number of tokens up to the end of the first stop string, text before it, whether there is one).

        Args:
            tokens: generated tokens.
            before: the prompt, or its end.
        """
        special = next((at for at, token in enumerate(tokens) if token in self._ids), None)
        ordinary = tokens[:special]
        text = text_of(self.tokenizer, ordinary, before)
        hidden = self.strings and text.endswith("\ufffd") and self._is_in(ordinary, before)
        if self._find(text) is None and not hidden:
            return (len(tokens), text, False) if special is None else (special + 1, text, True)
        least = range(1, len(ordinary))
        count = 1 + bisect_left(least, True, key=lambda count: self._is_in(ordinary[:count], before))
        text = text_of(self.tokenizer, tokens[:count], before)
        return count, text[: self._find(text)], True

    def _is_in(self, tokens: list[int], before: list[int]) -> bool:
        """Whether a stop string is in the text, or was before the last tokens began a character that is unfinished.

        Byte tokens in a row are decoded as one, so an unfinished character makes those before it unreadable too.
        """
        for count in range(len(tokens), max(len(tokens) - UTF8_BYTES, 0), -1):
            text = text_of(self.tokenizer, tokens[:count], before)
            if self._find(text) is not None or not text.endswith("\ufffd"):
                return self._find(text) is not None
        return False

    def _find(self, text: str) -> int | None:
        return min((at for string in self.strings if (at := text.find(string)) >= 0), default=None)


def text_of(tokenizer: Any, tokens: list[int], before: list[int]) -> str:
    """The text of tokens that follow the tokens `before`, without special tokens; empty without a tokenizer."""
    return "" if tokenizer is None else tokenizer.decode_after(before, tokens)


class ShownText:
    """The part of a growing text that can be shown: no partial character, and no possible start of a stop string."""

    def __init__(self, tokenizer: Any):
        if tokenizer is None:
            raise ValueError("streaming text needs a tokenizer, and this checkpoint has none")
        self.shown = 0

    def more(self, text: str, *, final: bool, hold: int) -> Iterator[str]:
        """Yields the new part of `text`. Unless `final`, it keeps back `hold` characters and a partial character."""
        end = len(text)
        if not final:
            end = max(self.shown, len(text.rstrip("\ufffd")) - hold)
        if end > self.shown:
            yield text[self.shown : end]
            self.shown = end


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
    """The rounds of a text, from its `Trace` [R N] on the host, and their counts.

    `tokens` are those of the prompt and the text, which begins at index `begin`.
    """
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
