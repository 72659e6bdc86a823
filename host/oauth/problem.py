"""The error of everything about OAuth."""

from __future__ import annotations


class OAuthProblem(Exception):
    """A login, or a request to an authorization server, failed. The text is for people: in our own words, without
    secrets, and without texts of the other side beyond a plain URL or a code of RFC 6749."""
