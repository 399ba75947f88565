"""Checkpoints and heads on disk, and from there into memory."""
