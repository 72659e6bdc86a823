"""The sandbox of a server's program: what it is given (plan.py), and the means that hold it, one file for each."""
