"""The slope that a soak is judged by: leaks show, what comes and goes does not."""

from random import Random

from chaos.growth import slope

_SECONDS = range(0, 1200, 2)


def test_a_leak_shows_below_what_comes_and_goes() -> None:
    random = Random(0)
    steady = [(float(second), 900 + random.choice([0, 25])) for second in _SECONDS]
    leaking = [(second, megabytes + 1.5 * second / 60) for second, megabytes in steady]
    assert abs(slope(steady)) < 0.1
    assert 1.4 < slope(leaking) < 1.6


def test_what_fills_in_the_first_third_is_warm_up() -> None:
    assert abs(slope([(float(second), min(second, 380.0)) for second in _SECONDS])) < 1e-6
