"""The history: an index of the calls in the audit, for searches. It may be deleted: it is built again."""
