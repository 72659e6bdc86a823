"""Consent: rules, approvals of definitions, confirmations, grants and limits. The gate combines them; nothing is sent
to a server without one of its permits."""
