"""What users type for a method, and what it stands for."""
