"""The only side effects: disk, processes, HTTP, GPU."""
