"""The decoding loop (draft, verify, commit) and the interfaces of its strategies."""
