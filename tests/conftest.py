"""Settings of all property tests: no time limit for an example, since a busy machine may be slow at any of them."""

from hypothesis import HealthCheck, settings

settings.register_profile("genrm-trio", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("genrm-trio")
