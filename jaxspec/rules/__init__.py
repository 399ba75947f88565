"""Verification rules, one file each."""

from jaxspec.rules.greedy import Greedy
from jaxspec.rules.gumbel_coupling import GumbelCoupling
from jaxspec.rules.rejection_sampling import RejectionSampling

__all__ = ["Greedy", "GumbelCoupling", "RejectionSampling"]
