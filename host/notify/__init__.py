"""Telling people that calls wait for them, where no console and no terminal is open."""
