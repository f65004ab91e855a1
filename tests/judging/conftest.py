"""Settings of the property tests here: no time limit per example, since several may share one busy machine."""

from hypothesis import settings

settings.register_profile("judging", deadline=None)
settings.load_profile("judging")
