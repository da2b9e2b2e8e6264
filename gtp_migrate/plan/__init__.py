"""What to change, where, and why.

`settings` takes stock: which entry of which file counts in which recipes. `spelling` says how a new value can be
written. `planner` decides, and says what needs a person. `changes` is what comes out. Nothing is read or
written but through the tree, and nothing after this decides anything.
"""
