"""Lab 3, solved: what is free, for what it costs, and how long it will stay so."""

from potash.timing import Superblocks


class Mine:
    """Cost and benefit: a superblock with few valid pages is cheap, and an old one is likely to be
    cold, so that what is won of it lasts (Rosenblum and Ousterhout 1992, section 3.6)."""

    def victim(self, superblocks: Superblocks) -> int:
        now = max(superblocks.closed_at[number] for number in superblocks.candidates) + 1

        def worth(number: int) -> float:
            valid = superblocks.valid[number] / superblocks.pages
            age = now - superblocks.closed_at[number]
            return float(age * (1 - valid) / (1 + valid))

        return int(max(superblocks.candidates, key=worth))
