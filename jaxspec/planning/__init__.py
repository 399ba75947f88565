"""What decoding on chips that are not at hand would take: compiled for them, and reckoned from their data sheets."""
