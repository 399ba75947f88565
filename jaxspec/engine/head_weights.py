"""The weights that a method brings besides the target's: its drafter's, and its controller's."""

from typing import Any

from jaxspec.checkpoint.heads import find_head
from jaxspec.checkpoint.loading import Checkpoint
from jaxspec.controllers.acceptance_predictor import draft_width
from jaxspec.decoding.drafter import Models
from jaxspec.methods.method import Method, needs_head, needs_weights


def load_head(model: Checkpoint, method: Method) -> Any:
    """The weights that the method's drafter brings, None where it has none."""
    if not needs_head(method.drafter):
        return None
    assert method.head is not None
    kind: Any = method.drafter
    return kind.load_head(model, find_head(model.path, method.head), model.target.norm[...].dtype)


def load_control(model: Checkpoint, method: Method, draft: Any) -> Any:
    """The weights that the method's controller brings, None where it has none; `draft` are the drafter's."""
    if not needs_weights(method.controller):
        return None
    assert method.head is not None
    kind: Any = method.controller
    width = draft_width(method.drafter, Models(target=model.target, draft=draft))
    return kind.load_weights(model, find_head(model.path, method.head), width, model.target.norm[...].dtype)
