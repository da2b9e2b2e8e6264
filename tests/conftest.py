"""For all tests: how much Hypothesis tries, and that two runs of the same tests try the same."""

from __future__ import annotations

import os
import signal

from hypothesis import HealthCheck, settings

# All health checks are on but the one that looks at the clock: a slow machine is no fault of a test.
_COMMON = {"deadline": None, "print_blob": True, "suppress_health_check": [HealthCheck.too_slow]}

# What README and CI run: the same examples each time, so that a failure is nobody's bad luck.
settings.register_profile("fixed", derandomize=True, **_COMMON)
# `pytest --hypothesis-profile=search`: fresh ones, which are kept where they fail.
settings.register_profile("search", **_COMMON)
settings.load_profile("fixed")

# A shell that runs the tests in the background has its children ignore interruptions, and theirs as well.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

#: How many times the usual number of examples to try.
MORE = int(os.environ.get("GTP_MIGRATE_EXAMPLES", "1"))
