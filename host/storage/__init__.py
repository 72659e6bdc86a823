"""The state that outlives the process: the state directory, and the database in it."""
