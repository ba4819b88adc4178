"""Unit tests need no server, no Spark session and no Java."""

from hypothesis import settings

# A busy machine makes an example slow, and nothing else: time limits would only make the tests flaky.
settings.register_profile("unit", deadline=None)
settings.load_profile("unit")
