"""Measuring: prompt files, metrics, the benchmark runner."""
