"""How a text is drawn, and a prompt with that, ready to run. Loads no JAX, as the options of commands need none."""

import dataclasses
import math


@dataclasses.dataclass(frozen=True)
class SamplingParams:
    """How a text is drawn."""  # each field is an option on the command line, its docstring the help

    max_new_tokens: int = 128
    """Tokens of a text after its prompt, at most."""
    temperature: float = 0.0
    """0 is greedy."""
    top_p: float = 1.0
    """Sample from the tokens of highest probability that make up this probability; 1: from all."""
    top_k: int = 0
    """Sample from this many tokens of highest probability; 0: from all."""
    seed: int = 0
    """Text i draws from fold_in(key(seed), i): the same text in any batch."""

    def __post_init__(self) -> None:
        if self.max_new_tokens < 1:
            raise ValueError(f"max_new_tokens must be at least 1, not {self.max_new_tokens}")
        if not 0 <= self.temperature < math.inf:
            raise ValueError(f"temperature must be 0 or above, not {self.temperature}")
        if not 0 < self.top_p <= 1:
            raise ValueError(f"top_p must be above 0 and at most 1, not {self.top_p}")
        if self.top_k < 0:
            raise ValueError(f"top_k must be 0 (no limit) or above, not {self.top_k}")


@dataclasses.dataclass(frozen=True)
class Request:
    """One prompt, ready to run.

    Attributes:
        index: in the call; the prompt draws from fold_in(key(seed), index).
    """

    tokens: list[int]
    sampling: SamplingParams
    index: int = 0
