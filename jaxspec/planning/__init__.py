"""What decoding on chips that are not at hand would take: compiled for them, and computed from their data sheets."""
