"""The version of Colonnade, for peers and users."""

from importlib.metadata import version

VERSION = version("colonnade")
