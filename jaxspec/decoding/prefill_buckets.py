"""Bucketed shapes, so that few programs are compiled: the chunk length of prefill and the rows of the cache."""

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
    return chunk, power_of_two(rows_needed(spec, requests, chunk), SMALLEST_CACHE)


def rows_needed(spec: Speculation, requests: Sequence[Request], chunk: int) -> int:
    """Rows of a first cache that has room for each of the requests."""
    longest = max(len(r.tokens) for r in requests)
    ends = (len(r.tokens) + min(r.sampling.max_new_tokens, FIRST_STAGE) for r in requests)
    return max(whole_chunks(longest, chunk), *ends) + margin(spec)


def rows_refilled(spec: Speculation, first: Sequence[Request], later: Sequence[Request]) -> int:
    """Rows of the first cache where later requests take the rows of the first ones.

    One program decodes them all, so it pays to fit it closer than to a power of two: to an eighth of one. Attention on
    a CPU reads every row.
    """
    everybody = [*first, *later]
    chunks, _ = shapes_ahead(spec, everybody)
    read, refilled = rows_needed(spec, first, shapes(spec, first)[0]), rows_needed(spec, everybody, chunks[0])
    return eighths(max(read, refilled))


def shapes_ahead(spec: Speculation, requests: Sequence[Request]) -> tuple[tuple[int, ...], int]:
    """Tokens of a chunk, and rows, for prompts that are read one by one while others are decoded, who wait for a chunk
    at a time. What is left of a prompt at last is read in chunks of the second size, if there is one."""
    longest = max(len(r.tokens) for r in requests)
    sizes = CPU_CHUNKS if platform() == "cpu" else ACCELERATOR_CHUNKS[:2]
    chunk = chunk_for(longest, sizes)
    chunks = (chunk,) if chunk == sizes[0] or platform() != "cpu" else (chunk, sizes[0])
    return chunks, eighths(whole_chunks(longest, chunk) + margin(spec))


def whole_chunks(tokens: int, chunk: int) -> int:
    """So many tokens, rounded up to whole chunks."""
    return -(-tokens // chunk) * chunk


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


def eighths(number: int) -> int:
    """A number of rows rounded up to eighths of a power of two."""
    step = max(SMALLEST_CACHE, power_of_two(number) // 8)
    return -(-number // step) * step


def power_of_two(number: int, least: int = 1) -> int:
    """The smallest power of two that is no less than either."""
    return max(least, 1 << (number - 1).bit_length())
