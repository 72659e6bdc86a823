"""The whole host under any order of events."""
