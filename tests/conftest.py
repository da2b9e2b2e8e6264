"""For all tests: how much Hypothesis tries, and that two runs of the same tests try the same."""

from __future__ import annotations

import os

from hypothesis import settings

# What README and CI run: the same examples each time, so that a failure is nobody's bad luck.
settings.register_profile("default", deadline=None, derandomize=True, print_blob=True)
# pytest --hypothesis-profile=search: fresh ones, many more of them; the seed stands at the end of a failure.
settings.register_profile("search", deadline=None, derandomize=False, print_blob=True)
settings.load_profile("default")

#: How many times the usual number of examples to try.
MORE = int(os.environ.get("GTP_MIGRATE_EXAMPLES", "1"))
