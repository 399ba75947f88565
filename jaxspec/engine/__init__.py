"""What a user holds: prompts in, text and statistics out."""
