"""Verification rules, one file each."""

from jaxspec.rules.candidates import Candidates
from jaxspec.rules.greedy import Greedy
from jaxspec.rules.rejection_sampling import RejectionSampling

__all__ = ["Candidates", "Greedy", "RejectionSampling"]
