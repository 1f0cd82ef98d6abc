"""Tiled streams."""
