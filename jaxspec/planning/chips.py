"""The chips that can be planned for, with their makers' data sheets, and lower bounds of the time for given work."""

import dataclasses
import itertools
import math

from jaxspec.planning.work import Collective, Work


@dataclasses.dataclass(frozen=True)
class Chip:
    """A chip.

    Attributes:
        memory: bytes of it. Sheets that say GB are taken at their word, for the v5p's says GiB.
        flops: bfloat16 operations a second, dense. Quantised weights are multiplied in bfloat16 too.
        bandwidth: bytes of its memory a second.
        link: bytes a second that it can send to others, over all its links; half of what sheets call bidirectional:
            400, 1200 and 800 GB/s of the TPUs v5e, v5p and v6e, and 600 and 900 of NVLink.
        clock: cycles a second of a TPU's tensor cores, in which its compiler counts; None of GPUs, whose says nothing.
        hop: seconds that the smallest message takes to a neighbour; no data sheet has it.
        source: where the numbers are from.
    """

    memory: float
    flops: float
    bandwidth: float
    link: float
    clock: float | None
    hop: float
    source: str


TPU_HOP = 1e-6  # "How to Scale Your Model", jax-ml.github.io/scaling-book/sharding: 1 µs a hop bounds small messages
NVLINK_STEP = 5e-6  # an assumption: 10 µs for a small all-reduce, which is two steps

# Clocks follow from operations a second and multipliers: 4 units of 128 x 128 in a v5e, 8 in a v5p, both of whose cores
# the compiler counts as one (8192^3 in bfloat16 are 4.65 M cycles, 2.66 ms; the sheet's least is 2.40). "How to Scale
# Your Model" has the v5e's. Of a v6e the sheet names 2 of 256 x 256, with which its compiler's count for that product
# would be below the least; twice as many fit it.
CHIPS = {
    "v5e": Chip(16e9, 197e12, 819e9, 200e9, 1.50e9, TPU_HOP, "https://docs.cloud.google.com/tpu/docs/v5e"),
    "v5p": Chip(95 * 2.0**30, 459e12, 2765e9, 600e9, 1.75e9, TPU_HOP, "https://docs.cloud.google.com/tpu/docs/v5p"),
    "v6e": Chip(32e9, 918e12, 1638e9, 400e9, 1.75e9, TPU_HOP, "https://docs.cloud.google.com/tpu/docs/v6e"),
    "a100-80g": Chip(80e9, 312e12, 2039e9, 300e9, None, NVLINK_STEP, "NVIDIA A100 80GB SXM data sheet"),
    "h100-80g": Chip(80e9, 989e12, 3350e9, 450e9, None, NVLINK_STEP, "NVIDIA H100 SXM data sheet, without sparsity"),
}
TPUS = ("v5e", "v5p", "v6e")
KINDS = {
    "TPU v5 lite": "v5e",
    "TPU v5e": "v5e",
    "TPU v5": "v5p",
    "TPU v5p": "v5p",
    "TPU v6 lite": "v6e",
    "TPU v6e": "v6e",
    "NVIDIA A100-SXM4-80GB": "a100-80g",
    "NVIDIA H100 80GB HBM3": "h100-80g",
}
"""Of `CHIPS`, by JAX's `device_kind`."""


@dataclasses.dataclass(frozen=True)
class Slice:
    """Chips that work together.

    Attributes:
        kind: of `CHIPS`.
        shape: of the grid that links TPUs; the number of GPUs, which a switch links.
    """

    kind: str
    shape: tuple[int, ...]

    def __str__(self) -> str:
        return f"{self.kind}:{'x'.join(map(str, self.shape))}"

    @property
    def chip(self) -> Chip:
        return CHIPS[self.kind]

    @property
    def chips(self) -> int:
        return math.prod(self.shape)

    @property
    def is_tpu(self) -> bool:
        return self.kind in TPUS

    def hops(self, chips: int) -> int:
        """From one of so many chips to the farthest, where they lie as close together as the grid lets them.

        Small grids of TPUs do not wrap around; GPUs meet in one switch.
        """
        if not self.is_tpu:
            return min(1, chips - 1)
        boxes = itertools.product(*(range(1, length + 1) for length in self.shape))
        return min(sum(box) - len(box) for box in boxes if math.prod(box) >= chips)

    def seconds(self, work: Work) -> float:
        """The roofline: computing overlaps with reading memory, whichever takes longer, and neither with messages."""
        chip = self.chip
        computing = max(work.flops / chip.flops, work.bytes / chip.bandwidth)
        return computing + sum(each.count * self.communication(each) for each in work.collectives)

    def communication(self, collective: Collective) -> float:
        """Seconds of one collective: what each chip must receive, and the way from the farthest one.

        An all-reduce is a reduce-scatter and an all-gather.
        """
        chips = collective.chips or self.chips
        received = collective.bytes * (chips - 1) / chips
        steps = 2 if collective.kind == "all-reduce" else 1
        return steps * (received / self.chip.link + self.hops(chips) * self.chip.hop)


def chip_of(device_kind: str) -> Slice | None:
    """One chip of what JAX calls so; None: no data sheet here is of it."""
    kind = KINDS.get(device_kind)
    return None if kind is None else Slice(kind, (1,))


def parse_slice(text: str) -> Slice:
    """Reads `v5e:4x4` or `a100-80g:8`. Raises ValueError."""
    kind, _, shape = text.partition(":")
    lengths = shape.split("x")
    if kind not in CHIPS or not all(length.isdecimal() and int(length) for length in lengths):
        raise ValueError(f"{text!r} is not a known chip: write {_examples()}")
    found = Slice(kind, tuple(map(int, lengths)))
    if not found.is_tpu and len(lengths) != 1:
        raise ValueError(f"{text!r}: GPUs have no topology: write only their number, such as {kind}:8")
    return found


def _examples() -> str:
    return ", ".join(f"{name}:{'2x2x2' if name == 'v5p' else '4x4' if name in TPUS else '8'}" for name in CHIPS)
