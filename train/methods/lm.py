"""Trains a small LLaMA from scratch: tokenizer, windows, cross-entropy of the next token, checkpoint."""

import math
from functools import partial
from pathlib import Path

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Bool, Key

from jaxspec.checkpoint import checksums, config_json, memory, parameters
from jaxspec.checkpoint.config_json import CheckpointConfig
from jaxspec.checkpoint.loading import training_dtype
from jaxspec.checkpoint.tokenizer import GENERIC, load_tokenizer
from jaxspec.convert.tokenizer import copy as copy_tokenizer
from jaxspec.host import compilation
from jaxspec.host.atomic import is_whole, staged
from jaxspec.host.interrupts import deferred
from jaxspec.host.terminal import say
from jaxspec.model.config import LlamaConfig
from jaxspec.model.llama import Llama
from jaxspec.train.data import dataset, records, tokenizer
from jaxspec.train.data.records import Conversation
from jaxspec.train.data.text import Document, Windows
from jaxspec.train.hyperparameters import Recipe
from jaxspec.train.options import Lm
from jaxspec.train.run.folder import as_typed, open_run, run_folder
from jaxspec.train.run.log import draw_figure
from jaxspec.train.run.packed import Summed, cross_entropy, hidden_states
from jaxspec.train.run.trainer import fit, measurement


def shape(
    vocab_size: int, layers: int, hidden_size: int, head_dim: int, context: int, tied: bool = False
) -> LlamaConfig:
    """A LLaMA with the family's proportions: an MLP 8/3 times as wide, rounded up to a multiple of 32."""
    if context < 2:
        raise ValueError(f"--context must be at least 2, one token to read and one to predict, not {context}")
    if head_dim < 1 or hidden_size < 1 or hidden_size % head_dim:
        raise ValueError(f"--hidden-size {hidden_size} is not a multiple of {head_dim}, the width of an attention head")
    return LlamaConfig(
        vocab_size=vocab_size,
        hidden_size=hidden_size,
        intermediate_size=math.ceil(hidden_size * 8 / 3 / 32) * 32,
        num_layers=layers,
        num_heads=hidden_size // head_dim,
        num_kv_heads=hidden_size // head_dim,
        head_dim=head_dim,
        max_length=context,
        tie_embeddings=tied,
    )


def train(settings: Lm) -> None:
    """Trains a model on text and writes it atomically as a checkpoint. Raises as `heads.train_head`."""
    compilation.keep_compilations()
    if settings.data.format:
        raise ValueError("a new model has no chat template, so --chat-arg and --system have no effect; leave them out")
    out, recipe, dtype = settings.out, settings.recipe, settings.save_dtype
    model = shape(
        settings.vocab_size, settings.layers, settings.hidden_size, settings.head_dim, settings.context, settings.tied
    )
    texts = records.read(settings.data.data, settings.data.strict)
    typed = as_typed("lm", settings, training_dtype(recipe.dtype).name)
    with (
        open_run(run_folder(out, settings.run_dir), typed) as run,
        staged(out, memory.required_bytes(model, dtype)) as folder,
    ):
        if is_whole(run.data):
            dataset.warn_of_changes(run.data, dataset.Sources(texts))
        else:
            learn(run.data, texts, model, recipe)
        packed, held_out = dataset.load(run.data)
        measure = None if held_out is None else measurement(loss, held_out, recipe, frozen=None)
        initial = Llama(model, rngs=nnx.Rngs(recipe.seed))
        with_dropout = partial(loss, layer_dropout=settings.layer_dropout)
        trained, measured = fit(with_dropout, initial, None, packed, recipe, run, measure=measure)
        draw_figure(run.metrics, run.figure)

        bos, eos = tokenizer.BOS_ID, (tokenizer.EOS_ID,)
        config = CheckpointConfig("llama", model, dtype, dtype, "jaxspec", bos, eos, tokenizer_class=GENERIC)
        with deferred():
            write_checkpoint(config, run.data / "tokenizer", folder, trained)
    result = "no file was held out" if measured is None else f"held-out loss {measured['loss']:.3f}"
    say(f"wrote {out}: llama, {memory.parameter_count(model):,} parameters, {dtype}, {result}")


def write_checkpoint(config: CheckpointConfig, tokenizer_from: Path, folder: Path, trained: Llama) -> None:
    """Writes a model as a checkpoint in `config.dtype`, with a copy of the tokenizer in `tokenizer_from`."""
    copy_tokenizer(tokenizer_from, folder)
    params = parameters.module_to_dict(trained).items()
    parameters.write_params(folder / "params", ((name, param.astype(config.dtype)) for name, param in params))
    checksums.write(folder)
    config_json.write_config(folder, config)


def learn(place: Path, texts: records.Texts, model: LlamaConfig, recipe: Recipe) -> None:
    """Learns the tokenizer and packs the text into `place`, from which a resumed run reads them."""
    if any(isinstance(text, Conversation) for text in texts):
        raise ValueError("the data holds conversations, but the new tokenizer has no chat template; give plain text")
    kept, _ = records.split(texts)
    say(f"learning a vocabulary of {model.vocab_size} tokens from {len(kept)} files")
    with staged(place, 0) as folder:
        (folder / "tokenizer").mkdir()
        learnt = tokenizer.learn([text.text for text in kept if isinstance(text, Document)], model.vocab_size)
        tokenizer.save(learnt, folder / "tokenizer", model.max_length)
        loaded = load_tokenizer(folder / "tokenizer")
        dataset.prepare(folder, loaded, dataset.Sources(texts), model.max_length, recipe, model.vocab_size)


def loss(model: Llama, frozen: None, batch: Windows, key: Key[Array, ""] | None, layer_dropout: float = 0.0) -> Summed:
    """Cross-entropy of the next token, over the tokens that count."""
    keep = None if key is None or layer_dropout == 0 else kept_layers(key, model.config.num_layers, layer_dropout)
    tokens, segment = jnp.asarray(batch.tokens), jnp.asarray(batch.segment)
    return cross_entropy(model.logits(hidden_states(model, tokens, segment, keep)), batch)


def kept_layers(key: Key[Array, ""], layers: int, dropout: float) -> Bool[Array, " L"]:
    """The layers to run: layer l is left out with probability `dropout` · (2^(l/(L-1)) - 1).

    As in LayerSkip (arXiv:2404.16710, Eq. 2), but with one draw per batch, not per row, so skipped layers take no time.
    """
    depth = jnp.arange(layers) / max(layers - 1, 1)
    return jax.random.uniform(key, (layers,), jnp.float32) >= dropout * (2.0**depth - 1)
