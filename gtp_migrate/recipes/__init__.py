"""Files → an immutable tree of recipes.

`discover`, `ignore` and `checkout` find the files, `glance` looks at one without parsing it, `survey` reads them all
once. `reader` parses a text into plain `values` that know where they stand, `layer` is what one file adds to a
recipe, `merge` puts layers together as OmegaConf does, `interpolation` is all that knows `${…}`, and `tree` holds it
all. Nothing here knows what to change.
"""
