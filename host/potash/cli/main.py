"""The console script's entry: as little as possible before an interrupt can be answered."""

import sys


def main() -> None:
    """Run the command line and end with its exit code."""
    try:
        from potash.cli.app import run_app

        code = run_app(sys.argv[1:])
    except KeyboardInterrupt:
        print("potash: interrupted", file=sys.stderr)
        code = 130
    sys.exit(code)


if __name__ == "__main__":
    main()
