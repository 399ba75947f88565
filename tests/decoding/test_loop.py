"""Where a round's tokens end, for every round of three tokens and a vocabulary of three, against a plain rendering."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np

from jaxspec.decoding import loop

WIDTH, VOCABULARY, ROOM = 4, 3, 5
ENDS = (1, -1)  # one token ends a text; -1 is padding


def expected(tokens: tuple[int, ...], accepted: int, room: int) -> tuple[int, bool]:
    """The number of committed tokens, and whether they end with an EOS, one token after the other."""
    committed = []
    for token in tokens[: accepted + 1]:
        if len(committed) == room or ENDS[0] in committed:
            break
        committed.append(token)
    return len(committed), ENDS[0] in committed


def test_every_round():
    rounds = list(itertools.product(itertools.product(range(VOCABULARY), repeat=WIDTH), range(WIDTH), range(ROOM + 1)))
    tokens, accepted, room = (jnp.asarray(part, jnp.int32) for part in zip(*rounds, strict=True))
    count, ended = map(np.asarray, jax.jit(loop.cut)(tokens, accepted, jnp.asarray(ENDS), room))
    for at, one in enumerate(rounds):
        assert (int(count[at]), bool(ended[at])) == expected(*one), one
