"""The audit: every decision and its outcome, in files that show whether they were changed."""
