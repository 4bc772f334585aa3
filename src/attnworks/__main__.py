"""`python -m attnworks`."""

from attnworks.cli import main

if __name__ == "__main__":
    main()
