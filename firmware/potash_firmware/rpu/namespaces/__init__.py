"""Namespaces: what one is, and which there are."""
