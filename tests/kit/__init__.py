"""Parts of tests: scripted servers and clients over memory links, and little real servers."""
