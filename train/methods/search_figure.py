"""Figures of a skip search: speedup against the share of skipped blocks, and which blocks are skipped
(arXiv:2309.08168).
"""

from collections.abc import Sequence
from pathlib import Path

from jaxspec.drafters.layer_skip import SkipMask
from jaxspec.evaluate.sweep_figure import to_svg
from jaxspec.host.atomic import write_whole
from jaxspec.host.terminal import say
from jaxspec.train.methods.trial import Trial

KEPT, ATTENTION, MLP = "0.85", "tab:red", "tab:blue"


def draw(trials: Sequence[Trial], best: SkipMask, out: Path) -> None:
    """Draws all trials (the paper's Figure 4) and the map of the best set (Figure 6). It needs matplotlib."""
    try:
        from matplotlib.figure import Figure
        from matplotlib.patches import Rectangle
    except ImportError:
        say("no figure: matplotlib is not installed (pip install 'jax-specdec[search]'); the trials are in the log")
        return
    drawn = Figure(figsize=(8, 5), layout="constrained")
    above, below = drawn.subplots(2, 1, height_ratios=(4, 1))
    skipped = [sum(each.skips.attention) + sum(each.skips.mlp) for each in trials]
    speedups = [each.speedup for each in trials]
    above.scatter(skipped, speedups, s=10, color="0.5")
    most = {count: max(s for n, s in zip(skipped, speedups, strict=True) if n == count) for count in sorted({*skipped})}
    above.plot(list(most), list(most.values()), "--", color="tab:red", label="best for this number of blocks")
    above.axhline(1, color="0.8", linewidth=1, zorder=0)
    above.set(xlabel="blocks left out", ylabel="speedup over plain decoding", title="Trials of the search")
    above.legend(frameon=False, fontsize="small")
    for row, (switches, colour) in enumerate(((best.mlp, MLP), (best.attention, ATTENTION))):
        for layer, off in enumerate(switches):
            below.add_patch(Rectangle((layer - 0.45, row - 0.45), 0.9, 0.9, facecolor=colour if off else KEPT))
    below.set(
        xlim=(-0.6, len(best.mlp) - 0.4), ylim=(-0.6, 1.6), aspect="equal", xlabel="layer", title="Blocks left out"
    )
    below.set_yticks([0, 1], ["MLP", "attention"])
    below.spines[:].set_visible(False)
    write_whole(out, to_svg(drawn))
