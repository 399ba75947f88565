"""The HTML report of benchmarks: one file that opens from disk."""
