"""One trainer with exact resume, and what surrounds it."""
