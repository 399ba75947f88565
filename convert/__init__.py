"""Conversion between jaxspec's checkpoints and other formats."""
