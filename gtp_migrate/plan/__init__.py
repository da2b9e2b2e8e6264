"""What to change, where, and why: a pure function of the stock and of what the proof has asked for.

`stock` takes stock: which entry of which file counts for which models of which runs. `conflicts` finds old and new
settings that disagree, `numbers` works out a new value and `spelling` how it can be written, `own` gives a model a
number of its own. `planner` puts it together; `changes` is what comes out, `needs` what the proof may ask for,
`refused` why a setting is left.
"""
