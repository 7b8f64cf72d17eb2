"""`python -m calibrant.cli` is the console script."""

from calibrant.cli import main

main()
