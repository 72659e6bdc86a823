"""Where a person sees what a host does and decides: the admin API, its two doors, and the web console. None of it can
define, change or start a server."""
