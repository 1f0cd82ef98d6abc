"""The board: what a Potash drive is made of before any firmware runs on it."""
