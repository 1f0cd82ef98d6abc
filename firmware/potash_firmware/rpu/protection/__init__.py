"""End-to-end data protection: the guard, the tags and their checks."""
