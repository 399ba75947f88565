"""Benchmarks: prompt files, metrics, and the runner."""
