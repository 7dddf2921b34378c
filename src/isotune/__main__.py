"""`python -m isotune`."""

from isotune.cli import main

main()
