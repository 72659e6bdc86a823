"""The parts of a host for the person who runs it: the admin API, its two doors, and the web console. None of them can
define or change a server: they start what the configuration file says."""
