"""`python -m potash.cli` is `potash`."""

from potash.cli.main import main

main()
