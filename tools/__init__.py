"""What `make` runs over the tree: numbers, planted mistakes, the spec. Never shipped, never imported by the library."""
