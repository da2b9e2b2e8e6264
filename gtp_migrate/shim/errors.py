"""The shim's one error."""


class GTPReshardError(ValueError):
    """Weights sharded by GTP were about to be read into another topology, where they would be scrambled."""
