"""Megatron-Bridge's config and checkpoint-config code on a machine without a GPU: what the tests against the
real packages share. ``start()`` comes first, before Bridge is imported."""

from bridge_machine.transformer_engine import stand_in

__all__ = ["start"]


def start() -> None:
    """Make ``import megatron.bridge`` work, and let its YAML name the classes of these tests."""
    stand_in()
    from megatron.bridge.utils.instantiate_utils import register_allowed_target_prefix

    register_allowed_target_prefix("bridge_machine.")
