"""Predicts decoding on chips that are not available: compiled for them, and computed from their data sheets."""
