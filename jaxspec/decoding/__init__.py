"""The loop: draft, verify, commit; and what it asks of strategies."""
