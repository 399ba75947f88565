"""The Optax optimizer that a recipe asks for."""

import jax
import optax

from jaxspec.train.settings.recipe import Recipe


def make_optimizer(recipe: Recipe) -> optax.GradientTransformation:
    """The optimizer, under a warm-up and a cosine, its gradient clipped."""
    rate = optax.warmup_cosine_decay_schedule(
        init_value=0.0,
        peak_value=recipe.learning_rate,
        warmup_steps=min(recipe.warmup, recipe.steps // 10),
        decay_steps=recipe.steps,
        end_value=recipe.learning_rate / 10,
    )
    matrices = lambda params: jax.tree.map(lambda param: param.ndim > 1, params)
    adamw = optax.adamw(rate, b1=recipe.b1, b2=recipe.b2, weight_decay=recipe.weight_decay, mask=matrices)
    clips = {"norm": optax.clip_by_global_norm, "value": optax.clip}
    chosen = adamw if recipe.optimizer == "adamw" else _muon(rate, adamw, recipe)
    return optax.chain(clips[recipe.clip_by](recipe.clip), chosen)


def _muon(rate: optax.Schedule, others: optax.GradientTransformation, recipe: Recipe) -> optax.GradientTransformation:
    """Muon for the matrices of decoder layers; embedding, head and vectors keep to `others`."""
    from optax import contrib

    def label(path: tuple, param: jax.Array) -> str:
        return "layers" if param.ndim == 2 and "layer" in jax.tree_util.keystr(path) else "others"

    muon = contrib.muon(rate, weight_decay=recipe.weight_decay, consistent_rms=0.2)
    labels = lambda params: jax.tree_util.tree_map_with_path(label, params)
    return optax.partition({"layers": muon, "others": others}, labels)
