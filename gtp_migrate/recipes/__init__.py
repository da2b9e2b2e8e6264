"""A tree of recipe files, and what each recipe really sets.

`discover` finds the files, `glance` looks at one without parsing it, `layer` parses one and keeps what can
reach a `megatron_cfg`, `tree` follows `defaults:`, and `resolve` merges the layers of a recipe with
OmegaConf, as NeMo-RL does. Nothing here knows what to change.
"""
