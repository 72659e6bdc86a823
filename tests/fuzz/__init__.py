"""Fuzzing: hostile bytes for every parser, and hostile connections for a running host. `make fuzz` runs it.

`targets` has one function per parser, which raises if an input breaks a promise; `explore` searches inputs for one of
them; `connections` attacks a running host; `run` does all of it and judges. `corpus/` holds the inputs to start from,
and every input that once broke a promise; `test_corpus.py` replays it with the other tests.
"""
