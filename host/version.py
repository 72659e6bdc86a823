"""The version that Colonnade tells its peers and its users."""

from importlib.metadata import version

VERSION = version("colonnade")
