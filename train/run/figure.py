"""The figure of a run: loss and acceptance over steps."""

from pathlib import Path

import numpy as np

from jaxspec.host.atomic import write_whole
from jaxspec.host.terminal import say
from jaxspec.train.run.log import read


def draw(metrics: Path, out: Path) -> None:
    """Draws the metrics of a run as SVG. It needs matplotlib."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        say(f"no figure: matplotlib is not installed (pip install 'jax-specdec[report]'); the numbers are in {metrics}")
        return
    lines = list(read(metrics))
    losses = [(line["step"], line["loss"]) for line in lines if "loss" in line]
    evaluations = [(line["step"], line["evaluation"]) for line in lines if "evaluation" in line]
    acceptance = [(step, each["acceptance"]) for step, each in evaluations if each.get("acceptance")]
    drawn = Figure(figsize=(9, 3.5) if acceptance else (5, 3.5), layout="constrained")
    axes = drawn.subplots(1, 2 if acceptance else 1, squeeze=False)[0]
    steps, values = np.array(losses).reshape(-1, 2).T
    axes[0].plot(steps, values, color="0.8", linewidth=0.7, label="training, a step")
    width = max(1, len(values) // 50)
    smooth = np.convolve(values, np.ones(width) / width, "valid")
    axes[0].plot(steps[width - 1 :], smooth, label=f"training, mean of {width}")
    if held := [(step, each["loss"]) for step, each in evaluations if "loss" in each]:
        axes[0].plot(*zip(*held, strict=True), marker="o", markersize=3, label="held out")
    axes[0].set(xlabel="step", ylabel="loss", title="Loss")
    axes[0].legend(frameon=False)
    if acceptance:
        for position in range(max(len(each) for _, each in acceptance)):
            points = [(step, each[position]) for step, each in acceptance if position < len(each)]
            axes[1].plot(*zip(*points, strict=True), marker="o", markersize=3, label=f"{position}-α")
        axes[1].set(xlabel="step", ylabel="acceptance", ylim=(0, 1), title="Acceptance by position, held out")
        axes[1].legend(frameon=False)
    from jaxspec.evaluate.sweep import to_svg  # it imports much

    write_whole(out, to_svg(drawn))
