"""Written from the formats' definitions only; imports nothing of engineroom."""
