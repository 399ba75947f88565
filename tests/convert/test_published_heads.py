"""What heads of every kind share: `inspect`, the target that they need, and what is refused beside it."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from jaxspec.checkpoint.builtin import locate
from jaxspec.convert import llama
from tests import hf_models
from tests.convert.commands import (
    HEAD,
    exported,
    imported,
    inspected,
    refused,
    refused_export,
    refused_head,
    run,
    said,
    tensors,
)
from tests.convert.published_heads import (
    DFLASH,
    DFLASH_SPECULATORS,
    DRAFTED,
    EAGLE,
    EAGLE3,
    LISTED,
    MASK,
    MEDUSA,
    VOCABULARY,
    WIDTH,
    dflash,
    eagle,
    eagle3,
    medusa,
    write,
)

KINDS: dict[str, Callable[..., tuple[dict[str, np.ndarray], dict[str, Any]]]] = {
    "eagle": lambda target, dtype="float32": (eagle(target, dtype=dtype), EAGLE),
    "eagle3": lambda _, dtype="float32": (eagle3(dtype=dtype, tap_norm="each"), {**EAGLE3, "fc_norm": True}),
    "dflash": lambda _, dtype="float32": (dflash(dtype), DFLASH),
    "medusa": lambda _, dtype="float32": (medusa(dtype), MEDUSA),
}
"""Tensors and config of a head of each kind."""


@pytest.mark.parametrize(
    ("kind", "published", "ours", "same"),
    [
        (
            "eagle",
            {"format": "EAGLE head, of EAGLE-1 or EAGLE-2", "fc.weight": "[32, 64]"},
            {"bias": "yes", "own embedding": "no", "fc.kernel": "[64, 32]"},
            ["layers", "hidden size", "attention heads", "vocabulary", "positions"],
        ),
        (
            "eagle3",
            {
                "format": "EAGLE-3 head, in the layout of its authors",
                "taps": "by the target (those of EAGLE's own code (2, n/2, n - 3, or nearest), since config.json lists "
                "none)",
                "midlayer.self_attn.q_proj.weight": "[32, 64]",
            },
            {
                "taps": "2, 4, 5",
                "layer.attention.q.kernel": "[64, 32]",
                "draft vocabulary": f"{DRAFTED} of {VOCABULARY}",
            },
            ["draft vocabulary", "tap norm", "attention heads", "vocabulary", "parameters"],
        ),
        (
            "dflash",
            {
                "format": "DFlash head, in the layout of its authors",
                "taps": "2, 6 (target_layer_ids, read as layers whose outputs these are, so one more each)",
                "layers.0.self_attn.q_proj.weight": "[64, 32]",
            },
            {"taps": "2, 6", "block": "4", "mask token": "90"},
            ["draft vocabulary", "block", "mask token", "own head", "attention heads", "layers", "parameters"],
        ),
        (
            "medusa",
            {"format": "Medusa heads", "heads": "3", "2.0.linear.bias": "[32]"},
            {"heads.2.head.kernel": "[32, 96]"},
            ["heads", "hidden size", "vocabulary", "parameters"],
        ),
    ],
)
def test_inspect(kind: str, published: dict, ours: dict, same: list[str], folder: Path):
    source = write(folder / "head", *KINDS[kind](folder / "hf", "float16"))
    before = inspected(source)
    assert published.items() <= before.items(), before
    assert f"decode with it by --method {kind}@head\n" in said(folder, source)
    after = inspected(folder / HEAD)
    assert {"format": f"jaxspec head for the drafter {kind}, exported in float16", **ours}.items() <= after.items()
    assert {key: after[key] for key in same} == {key: before[key] for key in same}
    assert ("layers" in after) == (kind != "medusa")
    assert inspected(folder / "ckpt")["heads"] == "head"


@pytest.fixture(scope="module")
def others(tmp_path_factory: pytest.TempPathFactory) -> list[tuple[Path, str]]:
    """Targets of another shape, and what a refusal says of them."""
    path = tmp_path_factory.mktemp("others")
    hf_models.make("llama", path / "hf97", num_hidden_layers=1, vocab_size=97)
    hf_models.make("llama", path / "hf64", num_hidden_layers=1, hidden_size=64)
    for name in ("97", "64"):
        llama.convert(path / f"hf{name}", path / name)
    return [
        (path / "97", "a target of vocabulary 96, and this target's is 97"),
        (path / "64", "a target of hidden size 32, and this target's is 64"),
    ]


@pytest.mark.parametrize("kind", KINDS)
def test_head_of_another_target(kind: str, folder: Path, others: list[tuple[Path, str]]):
    source = write(folder / "head", *KINDS[kind](folder / "hf"))
    imported(folder, source)
    for other, words in others:
        assert words in refused(source, folder / "out", "--target", other, command="head")
        if kind != "medusa":
            assert words in refused_export(folder, HEAD, "back", "--format", kind, "--target", other)


@pytest.mark.parametrize("kind", KINDS)
def test_wrong_pairings_of_export(kind: str, folder: Path):
    imported(folder, write(folder / "head", *KINDS[kind](folder / "hf")))
    other = "eagle3" if kind == "eagle" else "eagle"
    refuse = lambda *args: refused_export(folder, *args)
    for form in ((), ("--format", "hf")):
        assert "is a head, which the other formats write" in refuse(HEAD, "back", *form)
    assert f"is for the drafter {kind}, and not for {other}" in refuse(HEAD, "back", "--format", other)
    sentence = refuse("ckpt", "back", "--format", kind)
    assert f"is a checkpoint, which --format hf writes; --format {kind} takes a head" in sentence
    assert "--verifier needs --format speculators" in refuse(HEAD, "back", "--format", kind, "--verifier", "x")
    for form in ("hf", "medusa"):
        sentence = refuse(HEAD, "back", "--format", form, "--target", "ckpt")
        assert "--target is for EAGLE and DFlash heads" in sentence
    assert "not the config of a trained head" in refuse("head", "back", "--format", kind)
    (folder / HEAD).rename(folder / "moved")
    if kind != "medusa":
        assert "name its target with --target CKPT" in refuse("moved", "back", "--format", kind)


@pytest.mark.parametrize(
    ("kind", "config", "changed", "words"),
    [
        ("eagle", {}, {"layers.0.post_attention_layernorm.weight": np.full(WIDTH, np.nan, np.float32)}, "NaN"),
        ("eagle3", {}, {"midlayer.hidden_norm.weight": np.full(WIDTH, np.nan, np.float32)}, "NaN"),
        ("eagle3", {LISTED: [1, 2, 9]}, {}, "reads the input of layer 9 (from 0) and this target has 8"),
        ("eagle3", {"eagle_config": {LISTED: [1, 2, 7]}}, {}, "the output of the target's last layer"),
        ("eagle3", {LISTED: [-1, 2, 7]}, {}, "reads the input of layer -1"),
        ("dflash", {}, {"norm.weight": np.full(WIDTH, np.nan, np.float32)}, "NaN"),
        ("dflash", {"dflash_config": {"mask_token_id": 96}}, {}, "mask token 96"),
        ("dflash", {"num_target_layers": 36}, {}, "a target of 36 layers, and this one has 8"),
        (
            "dflash",
            {"dflash_config": {"mask_token_id": MASK, "target_layer_ids": [1, 7]}},
            {},
            "the output of the target's last layer, and projects disagree on its norm",
        ),
        ("dflash", {"dflash_config": {"mask_token_id": MASK, "target_layer_ids": [-2, 7]}}, {}, "last layer"),
        ("dflash", {**DFLASH_SPECULATORS, "aux_hidden_state_layer_ids": [2, 9]}, {}, "reads the input of layer 9"),
        ("medusa", {}, {"0.0.linear.bias": np.full(WIDTH, np.nan, np.float32)}, "0.0.linear.bias"),
    ],
)
def test_what_does_not_fit_the_target(kind: str, config: dict, changed: dict, words: str, folder: Path):
    """Or is seen when the weights are read."""
    found, plain = KINDS[kind](folder / "hf")
    config = config if "architectures" in config else {**plain, **config}
    if kind == "eagle3":
        found, config = eagle3(), {**config, "fc_norm": False}
    assert words in refused_head(folder, write(folder / "head", found | changed, config))


def test_taps_that_are_named(folder: Path):
    source = write(folder / "head", eagle3(), EAGLE3)
    refuse = lambda taps: refused_head(folder, source, "--taps", taps)
    assert "separated by commas, such as 2,16,29, not '2;3'" in refuse("2;3")
    assert "reads the input of layer 9" in refuse("1,2,9")
    assert "has 96 inputs, and 2 layers of width 32 are named: as given by --taps; use --taps" in refuse("1,2")
    other = write(folder / "medusa", medusa(), MEDUSA)
    assert "--taps is for EAGLE-3 and DFlash heads" in refused_head(folder, other, "--taps", "1,2,3")


def test_target_is_needed_and_must_be_one(folder: Path):
    source = write(folder / "head", eagle(folder / "hf"), EAGLE)
    assert "--target" in run("head", source, folder / "out").last
    assert "no readable jaxspec checkpoint" in refused(source, folder / "out", "--target", "/nowhere", command="head")


def test_no_head_at_all(folder: Path):
    assert "is not a folder" in refused_head(folder, folder / "absent")
    assert "is a jaxspec checkpoint already" in refused_head(folder, folder / "ckpt")
    found = eagle(folder / "hf")
    source = write(folder / "head", found, EAGLE)
    (source / "model.safetensors").unlink()
    assert "neither model.safetensors nor pytorch_model.bin" in refused_head(folder, source)
    imported(folder, write(folder / "whole", found, EAGLE))
    assert "is a jaxspec head already" in refused_head(folder, folder / HEAD)


@pytest.mark.parametrize("kind", KINDS)
def test_wider_dtype_comes_back_bitwise(kind: str, folder: Path):
    found, plain = KINDS[kind](folder / "hf", "float16")
    form = "speculators" if kind == "eagle3" else kind  # EAGLE's own code has no norms before fc
    config = imported(folder, write(folder / "head", found, plain), "--dtype", "float32")
    assert (config.dtype, config.source_dtype) == ("float32", "float16")
    back, _, _ = exported(folder, form)
    if kind == "eagle3":
        back = {name.replace("layers.0.", "midlayer."): array for name, array in back.items()}
    assert back.keys() == found.keys()
    assert all(back[name].tobytes() == found[name].tobytes() for name in found)


@pytest.mark.parametrize("head", ["dflash", "eagle", "eagle3", "early-exit", "edd", "layer-skip", "medusa"])
def test_inspect_of_a_head_without_its_settings(head: str, tmp_path: Path):
    folder = shutil.copytree(locate("builtin") / "heads" / head, tmp_path / "head")
    config = json.loads((folder / "config.json").read_text())
    for name in config["settings"]:
        for settings in (
            {key: value for key, value in config["settings"].items() if key != name},
            *({**config["settings"], name: value} for value in (None, [None], -1)),
        ):
            (folder / "config.json").write_text(json.dumps({**config, "settings": settings}))
            result = run("inspect", folder)
            assert result.code == 0 or (result.code, str(folder) in result.last) == (2, True), (settings, result.err)


def test_heads_that_come_along_are_named_by_builtin(tmp_path: Path):
    result = run("export", "builtin/heads/eagle", tmp_path / "back", "--format", "eagle")
    assert result.code == 0, result.err
    assert "fc.weight" in tensors(tmp_path / "back")
    assert "drafter medusa" in run("inspect", "builtin/heads/medusa").out
    assert "builtin/heads/nothing is not a folder" in run("inspect", "builtin/heads/nothing").last
