"""The checkpoints of a run, the last and the best one. Orbax writes them while training continues."""

import contextlib
import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TypeVar

import jax

State = TypeVar("State")


@dataclasses.dataclass(frozen=True)
class Checkpoints:
    """The checkpoints of a run: training state, position in the data, and measurements.

    One that was not complete when the process was killed is ignored.
    """

    orbax: Any

    def save(self, step: int, state: Any, place: Any, measured: dict[str, Any] | None) -> None:
        """Starts to write a checkpoint, after the previous one; `place` is the position in the data, as JSON values."""
        self.wait()
        self.orbax.save_async(step, flat(state), custom_metadata={"data": place}, metrics=measured)

    def wait(self) -> None:
        """Waits until all checkpoints are on disk."""
        self.orbax.wait()

    def restore(self, state: State) -> tuple[State, Any]:
        """The last state and its position in the data; `state` and None without a checkpoint."""
        if self.orbax.latest is None:
            return state, None
        about: Any = self.orbax.metadata().custom_metadata
        return self._load(self.orbax.latest.step, state), about["data"]

    def best(self, state: State) -> tuple[State, dict[str, Any] | None]:
        """The state with the best score (the latest of equal ones) and its measurements; `state`, None without any."""
        measured = [each for each in self.orbax.checkpoints if each.metrics]
        if not measured:
            return state, None
        best = max(measured, key=lambda each: (_score(each.metrics), each.step))
        metrics: Any = best.metrics
        return self._load(best.step, state), metrics

    def _load(self, step: int, state: State) -> State:
        loaded = self.orbax.load(step, like := flat(state))
        return jax.tree.unflatten(jax.tree.structure(state), [loaded[name] for name in like])


@contextlib.contextmanager
def open_checkpoints(folder: Path) -> Iterator[Checkpoints]:
    """Opens the checkpoints in a folder. The last and the best one are kept."""
    import orbax.checkpoint.experimental.v1 as ocp

    policies: Any = ocp.training.preservation_policies
    best = policies.BestN(get_metric_fn=_score, n=1, keep_checkpoints_without_metrics=False)
    keep = policies.AnyPreservationPolicy([policies.LatestN(1), best])
    place = str(folder.absolute())
    with ocp.training.Checkpointer(place, preservation_policy=keep, cleanup_tmp_directories=True) as orbax:
        yield Checkpoints(orbax)


def flat(state: Any) -> dict[str, jax.Array]:
    """The arrays of a pytree by name."""
    return {jax.tree_util.keystr(path): leaf for path, leaf in jax.tree.leaves_with_path(state)}


def _score(metrics: Any) -> float:
    return metrics["score"]
