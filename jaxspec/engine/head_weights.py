"""Loads the weights of a method's drafter and controller."""

import dataclasses
import functools
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import jax.numpy as jnp
from flax import nnx

from jaxspec.checkpoint import config_json, heads
from jaxspec.checkpoint.config_json import CheckpointConfig, CheckpointError
from jaxspec.checkpoint.heads import HeadConfig, check_same_shape, find_head, read_head
from jaxspec.checkpoint.loading import Checkpoint, check_same_vocabulary
from jaxspec.checkpoint.memory import check_fits
from jaxspec.checkpoint.parameters import load_params
from jaxspec.controllers.cali_ts import FOLDER, draft_width
from jaxspec.decoding.drafter import FLOAT32, Drafter, HeadShape, Models
from jaxspec.drafters import DRAFTERS, DraftModel, draft_vocabulary
from jaxspec.engine.chat_format import spelled
from jaxspec.host.terminal import say
from jaxspec.methods.method import Method, typed
from jaxspec.model.config import LlamaConfig
from jaxspec.model.sharding import place_head


def load_head(model: Checkpoint, method: Method) -> Any:
    """The weights of the method's drafter; None if it has none. Raises CheckpointError."""
    if not method.drafter.has_head:
        return None
    return restore_head(model, method.drafter, _folder(model, method))


def load_control(model: Checkpoint, method: Method, draft: Any) -> Any:
    """The weights of the method's controller; None if it needs none. `draft` has the drafter's weights.

    Raises CheckpointError if there are no weights, or they were trained for another target or drafter.
    """
    controller = method.controller
    if not controller.needs_weights:
        return None
    if not method.drafter.has_head:
        raise CheckpointError(
            f"{controller.name}'s weights are in the drafter's head, but {method.drafter.name} has none; give control="
        )
    head = _folder(model, method)
    path = head / controller.weights_folder
    if not (path / "config.json").exists():
        command = f"; `jaxspec-train calibrator --target {model.path} --head {head.name}` makes one"
        advice = command if controller.weights_folder == FOLDER else ""
        raise CheckpointError(f"{controller.name} needs a trained predictor, and there is none at {path}{advice}")
    config = read_head(path, controller.name)
    check_same_shape(path, config.model, model.config.model)
    width = draft_width(method.drafter, Models(target=model.target, draft=draft))
    widths = {"target_hidden": model.config.model.hidden_size, "draft_hidden": width}
    trained = {name: config.settings.get(name) for name in widths}
    if trained != widths:
        raise CheckpointError(f"the predictor at {path} was trained for {trained}, not for {widths}")
    try:
        weights = nnx.eval_shape(lambda: controller.build_weights(**config.settings))
    except (TypeError, ValueError) as error:
        raise CheckpointError(f"the predictor at {path} {error}") from error
    return _restore(model, path, weights, model.target.dtype)


def _folder(model: Checkpoint, method: Method) -> Path:
    """The folder of the method's head."""
    return find_head(model.path, method.head or method.drafter.name)


def restore_head(model: Checkpoint, drafter: Drafter, path: Path, dtype: jnp.dtype | None = None) -> Any:
    """The head at `path` in `dtype` (None: the target's), on the target's mesh.

    Raises CheckpointError if it is for another drafter or was trained for another target.
    """
    shape = read_shape(path, drafter, model.config.model)
    dtype = model.target.dtype if dtype is None else dtype
    if is_checkpoint(path):
        check_same_vocabulary(model.config, model.tokenizer, path)
        if model.mesh is None:
            check_fits(shape.model, dtype, quantize=shape.settings["quantize"])
    head = abstract_head(path, drafter, shape, dtype)
    return _restore(model, path, head, dtype) if isinstance(head, nnx.Module) else head


def read_shape(path: Path, drafter: Drafter, target: LlamaConfig) -> HeadShape:
    """The shape of the head at `path`. Raises CheckpointError if it is for another drafter or target."""
    if is_checkpoint(path):
        if not isinstance(drafter, DraftModel):
            raise CheckpointError(
                f"{path} is a draft model, which is a whole checkpoint, and not a head for {drafter.name}"
            )
        checkpoint = config_json.read_config(path)
        return HeadShape(checkpoint.model, {"quantize": checkpoint.quantize})
    config = read_head(path, drafter.name)
    trained_for = config.of_target
    if isinstance(drafter, DraftModel):  # its width may differ from the target's
        trained_for = dataclasses.replace(trained_for, hidden_size=target.hidden_size)
    check_same_shape(path, trained_for, target)
    shape = HeadShape(config.model, {**config.settings, **heads.read_calibration(path)})
    try:
        draft_vocabulary.check(shape.settings, target.vocab_size)
        drafter.check_head(shape, target)
    except ValueError as error:
        raise CheckpointError(f"the head at {path} {error}") from error
    except (KeyError, TypeError) as error:
        raise _without_settings(path, drafter, error) from error
    return shape


def abstract_head(path: Path, drafter: Drafter, shape: HeadShape, dtype: jnp.dtype = FLOAT32) -> Any:
    """A head of this shape without values. Raises CheckpointError if its settings are not those of such a head."""
    try:
        return nnx.eval_shape(lambda: drafter.build_head(shape, nnx.Rngs(0), dtype))
    except (KeyError, TypeError) as error:
        raise _without_settings(path, drafter, error) from error
    except ValueError as error:
        raise CheckpointError(f"{path / 'config.json'}: {error}") from error


def _without_settings(path: Path, drafter: Drafter, error: Exception) -> CheckpointError:
    return CheckpointError(f"the head at {path} does not have the settings of a head for {drafter.name}: {error}")


def is_checkpoint(path: Path) -> bool:
    """Whether a head is a whole checkpoint: a draft model."""
    try:
        config_json.read_config(path)
    except CheckpointError:
        return False
    return True


def drafter_of(path: Path, head: str) -> Drafter:
    """The drafter of a head, given by its name in the checkpoint at `path`, or by its own path.

    Raises CheckpointError if there is no such head, or it is not for a drafter.
    """
    folder = find_head(path, head)
    if is_checkpoint(folder):
        return DraftModel()
    name = heads.read_config(folder).drafter
    if name not in DRAFTERS:
        raise CheckpointError(f"the head at {folder} is for {name}, which is not a drafter; name a drafter's head")
    return DRAFTERS[name]()


def heads_of(path: Path, names: Iterable[str] | None = None) -> tuple[dict[str, str], dict[str, str]]:
    """The heads of a checkpoint with usable weights, and those without, by name.

    For a usable head it gives the drafter as a user would type it, for any other the reason. `names` are the heads to
    look at; None: all.
    """
    usable, unusable = dict[str, str](), dict[str, str]()
    for head in config_json.head_names(path) if names is None else names:
        try:
            usable[head] = typed(drafter_of(path, head).name, head)
        except CheckpointError as error:
            unusable[head] = str(error)
    return usable, unusable


def fitted(path: Path, method: Method) -> Method:
    """The method with settings reduced to what its head in the checkpoint at `path` allows. No weights are read.

    Raises CheckpointError if there is no such head, or it is for another drafter or target.
    """
    return method if method.head is None else method.fitted(_head_of(path, method, method.head))


def estimates(path: Path, method: Method) -> bool:
    """Whether the method's head gives `Drafts.log_accept`. Raises CheckpointError as `fitted`."""
    return method.head is not None and method.drafter.estimates(_head_of(path, method, method.head))


def _head_of(path: Path, method: Method, head: str) -> Any:
    target = config_json.read_config(path).model
    folder = find_head(path, head)
    return abstract_head(folder, method.drafter, read_shape(folder, method.drafter, target))


def warn_of_chat_args(model: Checkpoint, method: Method, chat_args: Mapping[str, Any]) -> None:
    """Warns on stderr, once, if the method's head was trained with other arguments of the chat template."""
    if not method.drafter.has_head:
        return
    try:
        head = _folder(model, method)
    except CheckpointError:  # its weights were given
        return
    for path in [head, head / method.controller.weights_folder] if method.controller.needs_weights else [head]:
        if not (path / "config.json").exists():  # a controller's, whose weights were given
            continue
        config = config_json.read_config(path) if is_checkpoint(path) else heads.read_config(path)
        if config.chat_args is not None and (trained := spelled(config.chat_args)) != (now := spelled(chat_args)):
            _say_once(
                f"warning: {path} was trained with the chat arguments {trained} and this run has {now}: "
                "fewer drafts may be accepted"
            )


_say_once = functools.cache(say)


def head_config(
    drafter: Drafter,
    shape: HeadShape,
    target: CheckpointConfig,
    dtype: str | None = None,
    chat_args: dict[str, Any] | None = None,
) -> HeadConfig:
    """The `config.json` of a head of this shape. `dtype` is that of its parameters; None for a head without any."""
    kinds = (target.dtype, target.source_dtype) if dtype is None else (dtype, dtype)
    width = target.model.hidden_size
    return HeadConfig(drafter.name, shape.model, *kinds, dict(shape.settings), chat_args, target_width=width)


def _restore(model: Checkpoint, path: Path, abstract: nnx.Module, dtype: jnp.dtype) -> Any:
    """Restores the parameters at `path` into an abstract module, on the target's mesh."""
    placed = abstract if model.mesh is None else place_head(abstract, model.mesh, dtype)
    return load_params(path / "params", placed, dtype)
