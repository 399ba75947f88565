"""Text as windows of tokens for training."""
