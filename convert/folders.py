"""What a folder holds in place of a model, so that its refusal names it and what to do."""

from pathlib import Path

_RELEASE = "which is not read; convert the model's Hugging Face release in safetensors"
# Patterns of names, with what such a file is and what to do. The first that occurs is reported.
_KINDS = (
    ("*.incomplete *.part *.crdownload *.aria2", "an unfinished download; finish it"),
    ("adapter_model.*", "the weights of an adapter such as LoRA's; merge it into its base model and convert that"),
    ("model-*-of-*.safetensors pytorch_model-*-of-*.bin", "a shard; download the index of the shards beside it"),
    ("consolidated*", "a file of Meta's or Mistral's format; download its params.json beside it"),
    ("*.onnx onnx/*.onnx openvino_model* *.engine *.mlpackage", f"a compiled model, {_RELEASE}"),
    ("flax_model* tf_model* *.h5 saved_model.pb weights*.npz *.nemo", f"another framework's format, {_RELEASE}"),
    ("global_step* *zero_pp_rank_* mp_rank_*", "a part of a DeepSpeed checkpoint; join it with zero_to_fp32.py"),
    ("*.distcp */*.distcp", "a part of an FSDP checkpoint; join it with `accelerate merge-weights`"),
    ("*.safetensors *.bin *.pt *.pth", "a file of another name; if it is the model, call it model.safetensors"),
    ("*/config.json */*/config.json */params.json", "a model in a folder of its own; name that folder"),
    ("tokenizer* preprocessor_config.json processor_config.json", "a tokenizer or processor; download the model"),
)


def instead(path: Path, missing: str) -> str:
    """A sentence on what a folder lacks, what it holds in its place, and what to do.

    Args:
        missing: what it lacks, beginning with `no` or `neither`.
    """
    if not any(path.iterdir()):
        return f"{path} holds {missing}: it is empty"
    weights = ("model.safetensors", "pytorch_model.bin")
    if not any((path / f"{name}{end}").exists() for name in weights for end in ("", ".index.json")):
        for patterns, what in _KINDS:
            if found := sorted(file for pattern in patterns.split() for file in path.glob(pattern)):
                return f"{path} holds {missing}, but {found[0].relative_to(path)}: {what}"
    return f"{path} holds {missing}; check that the download is complete"
