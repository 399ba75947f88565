"""Bucketed shapes, so that few programs are compiled: the chunk length of prefill and the length of the cache."""

from collections.abc import Sequence

from jaxspec.decoding.decode_state import margin
from jaxspec.decoding.request import Request
from jaxspec.decoding.speculation import Speculation
from jaxspec.model import backend

SMALLEST_CACHE = 64
FIRST_STAGE = 512  # new tokens that fit in the first cache; the cache grows with the text
CPU_CHUNKS_AHEAD = (32, 64, 128)
TOGETHER = 4096  # most tokens of all sequences in one chunk on an accelerator


def shapes(
    spec: Speculation, requests: Sequence[Request], later: Sequence[Request] = (), least: int = 0
) -> tuple[int, int]:
    """Tokens per chunk of prefill, and length of the first cache, at least `least`; `later` requests refill rows."""
    longest = max(len(r.tokens) for r in requests)
    on_cpu = backend.time_grows_with_tokens()
    chunk = chunk_for(longest, backend.CPU_CHUNKS) if on_cpu else accelerator_chunk(longest, len(requests))
    if later:
        return chunk, max(least, cache_len_for_all(spec, requests, later))
    return chunk, power_of_two(cache_len_needed(spec, requests, chunk), max(least, SMALLEST_CACHE))


def cache_len_needed(spec: Speculation, requests: Sequence[Request], chunk: int) -> int:
    """Length that the first cache needs for these requests."""
    longest = max(len(r.tokens) for r in requests)
    ends = (len(r.tokens) + min(r.sampling.max_new_tokens, FIRST_STAGE) for r in requests)
    return max(whole_chunks(longest, chunk), *ends) + margin(spec)


def cache_len_for_all(spec: Speculation, first: Sequence[Request], later: Sequence[Request]) -> int:
    """Length of the first cache if later requests refill the rows of the first ones.

    It is rounded up to eighths of a power of two, not to a power of two: one program decodes all requests, and
    attention on a CPU reads every position.
    """
    both = [*first, *later]
    chunks, _ = shapes_ahead(spec, both, len(first))
    at_start, refilled = cache_len_needed(spec, first, shapes(spec, first)[0]), cache_len_needed(spec, both, chunks[0])
    return eighths(max(at_start, refilled))


def shapes_ahead(spec: Speculation, requests: Sequence[Request], batch: int) -> tuple[tuple[int, ...], int]:
    """Chunk sizes, and length of the cache, for prompts that are prefilled one by one between rounds of `batch` rows.

    The other rows wait for one chunk at a time. If half a chunk or less is left of a prompt, it is read in chunks of
    the second size, if there is one.

    A chunk takes no longer than about two rounds. On an accelerator, a chunk and a round each read the weights once. On
    a CPU the time depends on the number of tokens. There a chunk has at most 4 tokens for each node that a round
    verifies, plus 32. With one row no other row waits, and the chunk may have any size.
    """
    longest = max(len(r.tokens) for r in requests)
    if backend.time_grows_with_tokens():
        short = CPU_CHUNKS_AHEAD[0] + 4 * batch * spec.builder.verified
        sizes = tuple(size for size in CPU_CHUNKS_AHEAD if size <= short or batch == 1)
        chunks = tuple(dict.fromkeys((chunk_for(longest, sizes), sizes[0])))
    else:
        chunks = (chunk_for(longest, backend.ACCELERATOR_CHUNKS[:2]),)
    return chunks, eighths(whole_chunks(longest, chunks[0]) + margin(spec))


def whole_chunks(tokens: int, chunk: int) -> int:
    """The number of tokens, rounded up to whole chunks."""
    return -(-tokens // chunk) * chunk


def chunk_for(longest: int, chunks: Sequence[int]) -> int:
    """The smallest of these chunks that holds the longest prompt, or else the largest."""
    return next((size for size in chunks if size >= longest), chunks[-1])


def accelerator_chunk(longest: int, batch: int) -> int:
    """Tokens per chunk on an accelerator: twice the largest size if the batch is small and a prompt is long.

    Then weights are read half as often, and padding is at most a fifth. In a large batch such a chunk is slower, as XLA
    estimates for TPUs, because the norms' inputs and outputs no longer fit into fast memory.
    """
    twice = 2 * backend.ACCELERATOR_CHUNKS[-1]
    if longest >= 4 * twice and batch * twice <= TOGETHER:
        return twice
    return chunk_for(longest, backend.ACCELERATOR_CHUNKS)


def eighths(number: int) -> int:
    """A length rounded up to eighths of a power of two."""
    step = max(SMALLEST_CACHE, power_of_two(number) // 8)
    return -(-number // step) * step


def power_of_two(number: int, least: int = 1) -> int:
    """The smallest power of two that is at least `number`; at least `least`."""
    return max(least, 1 << (number - 1).bit_length())
