"""The tests, in folders by what they need: nothing, servers, or the examples and documents."""

import pytest

# What helpers assert is explained as what tests assert.
pytest.register_assert_rewrite("tests.support")
