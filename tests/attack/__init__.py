"""Hostile servers and clients beside a good one: `make attack`, or `.venv/bin/python -m tests.attack`.

    figures.py        percentiles, criteria, the table; pure
    measured_host.py  `colonnade serve` with a processor clock around each pass of its loop
    processes.py      the host, the good client and the hostile clients as child processes
    server.py         the good server and all hostile servers; a script
    good_client.py    steady calls, each timed from the moment at which it was due; a script
    hostile_client.py what hostile clients do; a script
    attacks.py        the attacks on fairness and memory, as a table
    boundaries.py     the attacks on boundaries, and what must be unreachable in each
    phases.py         the three phases of an attack, and their order

docs/contributing.md says how to run it and how to read what it prints.
"""
