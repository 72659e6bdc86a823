"""What tests are made of: scripted servers and clients over memory links, and little real servers."""
