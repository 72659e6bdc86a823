"""The official conformance suite, against Colonnade; and its schemas, for other runs."""
