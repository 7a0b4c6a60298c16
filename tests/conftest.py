"""Hypothesis: the same examples each time; `HYPOTHESIS_PROFILE=deep` looks further, and elsewhere each time."""

import os

from hypothesis import HealthCheck, Phase, settings

SLOW = (HealthCheck.too_slow, HealthCheck.data_too_large)

settings.register_profile("quick", deadline=None, derandomize=True, suppress_health_check=SLOW)
settings.register_profile(
    "deep", deadline=None, max_examples=3_000, stateful_step_count=80, print_blob=True, suppress_health_check=SLOW
)
# With a fault planted it is enough that a test fails: minutes would go into the smallest example of it.
settings.register_profile("planted", settings.get_profile("quick"), phases=(Phase.explicit, Phase.generate))
settings.load_profile("planted" if "CLEW_FAULT" in os.environ else os.environ.get("HYPOTHESIS_PROFILE", "quick"))
