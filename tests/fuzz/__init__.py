"""A fuzzer of the command line: `python -m tests.fuzz --cases 10000 --seed 0`.

A case is a few files in a folder of its own, a command, and what must come of it (`oracle`):

    good      all legal variants of files of predictions: exit 0, and numbers that NumPy finds too
    bad       the same with one named fault: exit 2
    damaged   the same with bytes changed: exit 0 or 2
    folder    a training run, a fitted map or a rule with one file changed: exit 2, or 0 and its numbers as before

and of all: no traceback, one line on stderr, and no file touched that is not an output. Case K of a seed is always the
same; `--case K` runs it alone and keeps its files.
"""
