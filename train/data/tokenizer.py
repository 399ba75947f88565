"""Trains a byte-level BPE tokenizer."""

import json
import math
from collections.abc import Sequence
from pathlib import Path

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers

from jaxspec.checkpoint.tokenizer import GENERIC

BOS, EOS = "<s>", "</s>"
BOS_ID, EOS_ID = 0, 1
SMALLEST = 256 + len((BOS, EOS))
_CHARACTERS_A_TOKEN = 2000  # characters of text for each token of the vocabulary; more text changes little


def learn(texts: Sequence[str], vocab_size: int) -> Tokenizer:
    """Learns a vocabulary of exactly `vocab_size` tokens, from a sample of the texts if they are long.

    It puts BOS before every text, as LLaMA's does. Raises ValueError for too small a vocabulary, or too little text.
    """
    if vocab_size < SMALLEST:
        raise ValueError(
            f"--vocab-size must be at least {SMALLEST}, all bytes and two special tokens, not {vocab_size}"
        )
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        min_frequency=2,
        special_tokens=[BOS, EOS],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    stride = math.ceil(sum(map(len, texts)) / (_CHARACTERS_A_TOKEN * vocab_size)) or 1
    tokenizer.train_from_iterator(texts[::stride], trainer)
    if (size := tokenizer.get_vocab_size()) < vocab_size:
        raise ValueError(
            f"there is too little text: it gives {size} tokens, not {vocab_size}; add text or lower --vocab-size"
        )
    tokenizer.post_processor = processors.TemplateProcessing(single=f"{BOS} $A", special_tokens=[(BOS, BOS_ID)])
    return tokenizer


def save(tokenizer: Tokenizer, folder: Path, max_length: int) -> None:
    """Writes tokenizer.json and tokenizer_config.json, which versions 4 and 5 of transformers read."""
    (folder / "tokenizer.json").write_text(tokenizer.to_str(pretty=True), encoding="utf-8")
    values = {
        "bos_token": BOS,
        "clean_up_tokenization_spaces": False,
        "eos_token": EOS,
        "model_max_length": max_length,
        "tokenizer_class": GENERIC,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(values, indent=2) + "\n", encoding="utf-8")
