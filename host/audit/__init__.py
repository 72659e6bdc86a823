"""The audit: every decision and its outcome, in files that show whether somebody changed them."""
