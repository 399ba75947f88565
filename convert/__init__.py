"""Checkpoints in and out: Hugging Face and Meta to jaxspec, and back to Hugging Face."""
