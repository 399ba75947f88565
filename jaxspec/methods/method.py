"""Method names, `DRAFTER[@HEAD][+BUILDER][+CONTROLLER]`, and what they mean."""

import dataclasses
from collections.abc import Iterable, Sequence
from typing import Any, TypeVar

from jaxspec.builders import BUILDERS, Chain
from jaxspec.controllers import CONTROLLERS, Fixed
from jaxspec.controllers.plain_rounds import PlainRounds
from jaxspec.decoding.builder import TreeBuilder
from jaxspec.decoding.controller import Controller
from jaxspec.decoding.drafter import Drafter
from jaxspec.decoding.rule import Rule
from jaxspec.decoding.speculation import Speculation
from jaxspec.decoding.strategy import MOST, CostAware, CostTable, Strategy
from jaxspec.drafters import DRAFTERS
from jaxspec.drafters.history import LONGEST as LONGEST_MATCH
from jaxspec.drafters.history import WithHistory
from jaxspec.host.arguments import integer
from jaxspec.methods.settings import build_part, check_settings, read_value, settings_of, show_settings
from jaxspec.rules import Greedy, GumbelCoupling, RejectionSampling

S = TypeVar("S", bound=Strategy)
ROLES = ("drafter", "builder", "controller")
HEAD, HISTORY = "head", "history"
LONGEST = 12  # tokens of a chain without a given length, if the controller stops drafting (Draft & Verify's K)


@dataclasses.dataclass(frozen=True)
class Method:
    """A method, resolved: the strategies with all their settings.

    Attributes:
        builder: the default is a chain of 4; `parse_method` chooses another for some drafters and controllers.
        head: folder under CKPT/heads, or a path; None: the one of the drafter's name, where it has a head.
        history: if the last `history` tokens of a row, or more, occurred before, the row drafts what followed them
            instead of the head's tokens. 0: off. Only for drafters with a head.
    """

    drafter: Drafter
    builder: TreeBuilder = Chain()
    controller: Controller = Fixed()
    head: str | None = None
    history: int = 0

    def __post_init__(self) -> None:
        integer(f"{self.drafter.name}: {HISTORY}", self.history, 0, LONGEST_MATCH)
        if self.history and not self.drafter.has_head:
            raise ValueError(f"{self.drafter.name} has no head, which history needs; leave {HISTORY}= out")
        if (nodes := self.builder.size - 1) > MOST:
            raise ValueError(
                f"{self.builder.name}: with these settings it drafts up to {nodes} nodes, and the limit is {MOST}"
            )

    def __str__(self) -> str:
        """The method with every setting, in the form that `parse_method` reads."""
        if self.drafter.name == "plain":
            return self.drafter.name
        history = f",{HISTORY}={self.history}" if self.history else ""
        drafter = typed(self.drafter.name, self.head) + show_settings(self.drafter) + history
        return "+".join([drafter, *(part.name + show_settings(part) for part in (self.builder, self.controller))])

    @property
    def needs_costs(self) -> bool:
        """Whether a part needs measured costs."""
        return any(part.needs_costs for part in (self.drafter, self.builder, self.controller))

    def with_costs(self, table: CostTable) -> "Method":
        """The same method; every missing cost is taken from a measured table."""
        return dataclasses.replace(self, **{role: getattr(self, role).with_costs(table) for role in ROLES})

    def fitted(self, draft: Any) -> "Method":
        """The same method, with settings reduced to what the drafter's weights allow.

        A chain is cut to the head's block. With history only the default chain is cut, because copies can be longer
        than a block: an explicit length is kept. Raises ValueError if the controller needs an output that the weights
        do not have.
        """
        if self.controller.needs_estimates and not self.drafter.estimates(draft):
            raise ValueError(
                f"{self.controller.name} needs a head with a confidence output, such as a DSpark head, and "
                f"{self.head or self.drafter.name} has none; take threshold instead"
            )
        drafter, builder = self.drafter.fitted(draft), self.builder
        most = drafter.levels_at_once
        if isinstance(builder, Chain) and most is not None:
            kept = self.history and builder.length != self.drafter.levels_at_once
            builder = builder if kept else dataclasses.replace(builder, length=min(builder.length, most))
        controller = self.controller.beside_history(drafter.own_levels(draft)) if self.history else self.controller
        return dataclasses.replace(self, drafter=drafter, builder=builder, controller=controller)

    @property
    def priced(self) -> CostAware | None:
        """The part with the costs of rounds, which `PlainRounds` needs to stop drafting where it does not pay."""
        return next((part for part in (self.controller, self.builder) if isinstance(part, CostAware)), None)

    def rule(self, greedy: bool) -> Rule:
        """The lossless verification for this method: greedy at temperature 0, else rejection sampling or coupling.

        A chain takes rejection sampling, which accepts more of a single child. Gumbel coupling is for the others:
        trees, because it tests all children of a node at once and lets nodes be pruned; plain decoding, whose text for
        a seed is then the trees'; chains whose controller depends on the batch, because under rejection sampling their
        text would depend on it too; and drafters of blocks, so that any part of the block may be verified.
        """
        if greedy:
            return Greedy()
        chain = self.builder.is_chain and self.builder.depth > 0
        coupled = not chain or self.builder.prunes or self.controller.depends_on_batch
        coupled |= self.drafter.levels_at_once is not None or self.priced is not None
        return GumbelCoupling() if coupled else RejectionSampling()

    def speculation(self, greedy: bool, **options: Any) -> Speculation:
        """The static settings that the loop is compiled for. `options` are the remaining fields of `Speculation`."""
        controller = self.controller if self.priced is None else PlainRounds(self.controller, self.priced)
        return Speculation(
            drafter=WithHistory(self.drafter, self.history, self.builder.depth) if self.history else self.drafter,
            builder=self.builder.at_temperature_0 if greedy else self.builder,
            controller=controller,
            rule=self.rule(greedy),
            **options,
        )


def register(kind: type[S]) -> type[S]:
    """Makes a strategy of one's own available by its name, wherever this process reads methods and heads.

    Returns the class, so it can be used as a decorator. A class of the same name is replaced. Raises ValueError if
    another kind of strategy or one of jaxspec's has this name, the class is no strategy, its name cannot be part of a
    method, or a setting cannot be given as text or has no default.
    """
    registries: Any = ((Drafter, DRAFTERS), (TreeBuilder, BUILDERS), (Controller, CONTROLLERS))
    if not (of_kind := [kinds for base, kinds in registries if isinstance(kind, type) and issubclass(kind, base)]):
        raise ValueError(f"{kind!r} is not a class derived from Drafter, TreeBuilder or Controller")
    check_settings(kind)
    for kinds in (DRAFTERS, BUILDERS, CONTROLLERS):
        other = kinds.get(kind.name)
        if other is not None and (kinds is not of_kind[0] or other.__module__.startswith("jaxspec.")):
            raise ValueError(f"{other.__module__} has a strategy named {kind.name!r}; choose another name")
    of_kind[0][kind.name] = kind
    return kind


def parse_method(text: str) -> Method:
    """Reads a method such as `draft-model@small+chain,length=5+fixed`.

    Raises ValueError, with the valid ones, for an unknown name or setting, or parts that do not go together.
    """
    first, *others = text.strip().split("+")
    name, *settings = first.split(",")
    name, at, head = name.partition("@")
    if name not in DRAFTERS:
        raise ValueError(f"method {text!r}: there is no drafter {name!r}; there are {', '.join(DRAFTERS)}")
    if at and not head:
        raise ValueError(f"method {text!r}: no head follows the @; name one, or leave the @ out")
    history = 0
    if DRAFTERS[name].has_head:
        settings, history = _history(settings, text)
    drafter = build_part(DRAFTERS[name], settings, text)
    if head and not drafter.has_head:
        raise ValueError(f"method {text!r}: {name} has no weights, so it takes no @{head}; leave that out")
    if name == "plain":
        if others:
            raise ValueError(f"method {text!r}: plain drafts nothing, so it takes no builder or controller")
        return Method(drafter=drafter, builder=Chain(length=0))
    parts: dict[str, list[str]] = {}
    for part in others:
        kind, *settings = part.split(",")
        if kind not in BUILDERS and kind not in CONTROLLERS:
            offers = f"builders are {', '.join(BUILDERS)}; controllers are {', '.join(CONTROLLERS)}"
            raise ValueError(f"method {text!r}: there is no builder or controller {kind!r}; {offers}")
        role = "builder" if kind in BUILDERS else "controller"
        if role in parts or (role == "builder" and "controller" in parts):
            raise ValueError(f"method {text!r}: the form is DRAFTER[@HEAD][+BUILDER][+CONTROLLER], each once, in order")
        parts[role] = [kind, *settings]
    kind, *settings = parts.get("controller", [Fixed.name])
    controller = build_part(CONTROLLERS[kind], settings, text)
    if controller.needs_weights and not drafter.has_head:
        raise ValueError(
            f"method {text!r}: {controller.name} predicts from the drafter's hidden states, and {name} "
            "has none; take beta-ts, or cali-ts,prediction=sampled"
        )
    kind, *settings = parts.get("builder") or drafter.default_builder.split(",")
    # Without a length: all levels of a block; otherwise many if the controller stops drafting, else the default.
    if kind == Chain.name and not settings:
        builder: TreeBuilder = Chain(drafter.levels_at_once or (LONGEST if controller.stops else Chain.length))
    else:
        builder = build_part(BUILDERS[kind], settings, text)
    return Method(drafter, builder, controller, head=(head or name) if drafter.has_head else None, history=history)


def typed(drafter: str, head: str | None) -> str:
    """The name DRAFTER or DRAFTER@HEAD that a user would type."""
    return drafter if head in (None, drafter) else f"{drafter}@{head}"


def default_method(heads: Iterable[str]) -> Method:
    """The method of the head, DRAFTER or DRAFTER@HEAD, of the lowest `Drafter.rank`; prompt lookup if there is none."""
    named = [text.partition("@")[::2] for text in heads]
    ranked = [(rank, head, drafter) for drafter, head in named if (rank := DRAFTERS[drafter].rank) is not None]
    _, head, drafter = min(ranked, default=(0, "", "ngram"))
    method = parse_method(drafter)
    return dataclasses.replace(method, head=head) if head else method


def _history(settings: list[str], text: str) -> tuple[list[str], int]:
    """A drafter's settings without that of history, and its value."""
    of_history = [setting for setting in settings if setting.partition("=")[0] == HISTORY]
    values = [setting.partition("=")[2] for setting in of_history]
    if not all(value.isdecimal() for value in values) or len(of_history) > 1:
        raise ValueError(f"method {text!r}: write {HISTORY}=N once, N from 0 to {LONGEST_MATCH} tokens that must match")
    return [setting for setting in settings if setting not in of_history], int(values[0]) if values else 0


Value = int | float | bool | str  # of a setting; the text that was typed where the setting is no number


def vary(method: Method, setting: str, values: Sequence[str]) -> dict[Value, Method]:
    """The method once with each value of a setting, by the values, which are written as in a method's text.

    Args:
        setting: a field of the drafter, builder or controller, such as `length`; `chain.length` where several parts
            have it; `head` for @HEAD; `history` where there is a head.

    Raises ValueError if the method has no such setting (the message lists its settings), several parts have it, a value
    does not fit, or there are fewer than two distinct ones.
    """
    fields = _fields_by_name(method)
    names = [name for name in fields if setting in (name, name.partition(".")[2])]
    if not names:
        offers = f"its settings are {', '.join(fields)}" if fields else "it has none"
        raise ValueError(f"the method {method} has no setting {setting!r}; {offers}")
    if len(names) > 1:
        raise ValueError(f"several parts of {method} have a setting {setting!r}: write {' or '.join(names)}")
    role, field = fields[names[0]]
    part: Any = method.drafter if role is None else getattr(method, role)
    variants: dict[Value, Method] = {}
    for text in values:
        if field.name == HEAD and not text:
            raise ValueError("a head needs a name")
        value: Any = text if field.name == HEAD else read_value(field, text, f"{part.name},{field.name}={text}")
        changed = {field.name: value} if role is None else {role: dataclasses.replace(part, **{field.name: value})}
        variant = dataclasses.replace(method, **changed)
        if variant in variants.values():
            raise ValueError(f"{setting} has the value {text!r} twice")
        variants[value if isinstance(value, int | float) else text] = variant
    if len(variants) < 2:
        raise ValueError(f"a sweep needs two or more values of {setting}, such as {setting}=A,B")
    return variants


def _fields_by_name(method: Method) -> dict[str, tuple[str | None, dataclasses.Field]]:
    """The role of the part with each setting (None: the method itself), and its field, by the name to type."""
    if method.drafter.name == "plain":
        return {}
    parts = [(role, getattr(method, role)) for role in ROLES]
    of_parts: dict[str, tuple[str | None, dataclasses.Field]] = {
        f"{part.name}.{field.name}": (role, field) for role, part in parts for field in settings_of(part)
    }
    own = () if method.head is None else (HEAD, HISTORY)
    return of_parts | {field.name: (None, field) for field in dataclasses.fields(method) if field.name in own}
