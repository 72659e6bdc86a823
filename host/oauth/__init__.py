"""OAuth as a client of authorization servers: documents, requests and checks, without I/O, clock or event loop.

The sources are the specification's pages on authorization, and the RFCs that they name. `host.wire.issuer_http` sends
the requests, `host.upstream.login` and `host.upstream.credentials` decide when.
"""
