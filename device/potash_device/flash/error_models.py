"""Published parameters of the raw bit error rate of flash, by name; `errors` has the formula."""

MODELS = {"tlc": (1.48e-3, 3.90e-10, 2.05, 6.28e-5, 0.14, 0.54, 3.73e-9, 0.33, 1.71)}
"""72-layer TLC, by Kim, Choi and Min, FAST 2019."""
