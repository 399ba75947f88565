"""A tree of fixed shape, given as the paths of child ranks that exist."""

import dataclasses
import functools
from typing import ClassVar, final

import jax
import jax.numpy as jnp
import numpy as np

from jaxspec.decoding.builder import Grown, TreeBuilder
from jaxspec.decoding.rule import Propose
from jaxspec.decoding.strategy import MOST
from jaxspec.decoding.tree import DraftTree, Frontier, Rows, add_nodes, take
from jaxspec.host.arguments import integer

Path = tuple[int, ...]


def parse_paths(text: str) -> tuple[Path, ...]:
    """Reads paths such as `0:1:00:01`, one digit per level. With dots, as in `0.:10.:0.1:10.3`, ranks can exceed 9."""
    try:
        paths = [tuple(int(rank) for rank in (p.strip(".").split(".") if "." in p else p)) for p in text.split(":")]
    except ValueError:
        raise ValueError(f"static: paths are child ranks such as 0:1:00:01, not {text!r}") from None
    return tuple(paths)


def show_paths(paths: tuple[Path, ...]) -> str:
    """Inverse of `parse_paths`."""
    wide = any(rank > 9 for path in paths for rank in path)
    if wide:  # a path of one rank needs a dot too
        return ":".join(".".join(map(str, path)) + ("." if len(path) == 1 else "") for path in paths)
    return ":".join("".join(map(str, path)) for path in paths)


# The 25 draft nodes of the tree in EAGLE's paper (arXiv:2401.15077). More probable branches are deeper and wider.
EAGLE_TREE = parse_paths("0:1:2:3:00:01:02:10:11:20:21:30:000:001:002:010:011:020:021:100:0000:0001:0002:00000:00001")


@final
@dataclasses.dataclass(frozen=True)
class Static(TreeBuilder):
    """A fixed tree, given as paths; the default is EAGLE's."""

    name: ClassVar[str] = "static"
    # A path is a string of child ranks; rank 0 is the first proposed child.
    paths: tuple[Path, ...] = dataclasses.field(default=EAGLE_TREE, metadata={"parse": parse_paths, "show": show_paths})

    def __post_init__(self) -> None:
        known = set(self.paths)
        if len(known) < len(self.paths) or not known or () in known:
            raise ValueError("static: give at least one path; paths must be distinct and not empty")
        for path in self.paths:
            if len(path) > 1 and path[:-1] not in known:
                raise ValueError(f"static: path {path} has no parent {path[:-1]} in the tree")
            integer(f"static: the smallest rank in path {path}", min(path), 0)
            integer(f"static: the largest rank in path {path}", max(path), most=MOST)

    @property
    def depth(self) -> int:
        return max(map(len, self.paths))

    @property
    def size(self) -> int:
        return len(self.paths) + 1

    def grow(self, propose: Propose, tree: DraftTree, frontier: Frontier, active: Rows) -> Grown:
        tables, size = _tables(self.paths), self.size
        at_level = lambda table: jax.lax.dynamic_index_in_dim(table, frontier.level, keepdims=False)
        slot, rank, node = at_level(tables.slot), at_level(tables.rank), at_level(tables.node)
        slot = jnp.minimum(slot, frontier.node.shape[1] - 1)  # the root's frontier is one node wide
        proposal = propose(tables.branching)
        offered = proposal.token.shape[-1]  # fewer than the tree's branching in a small vocabulary
        of = lambda values: values[:, slot, jnp.minimum(rank, offered - 1)]
        live = of(proposal.live) & frontier.live[:, slot] & active[:, None] & (rank < offered) & (node < size)
        parent = frontier.node[:, slot]
        log_confidence = take(tree.log_confidence, parent) + of(proposal.log_prob)
        tree = add_nodes(tree, node, of(proposal.token), parent, log_confidence, live)
        expand = jnp.broadcast_to(at_level(tables.expand), (live.shape[0], tables.expand.shape[1]))
        real = expand < size
        nodes = jnp.where(real, expand, 0)
        return tree, Frontier(node=nodes, live=real & take(tree.live, nodes), level=frontier.level + 1)


@dataclasses.dataclass(frozen=True)
class _Tables:
    """The tree level by level. Node ids are in breadth-first order; `size` means no node."""

    slot: np.ndarray  # [depth, C] index in the frontier of each new node's parent
    rank: np.ndarray  # [depth, C] rank of each new node among its siblings
    node: np.ndarray  # [depth, C] id of each new node
    expand: np.ndarray  # [depth, W] ids of the nodes to expand after this level
    branching: int  # largest number of children of a node


@functools.cache
def _tables(paths: tuple[Path, ...]) -> _Tables:
    ordered = sorted(paths, key=lambda p: (len(p), p))
    ident = {(): 0, **{path: i + 1 for i, path in enumerate(ordered)}}
    inner = {path[:-1] for path in ordered}
    depth, size = len(ordered[-1]), len(ordered) + 1
    by_level = [[p for p in ordered if len(p) == level + 1] for level in range(depth)]
    frontiers = [[()], *([p for p in level if p in inner] for level in by_level)]
    width = max(1, *(len(f) for f in frontiers))
    pad = lambda rows, columns, fill: np.array([row + [fill] * (columns - len(row)) for row in rows], np.int32)
    columns = max(map(len, by_level))
    return _Tables(
        slot=pad([[frontiers[i].index(p[:-1]) for p in level] for i, level in enumerate(by_level)], columns, 0),
        rank=pad([[p[-1] for p in level] for level in by_level], columns, 0),
        node=pad([[ident[p] for p in level] for level in by_level], columns, size),
        expand=pad([[ident[p] for p in frontier] for frontier in frontiers[1:]], width, size),
        branching=1 + max(path[-1] for path in ordered),
    )
