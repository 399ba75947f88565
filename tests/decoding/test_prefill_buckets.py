"""Chunks of prefill by the length of the longest prompt."""

from hypothesis import given
from hypothesis import strategies as st

from jaxspec.decoding.decode_state import margin
from jaxspec.decoding.prefill_buckets import (
    SMALLEST_CACHE,
    accelerator_chunk,
    cache_len_for_all,
    cache_len_needed,
    shapes,
    shapes_ahead,
    whole_chunks,
)
from jaxspec.decoding.request import Request, SamplingParams
from jaxspec.methods.method import parse_method

PLAIN = parse_method("plain").speculation(greedy=True)
CHAIN = parse_method("ngram+chain,length=4").speculation(greedy=True)


def test_long_prompts_of_few_sequences_are_read_in_larger_chunks():
    assert [accelerator_chunk(longest, 1) for longest in (1, 33, 512, 4095, 4096, 100_000)] == [
        32, 128, 512, 512, 1024, 1024
    ]  # fmt: skip
    assert [accelerator_chunk(8192, batch) for batch in (4, 5, 64)] == [1024, 512, 512]


def test_a_prompt_that_fills_its_chunks_takes_no_further_one():
    sized = lambda tokens: [Request([0] * tokens, SamplingParams(max_new_tokens=20))]
    edges = (32, 33, 64, 65, 128, 129, 256)
    assert [whole_chunks(tokens, 32) for tokens in edges] == [32, 64, 64, 96, 128, 160, 256]
    assert [shapes(PLAIN, sized(tokens))[0] for tokens in edges] == [32, *[128] * 6]
    ahead = [shapes_ahead(PLAIN, sized(tokens), 1) for tokens in edges]
    assert [chunks for chunks, _ in ahead] == [(32,), (64, 32), (64, 32), *[(128, 32)] * 4]
    assert [rows for _, rows in ahead] == [64, 128, 128, 192, 192, 320, 320]


def test_the_longest_prompt_and_the_largest_budget_are_not_added_where_no_text_has_both():
    """Attention reads every row of a cache on a CPU."""
    long, chatty = (Request([0] * tokens, SamplingParams(max_new_tokens=new)) for tokens, new in ((352, 20), (90, 180)))
    assert cache_len_needed(PLAIN, [long, chatty], 128) == 384 + margin(PLAIN)
    assert cache_len_needed(PLAIN, [long, chatty], 32) == 372 + margin(PLAIN)
    assert cache_len_for_all(PLAIN, [long], [chatty]) == 448


def test_a_chunk_that_others_wait_for_is_shorter_where_their_rounds_are():
    requests = [Request([0] * 500, SamplingParams(max_new_tokens=20))]
    sizes = [shapes_ahead(spec, requests, rows)[0] for spec, rows in ((PLAIN, 1), (PLAIN, 8), (PLAIN, 24), (CHAIN, 8))]
    assert sizes == [(128, 32), (64, 32), (128, 32), (128, 32)]  # where one row decodes, no other waits


@given(st.lists(st.tuples(st.integers(1, 900), st.integers(1, 700)), min_size=2, max_size=6), st.integers(1, 5))
def test_a_prompt_that_is_read_ahead_fits_the_batch_that_it_comes_to(sizes: list[tuple[int, int]], batch: int):
    requests = [Request([0] * tokens, SamplingParams(max_new_tokens=new)) for tokens, new in sizes]
    first, later = requests[:batch], requests[batch:]
    chunks, ahead = shapes_ahead(PLAIN, requests, len(first))
    rows = cache_len_for_all(PLAIN, first, later)
    assert rows >= ahead >= max(whole_chunks(tokens, chunks[0]) for tokens, _ in sizes) + margin(PLAIN)
    largest = max(chunks[0], shapes(PLAIN, first)[0])  # the first are read before anybody waits
    assert rows <= max(1.25 * cache_len_needed(PLAIN, requests, largest), SMALLEST_CACHE) + SMALLEST_CACHE
    assert rows % SMALLEST_CACHE == 0
