"""Home of `LoRARequest`."""
