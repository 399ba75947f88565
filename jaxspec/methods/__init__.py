"""Method names and what they mean."""
