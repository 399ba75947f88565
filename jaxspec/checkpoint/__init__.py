"""Checkpoints and heads: their files, and loading them."""
