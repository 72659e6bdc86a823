"""Where a person sees what goes on and decides: the web console, and the socket of the command line. Neither can
define, change or start a server."""
