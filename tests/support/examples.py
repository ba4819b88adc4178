"""How many examples Hypothesis tries: fewer every day, the same ones each time, and all of them at random in `make
soak`.
"""

from __future__ import annotations

from hypothesis import settings

# Of a test that does not say how many it needs.
_DEFAULT = 100
_DAILY = 10


def register_profiles(name: str) -> None:
    """Register the profiles `daily` and `soak`, and load one of them.

    A busy machine makes an example slow, and nothing else: time limits would only make the tests flaky. So would
    examples that a change has nothing to do with.
    """
    settings.register_profile("daily", deadline=None, max_examples=_DAILY, derandomize=True)
    settings.register_profile("soak", deadline=None, max_examples=_DEFAULT)
    settings.load_profile(name)


def examples(count: int) -> settings:
    """Try so many examples in `make soak`, and every day the share of them that the profile allows."""
    return settings(max_examples=max(1, count * settings().max_examples // _DEFAULT))
