"""Properties run without a deadline, which busy machines miss, and leave nothing on disk."""

from hypothesis import settings

settings.register_profile("recipe", deadline=None, database=None)
settings.load_profile("recipe")
