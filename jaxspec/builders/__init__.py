"""Tree builders, one file a tree."""
