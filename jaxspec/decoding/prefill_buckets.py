"""Shapes of a batch in buckets, so that few programs are compiled: the chunk of prefill, and the rows of the cache."""

from collections.abc import Sequence

from jaxspec.decoding.decode_state import margin
from jaxspec.decoding.request import Request
from jaxspec.decoding.speculation import Speculation
from jaxspec.model.mesh import platform

SMALLEST_CACHE = 64
FIRST_STAGE = 512  # new tokens that the first cache has room for; it grows as the text does
CPU_CHUNKS = (32, 128)  # whose products are no faster for more rows, and every row of a chunk that is not full costs
ACCELERATOR_CHUNKS = (32, 128, 512)
TOGETHER = 4096  # tokens that an accelerator reads at once, of all sequences


def shapes(spec: Speculation, requests: Sequence[Request]) -> tuple[int, int]:
    """Tokens a chunk of prefill, and rows of the first cache."""
    longest = max(len(r.tokens) for r in requests)
    chunk = chunk_for(longest, CPU_CHUNKS) if platform() == "cpu" else accelerator_chunk(longest, len(requests))
    whole = -(-longest // chunk) * chunk
    budget = max(r.sampling.max_new_tokens for r in requests)
    return chunk, power_of_two(max(whole, longest + min(budget, FIRST_STAGE)) + margin(spec), SMALLEST_CACHE)


def shapes_ahead(spec: Speculation, requests: Sequence[Request]) -> tuple[int, int]:
    """The same for prompts that are read one by one while others are decoded: the others wait for a chunk at a time."""
    longest = max(len(r.tokens) for r in requests)
    chunk = chunk_for(longest, CPU_CHUNKS if platform() == "cpu" else ACCELERATOR_CHUNKS[:2])
    return chunk, power_of_two(-(-longest // chunk) * chunk + margin(spec), SMALLEST_CACHE)


def chunk_for(longest: int, chunks: Sequence[int]) -> int:
    """The smallest of these chunks that holds the longest prompt, or else the largest."""
    return next((size for size in chunks if size >= longest), chunks[-1])


def accelerator_chunk(longest: int, batch: int) -> int:
    """Twice the largest where few sequences are long: weights are read half as often, for padding of an eighth at most.

    By a TPU's compiler a chunk of 1,024 reads one prompt of 8k tokens at 45 % of peak, and one of 512 at 40 %; for
    eight prompts it is the other way round, since what norms read and write no longer fits into fast memory.
    """
    twice = 2 * ACCELERATOR_CHUNKS[-1]
    if longest >= 4 * twice and batch * twice <= TOGETHER:
        return twice
    return chunk_for(longest, ACCELERATOR_CHUNKS)


def power_of_two(number: int, least: int = 1) -> int:
    """The smallest power of two that is no less than either."""
    return max(least, 1 << (number - 1).bit_length())
