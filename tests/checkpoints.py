"""A small checkpoint with everything in it: random target and draft model, byte tokenizer, chat template."""

from pathlib import Path

import transformers
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors

from jaxspec.convert import llama
from tests import hf_models

TEMPLATE = "{{ bos_token }}{% for m in messages %}[{{ m.role }}] {{ m.content }}\n{% endfor %}[assistant]"


def byte_tokenizer():
    """Bytes as tokens, after three special ones; writes a BOS before every text, as LLaMA's own does."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {token: i for i, token in enumerate(["<unk>", "<s>", "</s>", *alphabet])}
    tokenizer = Tokenizer(models.BPE(vocabulary, [], unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>", unk_token="<unk>", chat_template=TEMPLATE
    )


def make(folder: Path, layers: int = 3) -> Path:
    """Converts a random LLaMA over bytes, and a draft model beside it, from Hugging Face; returns the checkpoint."""
    hf_models.make("llama", folder / "target", vocab_size=259, num_hidden_layers=layers)
    seed = int(layers == 1)  # with the target's seed and depth it would be the target
    hf_models.make("llama", folder / "draft", vocab_size=259, num_hidden_layers=1, seed=seed)
    for name in ("target", "draft"):
        byte_tokenizer().save_pretrained(folder / name)
    llama.convert(folder / "target", folder / "ckpt")
    llama.convert(folder / "draft", folder / "ckpt" / "heads" / "draft-model")
    return folder / "ckpt"
