"""Who may reach what: the judge is pure, the gate makes permits, and nothing reaches a server without one."""
