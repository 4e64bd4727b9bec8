"""`python -m refold`, and the `refold` command."""

import sys


def main() -> None:
    """Run the command; Ctrl-C while it is still being loaded ends it without a word."""
    try:
        from refold.commands.cli import main as run
        from refold.commands.execution import EXIT_INTERRUPTED
    except KeyboardInterrupt:
        sys.exit(130)
    try:
        run()
    except KeyboardInterrupt:
        sys.exit(EXIT_INTERRUPTED)


if __name__ == "__main__":
    main()
