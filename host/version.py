"""The version of Colonnade, for peers and users."""

VERSION = "0.1.0"
