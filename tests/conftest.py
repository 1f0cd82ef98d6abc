"""What holds for all tests: no example may fail because the machine was busy."""

from hypothesis import settings

settings.register_profile("potash", deadline=None, print_blob=True)
settings.load_profile("potash")
