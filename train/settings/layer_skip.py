"""The command `jaxspec-train layer-skip`: its options, apart from its work, so that `--help` need not load JAX."""

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from tyro import conf

from jaxspec.train.run.folder import run_folder
from jaxspec.train.run.recipe import Recipe
from jaxspec.train.settings.objectives import BlockObjective
from jaxspec.train.settings.options import DataMixture, Where, option

if TYPE_CHECKING:
    from jaxspec.checkpoint.loading import Checkpoint
    from jaxspec.drafters.layer_skip import SkipSet


@dataclasses.dataclass(frozen=True)
class LayerSkip:
    """Train the blocks further that drafting keeps where a model drafts for itself (Draft & Verify, Appendix E).

    A set that leaves out much drafts badly; trained to speak as the whole target does, it drafts well and stays fast.
    The head, TARGET/heads/layer-skip-trained if not told, has a set and weights of its own: the kept blocks and the
    final norm. It drafts as `layer-skip@layer-skip-trained`.

    By default it trains as long as is best in the paper, 60M tokens of texts of 512, if --context is 512. Of batch,
    optimizer and learning rate the paper says nothing: they are EDD's, and so is the loss. Its blocks get as long as
    drafts do under a controller.

    For example: jaxspec-train layer-skip --target tinyllama --aggressive --data ~/src --context 512
    """

    where: conf.OmitArgPrefixes[Where]
    data: conf.OmitArgPrefixes[DataMixture] = DataMixture()
    objective: conf.OmitArgPrefixes[BlockObjective] = BlockObjective(block_max=12)
    skip_set: Annotated[Path | None, conf.arg(name="set")] = None
    """Skip set to train, TARGET/heads/layer-skip if not given."""
    aggressive: bool = False
    """Take another set: one that leaves out the two shares below, in the order in which the trials of a search speak
    for it."""
    search: Path | None = None
    """With --aggressive: folder of the search's run, TARGET/heads/layer-skip.run if not given."""
    attention_share: float = 0.75
    """With --aggressive: attention blocks to leave out. The default is the paper's for LLaMA-2-13B."""
    mlp_share: float = 0.325
    """With --aggressive: MLP blocks to leave out; the paper's too."""
    recipe: conf.OmitArgPrefixes[Recipe] = Recipe(steps=14_650, batch_size=8, learning_rate=1e-4)

    def run(self) -> None:
        for name in ("attention_share", "mlp_share"):
            if not 0 <= getattr(self, name) <= 1:
                raise ValueError(f"{option(name)} must be from 0 to 1, not {getattr(self, name)}")
        if self.aggressive and self.skip_set is not None:
            raise ValueError("--aggressive takes a set from the trials of a search, and --set names one: give either")
        if self.search is not None and not self.aggressive:
            raise ValueError("--search is where --aggressive takes a set from: give both or neither")
        from jaxspec.checkpoint.loading import load
        from jaxspec.train.methods import kept_blocks

        with self.where.job("layer-skip-trained", self, self.data, self.recipe, load) as job:
            kept_blocks.train(job, self.choose(job.target), self.objective, self.where.save_dtype)

    def choose(self, target: "Checkpoint") -> "SkipSet":
        """The set that is asked for."""
        from jaxspec.drafters.layer_skip import NAME, read_skip_set
        from jaxspec.train.methods import aggressive, skip_search

        searched = target.path / "heads" / NAME
        if not self.aggressive:
            return read_skip_set(self.skip_set or searched, target.config)
        trials = skip_search.read_trials(run_folder(searched, self.search), target)
        return aggressive.choose(trials, self.attention_share, self.mlp_share)
