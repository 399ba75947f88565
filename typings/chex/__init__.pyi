"""What pyright cannot see in chex: that `chex.dataclass` makes dataclasses, with keyword-only fields."""

from collections.abc import Callable
from typing import Any, TypeVar, dataclass_transform, overload

_T = TypeVar("_T")

@overload
@dataclass_transform(kw_only_default=True)
def dataclass(cls: type[_T], /) -> type[_T]: ...
@overload
@dataclass_transform(kw_only_default=True)
def dataclass(*, frozen: bool = False, mappable_dataclass: bool = True) -> Callable[[type[_T]], type[_T]]: ...
def __getattr__(name: str) -> Any: ...
