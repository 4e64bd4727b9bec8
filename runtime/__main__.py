"""`python -m refold` is the `refold` command."""

from refold.cli import main

if __name__ == "__main__":
    main()
