"""What this machine is (`facts`, `nvml`, `packages`) and what a target needs of it (`judge`)."""
