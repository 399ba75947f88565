"""Sampling parameters, and a prompt with its parameters. This module does not import JAX, so `--help` is fast."""

import dataclasses

from jaxspec.host.arguments import integer, number


@dataclasses.dataclass(frozen=True)
class SamplingParams:
    """How tokens are sampled."""  # each field is an option on the command line, and its docstring is the help

    max_new_tokens: int = 128
    """Largest number of generated tokens."""
    temperature: float = 0.0
    """0 means greedy decoding."""
    top_p: float = 1.0
    """Sample from the most probable tokens whose probabilities sum to this value. 1: from all tokens."""
    top_k: int = 0
    """Sample from this many most probable tokens. 0: from all tokens."""
    seed: int = 0
    """Prompt i uses the random key fold_in(key(seed), i), so its text is the same in any batch."""

    def __post_init__(self) -> None:
        checked = {
            "max_new_tokens": integer("max_new_tokens", self.max_new_tokens, 0),
            "temperature": number("temperature", self.temperature),
            "top_p": number("top_p", self.top_p),
            "top_k": integer("top_k", self.top_k),
            "seed": integer("seed", self.seed, -(2**31), 2**32 - 1),  # JAX cuts other seeds to 32 bits
        }
        for name, value in checked.items():  # NumPy scalars become Python's
            object.__setattr__(self, name, value)
        if self.temperature < 0:
            raise ValueError(f"temperature must be 0 or above, not {self.temperature}")
        if not 0 < self.top_p <= 1:
            raise ValueError(f"top_p must be above 0 and at most 1, not {self.top_p}")
        if self.top_k < 0:
            raise ValueError(f"top_k must be 0 (no limit) or above, not {self.top_k}")


@dataclasses.dataclass(frozen=True)
class Request:
    """One prompt, ready to run.

    Attributes:
        tokens: token ids of the prompt.
        index: index of the prompt in the call. Its random key is fold_in(key(seed), index).
    """

    tokens: list[int]
    sampling: SamplingParams
    index: int = 0
