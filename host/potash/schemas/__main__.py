"""`python -m potash.schemas > docs/json.md`."""

from potash.schemas import page

print(page(), end="")
