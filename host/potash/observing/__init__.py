"""How a running device is doing, for people and for what collects numbers."""
