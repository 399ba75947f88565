"""The chips that can be planned for, with their makers' data sheets, and lower bounds of the time for given work."""

import dataclasses
import itertools
import math
from collections.abc import Iterable


@dataclasses.dataclass(frozen=True)
class Collective:
    """Equal messages among chips."""

    kind: str  # the name in HLO: `all-reduce`, `all-gather`, …
    bytes: int  # of the result on a chip; for a reduce-scatter, of the input
    count: int | float = 1  # number of messages; a fraction for a mean over rounds
    chips: int | None = None  # in each group that communicates; None: all


@dataclasses.dataclass(frozen=True)
class Work:
    """Floating-point operations of products, bytes of main memory, and messages, on each chip."""

    flops: int | float = 0
    bytes: int | float = 0
    collectives: tuple[Collective, ...] = ()

    def __add__(self, other: "Work") -> "Work":
        return Work(self.flops + other.flops, self.bytes + other.bytes, merged((*self.collectives, *other.collectives)))

    def times(self, number: int | float) -> "Work":
        """The work of `number` repetitions."""
        many = [dataclasses.replace(each, count=each.count * number) for each in self.collectives if number]
        return Work(self.flops * number, self.bytes * number, tuple(many))


def merged(collectives: Iterable[Collective]) -> tuple[Collective, ...]:
    """Equal messages counted together, those with the most bytes first."""
    counts: dict[Collective, int | float] = {}
    for each in collectives:
        one = dataclasses.replace(each, count=1)
        counts[one] = counts.get(one, 0) + each.count
    found = [dataclasses.replace(one, count=count) for one, count in counts.items()]
    return tuple(sorted(found, key=lambda each: (-each.bytes * each.count, each.kind)))


@dataclasses.dataclass(frozen=True)
class Chip:
    """A chip. If JAX sees several devices in it, the numbers are of one of them."""

    memory: float  # bytes of main memory; GB in a data sheet means 10^9 bytes, and the v5p's sheet says GiB
    flops: float  # dense bfloat16 operations per second; quantised weights are multiplied in bfloat16 too
    bandwidth: float  # bytes per second of main memory
    link: float  # bytes per second that it can send over all its links: half of the sheets' bidirectional numbers
    clock: float | None  # cycles per second of a TPU's tensor cores, the unit of the compiler's estimates
    hop: float  # seconds that the smallest message takes to a neighbour; not in any data sheet
    source: str  # the data sheet
    devices: int = 1


TPU_HOP = 1e-6  # "How to Scale Your Model", jax-ml.github.io/scaling-book/sharding: small messages take 1 µs per hop
NVLINK_STEP = 5e-6  # assumed: a small all-reduce has two steps and takes 10 µs

# Clocks are computed from operations per second and the matrix units: 4 of 128 x 128 in a v5e ("How to Scale Your
# Model" has the same clock), and 8 in a v5p, whose two cores the compiler counts as one. A check of the v5p's: the
# compiler counts 4.65 M cycles for a bfloat16 product of 8192^3, which is 2.66 ms; the data sheet's minimum is 2.40 ms.
# For a v6e the sheet names 2 units of 256 x 256. With 2 the compiler's count is below the minimum, so we assume 4,
# for a v7x (TPU7x, Ironwood) too: one of its two devices then takes 1.18 ms (2.60 M cycles); the minimum is 0.95 ms.
CHIPS = {
    "v5e": Chip(16e9, 197e12, 819e9, 200e9, 1.50e9, TPU_HOP, "https://docs.cloud.google.com/tpu/docs/v5e"),
    "v5p": Chip(95 * 2.0**30, 459e12, 2765e9, 600e9, 1.75e9, TPU_HOP, "https://docs.cloud.google.com/tpu/docs/v5p"),
    "v6e": Chip(32e9, 918e12, 1638e9, 400e9, 1.75e9, TPU_HOP, "https://docs.cloud.google.com/tpu/docs/v6e"),
    "v7x": Chip(
        96 * 2.0**30, 1153.5e12, 3690e9, 300e9, 2.20e9, TPU_HOP, "https://docs.cloud.google.com/tpu/docs/tpu7x", 2
    ),
    "a100-80g": Chip(80e9, 312e12, 2039e9, 300e9, None, NVLINK_STEP, "NVIDIA A100 80GB SXM data sheet"),
    "h100-80g": Chip(80e9, 989e12, 3350e9, 450e9, None, NVLINK_STEP, "NVIDIA H100 SXM data sheet, without sparsity"),
    "h200-141g": Chip(141e9, 989e12, 4800e9, 450e9, None, NVLINK_STEP, "NVIDIA H200 SXM data sheet, without sparsity"),
}
GPUS = {
    "a100-80g": "NVIDIA A100-SXM4-80GB",
    "h100-80g": "NVIDIA H100 80GB HBM3",
    "h200-141g": "NVIDIA H200",
}
"""JAX's `device_kind` of GPUs."""


@dataclasses.dataclass(frozen=True)
class Slice:
    """Chips that run one program: a key of `CHIPS`, and a TPU topology or number of GPUs; `chips` counts devices."""

    kind: str
    shape: tuple[int, ...]

    def __str__(self) -> str:
        return f"{self.kind}:{'x'.join(map(str, self.shape))}"

    @property
    def chip(self) -> Chip:
        return CHIPS[self.kind]

    @property
    def chips(self) -> int:
        return math.prod(self.shape) * self.chip.devices

    @property
    def is_tpu(self) -> bool:
        return self.kind not in GPUS

    def hops(self, chips: int) -> int:
        """Hops between the two farthest of this many chips, placed as closely as the topology permits."""
        if not self.is_tpu:  # a switch links all GPUs
            return min(1, chips - 1)
        # Small topologies of TPUs have no wrap-around links.
        boxes = itertools.product(*(range(1, length + 1) for length in self.shape))
        return min(sum(box) - len(box) for box in boxes if math.prod(box) * self.chip.devices >= chips)

    def seconds(self, work: Work) -> float:
        """Roofline time: compute and memory overlap, so the longer counts; communication overlaps with neither."""
        chip = self.chip
        computing = max(work.flops / chip.flops, work.bytes / chip.bandwidth)
        return computing + sum(each.count * self.communication(each) for each in work.collectives)

    def communication(self, collective: Collective) -> float:
        """Seconds of one collective: the bytes that each chip receives, and the hops from the farthest chip."""
        chips = collective.chips or self.chips
        received = collective.bytes * (chips - 1) / chips
        steps = 2 if collective.kind == "all-reduce" else 1  # a reduce-scatter and an all-gather
        return steps * (received / self.chip.link + self.hops(chips) * self.chip.hop)


def parse_slice(text: str) -> Slice:
    """Reads `v5e:4x4` or `a100-80g:8`. Raises ValueError."""
    kind, _, shape = text.partition(":")
    lengths = shape.split("x")
    if kind not in CHIPS or not all(length.isdecimal() and int(length) for length in lengths):
        known = (f"{name}:{'8' if name in GPUS else '2x2x2' if name in ('v5p', 'v7x') else '4x4'}" for name in CHIPS)
        raise ValueError(f"{text!r} is not a known chip: write {', '.join(known)}")
    if kind in GPUS and len(lengths) != 1:
        raise ValueError(f"{text!r}: GPUs have no topology: write only their number, such as {kind}:8")
    return Slice(kind, tuple(map(int, lengths)))
