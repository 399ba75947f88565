"""Chunks of prefill by the length of the longest prompt."""

from jaxspec.decoding.prefill_buckets import accelerator_chunk


def test_long_prompts_of_few_sequences_are_read_in_larger_chunks():
    assert [accelerator_chunk(longest, 1) for longest in (1, 33, 512, 4095, 4096, 100_000)] == [
        32, 128, 512, 512, 1024, 1024
    ]  # fmt: skip
    assert [accelerator_chunk(8192, batch) for batch in (4, 5, 64)] == [1024, 512, 512]
