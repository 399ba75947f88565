"""The cache of a conversation: each turn's prompt begins with the last one, and only what is new has to be read."""

import dataclasses
from collections.abc import Sequence

from jaxspec.decoding.decode_state import DecodeState
from jaxspec.decoding.drafter import Drafter
from jaxspec.decoding.prefill import END
from jaxspec.engine.program import Program
from jaxspec.engine.shared_prefix import Prefix, go_on, kept
from jaxspec.model import kv_cache as kv


@dataclasses.dataclass
class PromptMemory:
    """The prefilled chunks of the last prompt, which the next prompt reuses if it begins with the same tokens.

    Only whole chunks from prefill are stored, and no rows from decoding. So the text is bit-identical to that after a
    full prefill.

    Attributes:
        prefix: the stored chunks; None before the first prompt.
        rows: rows of its caches; the next session needs at least as many.
        reused: tokens of the last prompt that were reused.
    """

    prefix: Prefix | None = None
    rows: int = 0
    reused: int = 0

    def prefill(self, program: Program, state: DecodeState, tokens: Sequence[int], chunk: int) -> DecodeState:
        """`Program.prefill` for one prompt, starting where it differs from the last one.

        Args:
            state: before prefill, with the prompt in each row, and caches of at least `rows` rows.
            tokens: the prompt.
        """
        self.reused = self._usable(tokens, chunk)
        rows, prefix = state.tokens.shape[1], self.prefix
        self.prefix = None  # enlarging deletes its arrays
        if prefix is not None and self.reused:
            state = go_on(state, _enlarged(program.spec.drafter, prefix, rows) if rows > self.rows else prefix)
        end = (len(tokens) - 1) // chunk * chunk
        if end > self.reused:
            state = program.read(state, chunk, self.reused, end)
        if end:
            self.prefix, self.rows = kept(state, tokens, end), rows
        return program.read(state, chunk, end, END)

    def _usable(self, tokens: Sequence[int], chunk: int) -> int:
        """Number of tokens to reuse: all stored ones, or none if the chunk size or the tokens differ."""
        if self.prefix is None or self.prefix.position % chunk or not self.prefix.begins([tokens]):
            return 0
        return self.prefix.position


def _enlarged(drafter: Drafter, prefix: Prefix, rows: int) -> Prefix:
    cache, state = prefix.read
    return dataclasses.replace(prefix, read=(kv.enlarge(cache, rows), drafter.enlarge(state, rows)))
