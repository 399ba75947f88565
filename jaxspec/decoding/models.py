"""`Models`, the weights of a run, as a pytree that is quick to pass to a compiled function."""

import dataclasses
from collections.abc import Iterable, Sequence
from typing import Any

import jax
from jax.tree_util import GetAttrKey, keystr

from jaxspec.model.llama import Llama


@dataclasses.dataclass(frozen=True, eq=False)
class _Structure:
    """The structure of a `Models`, a single object for equal trees, so that jit compares structures by identity."""

    tree: Any  # a PyTreeDef


_STRUCTURES: dict[Any, _Structure] = {}


@dataclasses.dataclass(frozen=True, eq=False)
class Models:
    """The weights of a run: the target's, the drafter's and the controller's (None: no weights).

    A compiled function flattens its arguments at each call, which is slow for modules. So a `Models` keeps its arrays
    after the first call; its modules must not change afterwards.
    """

    target: Llama
    draft: Any
    control: Any = None
    _arrays: tuple[Sequence[Any], _Structure] | None = dataclasses.field(default=None, init=False, repr=False)


def _flatten(models: Models) -> tuple[Sequence[Any], _Structure]:
    if models._arrays is None:
        arrays, tree = jax.tree.flatten(_parts(models))
        object.__setattr__(models, "_arrays", (arrays, _STRUCTURES.setdefault(tree, _Structure(tree))))
    assert models._arrays is not None
    return models._arrays


def _flatten_with_names(models: Models) -> tuple[Sequence[tuple[Any, Any]], _Structure]:
    leaves, names = jax.tree_util.tree_leaves_with_path(_parts(models)), ("target", "draft", "control")
    named = [(GetAttrKey(f"{names[path[0].idx]}{keystr(path[1:])}"), array) for path, array in leaves]
    return named, _flatten(models)[1]


def _unflatten(structure: _Structure, arrays: Iterable[Any]) -> Models:
    models = object.__new__(Models)  # no checks of types: JAX also puts other objects in the place of arrays
    for name, part in zip(("target", "draft", "control"), structure.tree.unflatten(arrays), strict=True):
        object.__setattr__(models, name, part)
    object.__setattr__(models, "_arrays", None)
    return models


def _parts(models: Models) -> tuple[Any, Any, Any]:
    return models.target, models.draft, models.control


jax.tree_util.register_pytree_with_keys(Models, _flatten_with_names, _unflatten, _flatten)
