"""A page of benchmarks: one HTML file that opens from disk."""
