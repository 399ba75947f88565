"""What users type for a method, `DRAFTER[@HEAD][+BUILDER][+CONTROLLER]`, and what it stands for."""

import dataclasses
import types
import typing
from collections.abc import Collection
from pathlib import Path
from typing import Any

from jaxspec.builders.budgeted import Budgeted
from jaxspec.builders.cape import Cape
from jaxspec.builders.chain import Chain
from jaxspec.builders.eagle2 import Eagle2
from jaxspec.builders.pruned import Pruned
from jaxspec.builders.static import Static
from jaxspec.builders.uniform import Uniform
from jaxspec.checkpoint import config_json
from jaxspec.checkpoint.config_json import CheckpointError
from jaxspec.checkpoint.heads import find_head, read_config
from jaxspec.controllers.adaptive import Adaptive
from jaxspec.controllers.beta_ts import BetaTS
from jaxspec.controllers.cali_ts import CaliTS
from jaxspec.controllers.fixed import Fixed
from jaxspec.controllers.threshold import Threshold
from jaxspec.decoding.builder import TreeBuilder
from jaxspec.decoding.controller import Controller
from jaxspec.decoding.cost_table import CostTable
from jaxspec.decoding.drafter import Drafter
from jaxspec.decoding.rule import Rule
from jaxspec.decoding.speculation import Speculation
from jaxspec.drafters.draft_model import DraftModel
from jaxspec.drafters.eagle import Eagle
from jaxspec.drafters.early_exit import EarlyExit
from jaxspec.drafters.edd import Edd
from jaxspec.drafters.layer_skip import LayerSkip
from jaxspec.drafters.medusa import Medusa
from jaxspec.drafters.ngram import Ngram
from jaxspec.drafters.plain import Plain
from jaxspec.rules.candidates import Candidates
from jaxspec.rules.greedy import Greedy
from jaxspec.rules.rejection_sampling import RejectionSampling

DRAFTERS: dict[str, type] = {
    "plain": Plain,
    "draft-model": DraftModel,
    "ngram": Ngram,
    "eagle": Eagle,
    "early-exit": EarlyExit,
    "edd": Edd,
    "medusa": Medusa,
    "layer-skip": LayerSkip,
}
BUILDERS: dict[str, type] = {
    "chain": Chain,
    "static": Static,
    "uniform": Uniform,
    "cape": Cape,
    "eagle2": Eagle2,
    "pruned": Pruned,
    "budgeted": Budgeted,
}
CONTROLLERS: dict[str, type] = {
    "fixed": Fixed,
    "threshold": Threshold,
    "adaptive": Adaptive,
    "beta-ts": BetaTS,
    "cali-ts": CaliTS,
}
LONGEST = 12  # tokens of a chain, unless told, where a controller decides when to stop (Draft & Verify's K)
PREFERRED = ("eagle", "edd", "early-exit", "medusa", "draft-model", "layer-skip")
"""Drafters with a trained head, the best first: what runs where no method is named and the head is there."""


@dataclasses.dataclass(frozen=True)
class Method:
    """A method, resolved: the strategies with all their settings.

    Attributes:
        head: folder under CKPT/heads, or a path; None where the drafter has no weights.
        verification: in place of the rule that fits the builder; only simulation has one (`evaluate/simulate.py`).
    """

    drafter: Drafter
    builder: TreeBuilder
    controller: Controller
    head: str | None = None
    verification: Rule | None = None

    def __str__(self) -> str:
        """The method with every setting, in the form that `parse_method` reads."""
        if isinstance(self.drafter, Plain):
            return "plain"
        drafter = name_of(self.drafter)
        head = "" if self.head in (None, drafter) else f"@{self.head}"
        settings = [_settings(part) for part in (self.drafter, self.builder, self.controller)]
        names = [drafter + head, name_of(self.builder), name_of(self.controller)]
        return "+".join(name + values for name, values in zip(names, settings, strict=True))

    def with_costs(self, table: CostTable) -> "Method":
        """The same with every cost that the builder lacks taken from a measured table."""
        builder: Any = self.builder
        return dataclasses.replace(self, builder=builder.with_costs(table))

    def rule(self, greedy: bool) -> Rule:
        """The lossless verification for this builder: greedy at temperature 0, else what its children demand."""
        if self.verification is not None:
            return self.verification
        if greedy:
            return Greedy()
        return Candidates() if self.builder.prunes or self.builder.depth == 0 else RejectionSampling()

    def speculation(self, greedy: bool, **options: Any) -> Speculation:
        """What the loop is compiled for. `options` are the remaining fields of `Speculation`."""
        return Speculation(
            drafter=self.drafter,
            builder=getattr(self.builder, "at_temperature_0", self.builder) if greedy else self.builder,
            controller=self.controller,
            rule=self.rule(greedy),
            **options,
        )


def parse_method(text: str) -> Method:
    """Reads a method such as `draft-model@small+chain,length=5+fixed`.

    Raises:
        ValueError: an unknown name or setting, or parts that do not go together; the sound ones are listed.
    """
    first, *others = text.strip().split("+")
    name, *settings = first.split(",")
    name, _, head = name.partition("@")
    if name not in DRAFTERS:
        raise ValueError(f"method {text!r}: no drafter is called {name!r}; there are {', '.join(DRAFTERS)}")
    drafter = _build(DRAFTERS[name], name, settings, text)
    if head and not needs_head(drafter):
        raise ValueError(f"method {text!r}: {name} has no weights, so @{head} means nothing; leave it out")
    if name == "plain":
        if others:
            raise ValueError(f"method {text!r}: plain drafts nothing, so it takes no builder or controller")
        return Method(drafter=drafter, builder=Chain(length=0), controller=Fixed())
    parts: dict[str, Any] = {}
    for part in others:
        name_of_part, *settings = part.split(",")
        kind, table = ("builder", BUILDERS) if name_of_part in BUILDERS else ("controller", CONTROLLERS)
        if name_of_part not in table:
            offers = f"builders are {', '.join(BUILDERS)}; controllers are {', '.join(CONTROLLERS)}"
            raise ValueError(f"method {text!r}: no builder or controller is called {name_of_part!r}; {offers}")
        if kind in parts or (kind == "builder" and "controller" in parts):
            raise ValueError(f"method {text!r}: the form is DRAFTER[@HEAD][+BUILDER][+CONTROLLER], each once, in order")
        bare = name_of_part == "chain" and not settings  # its length is the controller's to decide, or the default
        parts[kind] = None if bare else _build(table[name_of_part], name_of_part, settings, text)
    controller = parts.get("controller") or Fixed()
    if needs_weights(controller) and not needs_head(drafter):
        raise ValueError(
            f"method {text!r}: {name_of(controller)} predicts from the drafter's hidden states, and {name} "
            "has none; take beta-ts, or cali-ts,prediction=sampled"
        )
    return Method(
        drafter=drafter,
        builder=parts.get("builder") or Chain(length=LONGEST if controller.stops else Chain.length),
        controller=controller,
        head=(head or name) if needs_head(drafter) else None,
    )


def drafter_of(path: Path, head: str) -> Drafter:
    """The drafter whose weights a head of the checkpoint at `path` holds, `head` being a name or a path.

    Raises:
        CheckpointError: there is none, or it is no drafter's.
    """
    folder = find_head(path, head)
    try:
        config_json.read_config(folder)
        return DraftModel()  # a checkpoint of its own
    except CheckpointError:
        name = read_config(folder).drafter
    if name not in DRAFTERS:
        raise CheckpointError(f"what is at {folder} is for {name}, which is no drafter; name a drafter's head")
    return DRAFTERS[name]()


def needs_head(drafter: Drafter) -> bool:
    """Whether the drafter brings weights of its own."""
    return hasattr(drafter, "load_head")


def needs_weights(controller: Controller) -> bool:
    """Whether the controller brings weights of its own, which lie in the drafter's head."""
    return getattr(controller, "needs_weights", False)


def needs_costs(builder: TreeBuilder) -> bool:
    """Whether the builder decides by costs that are still to be measured (see `costs.CostTable`)."""
    return getattr(builder, "needs_costs", False)


def runnable(heads: Collection[str]) -> list[tuple[str, bool]]:
    """Every drafter's name, and whether a checkpoint with these heads can run it without naming a path."""
    return [(name, not hasattr(kind, "load_head") or name in heads) for name, kind in DRAFTERS.items()]


def default_method(heads: Collection[str]) -> Method:
    """The best trained head that is there; prompt lookup, which needs none, otherwise."""
    return parse_method(next((name for name in PREFERRED if name in heads), "ngram"))


def name_of(part: Drafter | TreeBuilder | Controller) -> str:
    """What users type for a strategy."""
    kinds = {**DRAFTERS, **BUILDERS, **CONTROLLERS}
    return next(name for name, kind in kinds.items() if kind is type(part))


def describe_settings(kind: type) -> str:
    """`length=4` and the like: the settings of a strategy with their defaults."""
    shown = _settings(kind())[1:].split(",")
    return ", ".join(text if len(text) < 30 else text[:27] + "..." for text in shown)


def _build(kind: type, name: str, settings: list[str], text: str) -> Any:
    fields = {field.name: field for field in dataclasses.fields(kind)}
    values = {}
    for setting in settings:
        key, equals, value = setting.partition("=")
        if key not in fields or not equals:
            offers = ", ".join(fields) or "none"
            raise ValueError(
                f"method {text!r}: {name} has no setting {setting!r}; write KEY=VALUE with one of: {offers}"
            )
        values[key] = read_value(fields[key], value, f"method {text!r}: {name},{setting}")
    return kind(**values)


def read_value(field: dataclasses.Field, text: str, where: str) -> Any:
    """The value of a strategy's setting, from its text; a ValueError says `where` it stood."""
    if parse := field.metadata.get("parse"):
        return parse(text)
    kind = typing.get_origin(field.type) or field.type
    if kind is bool:
        if text not in ("true", "false"):
            raise ValueError(f"{where}: write true or false")
        return text == "true"
    if isinstance(kind, types.UnionType) or kind not in (int, float, str):
        raise TypeError(f"setting {field.name} of type {field.type} needs a parser")
    try:
        return kind(text)
    except ValueError:
        raise ValueError(f"{where}: {field.name} is a{'n int' if kind is int else ' number'}, not {text!r}") from None


def _settings(part: Any) -> str:
    def show(field: dataclasses.Field) -> str:
        value = getattr(part, field.name)
        text = field.metadata["show"](value) if "show" in field.metadata else str(value)
        return f",{field.name}={text.lower() if isinstance(value, bool) else text}"

    return "".join(map(show, dataclasses.fields(part)))
