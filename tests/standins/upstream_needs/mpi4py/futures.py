"""The one name that is imported."""


class MPICommExecutor:
    """Used by ranks over 0 only."""
