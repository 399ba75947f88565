"""Shapes of a batch in buckets, so that few programs are compiled."""

from collections.abc import Sequence

from jaxspec.decoding import decode_state, speculation
from jaxspec.decoding.request import Request

SMALLEST_CACHE = 64


FIRST_STAGE = 512  # new tokens that the first cache has room for; it grows as the text does


LARGEST_CHUNK = 512


def shapes(spec: speculation.Speculation, requests: Sequence[Request]) -> tuple[int, int]:
    """Tokens a chunk of prefill and rows of the first cache, in buckets, so that few programs are compiled."""
    longest = max(len(r.tokens) for r in requests)
    chunk = min(LARGEST_CHUNK, power_of_two(longest, 16))
    whole = -(-longest // chunk) * chunk
    budget = max(r.max_new_tokens for r in requests)
    rows = power_of_two(max(whole, longest + min(budget, FIRST_STAGE)) + decode_state.margin(spec), SMALLEST_CACHE)
    return chunk, rows


def power_of_two(number: int, least: int) -> int:
    return max(least, 1 << (number - 1).bit_length())
