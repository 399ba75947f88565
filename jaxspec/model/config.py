"""The shape of a target: frozen, hashable dataclasses that jitted functions take as static arguments."""

import dataclasses
import typing
from typing import Any, Literal

from jaxspec.host.arguments import integer, number

RopeScaling = Literal["none", "linear", "dynamic", "llama3"]
MOST_LAYERS = 1024  # a file with more is damaged, and tracing so many layers would take minutes
LARGEST = 2**31 - 1


@dataclasses.dataclass(frozen=True)
class Rope:
    """Rotary position embedding (RoFormer, arXiv:2104.09864) and how its range was extended.

    Attributes:
        theta: base of the geometric series of wavelengths.
        scaling: `linear` divides every frequency by `factor`; `llama3` divides the low frequencies and blends between
            `low_freq_factor` and `high_freq_factor`; `dynamic` changes nothing up to `original_length`. Longer texts
            are rejected, because the angles would depend on the longest row of a batch.
        original_length: positions of the model's first training; used by `dynamic` and `llama3`. With `linear` it is
            only kept for export; 0: not known.
    """

    theta: float = 10000.0
    scaling: RopeScaling = "none"
    factor: float = 1.0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    original_length: int = 0

    def __post_init__(self) -> None:
        if self.scaling not in typing.get_args(RopeScaling):
            raise ValueError(f"rope scaling must be {', '.join(typing.get_args(RopeScaling))}, not {self.scaling!r}")
        for name in ("theta", "factor", "low_freq_factor", "high_freq_factor"):
            if (value := number(f"rope {name}", getattr(self, name))) <= 0:
                raise ValueError(f"rope {name} must be above 0, not {value}")
        if self.high_freq_factor <= self.low_freq_factor:
            factors = f"{self.high_freq_factor} and {self.low_freq_factor}"
            raise ValueError(f"rope high_freq_factor must be above low_freq_factor, not {factors}")
        integer("rope original_length", self.original_length, 0)


@dataclasses.dataclass(frozen=True)
class LlamaConfig:
    """Shape of a LLaMA-like decoder.

    Attributes:
        vocab_size: rows of the embedding and columns of the LM head.
        hidden_size: width of the residual stream, D.
        intermediate_size: width of the gated MLP.
        num_heads, num_kv_heads: heads of queries, and of keys and values, which equally many query heads share (GQA).
        head_dim: width of one head, H; not always hidden_size / num_heads.
        norm_eps: epsilon of every RMSNorm.
        max_length: most positions that the checkpoint supports.
        tie_embeddings: the LM head is the transposed embedding.
        qk_norm: each head's query and key pass an RMSNorm before rotation (Qwen3).
        num_experts: MLPs in each layer's mixture of experts, each `intermediate_size` wide; 0: one MLP and no mixture.
        experts_per_token: experts that the router selects for each token.
    """

    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    norm_eps: float = 1e-5
    max_length: int = 2048
    rope: Rope = Rope()
    tie_embeddings: bool = False
    qkv_bias: bool = False
    output_bias: bool = False
    mlp_bias: bool = False
    qk_norm: bool = False
    num_experts: int = 0
    experts_per_token: int = 0

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            name, value = field.name, getattr(self, field.name)
            if field.type is int:
                integer(name, value, 0 if "expert" in name else 1, MOST_LAYERS if name == "num_layers" else LARGEST)
            if field.type is bool and not isinstance(value, bool):
                raise ValueError(f"{name} must be true or false, not {value!r}")
        if (epsilon := number("norm_eps", self.norm_eps)) <= 0:
            raise ValueError(f"norm_eps must be above 0, not {epsilon}")
        if self.num_heads % self.num_kv_heads:
            raise ValueError(f"num_heads {self.num_heads} is not a multiple of num_kv_heads {self.num_kv_heads}")
        if self.head_dim % 2:
            raise ValueError(f"head_dim must be even for rotary embeddings, not {self.head_dim}")
        if self.num_experts and not 0 < self.experts_per_token <= self.num_experts:
            raise ValueError(f"experts_per_token must be from 1 to {self.num_experts}, not {self.experts_per_token}")

    @property
    def usable_length(self) -> int:
        """Most positions of a text: `max_length`, or with dynamic scaling at most `original_length`."""
        return min(self.max_length, self.rope.original_length) if self.rope.scaling == "dynamic" else self.max_length

    @property
    def without_experts(self) -> "LlamaConfig":
        """The same shape with one MLP in each layer."""
        return dataclasses.replace(self, num_experts=0, experts_per_token=0)

    def bare_layers(self, count: int, *, qk_norm: bool) -> "LlamaConfig":
        """`count` layers of this width for a head: without experts, biases and tied embeddings."""
        # Their rope has no scaling, because published configs of heads have no field for it.
        return dataclasses.replace(
            self.without_experts,
            num_layers=count, rope=Rope(theta=self.rope.theta), tie_embeddings=False,
            qkv_bias=False, output_bias=False, mlp_bias=False, qk_norm=qk_norm,
        )  # fmt: skip

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> "LlamaConfig":
        """The fields read from JSON. Raises ValueError naming a missing or unknown key."""
        if wrong := sorted(values.keys() ^ {field.name for field in dataclasses.fields(cls)}):
            raise ValueError(f"model setting {wrong[0]!r} is {'unknown' if wrong[0] in values else 'missing'}")
        return cls(**{**values, "rope": Rope(**values["rope"])})
