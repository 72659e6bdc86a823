"""The error of everything about OAuth."""

from __future__ import annotations

from collections.abc import Iterable

from host.sanitize import quoted, with_said


class OAuthProblem(Exception):
    """A login, or a request to an authorization server, failed. The text is in our own words, without secrets, and
    without texts of the other side beyond a plain URL or a known code.

    `said`: what the other side wrote about it, for people only. It is as it came until `quote`."""

    def __init__(self, why: str, said: str = "") -> None:
        super().__init__(why)
        self.said = said

    def quote(self, secrets: Iterable[str | None]) -> None:
        """Have what the other side wrote marked as theirs and cut, without these secrets (`sanitize.quoted`)."""
        self.said = quoted(self.said, lambda text: without(text, secrets), "the issuer")

    @property
    def told(self) -> str:
        """The text for people, once it is quoted."""
        return with_said(str(self), self.said)


def told(problem: BaseException) -> str:
    """The text of an error for people; that of a login has what the other side wrote."""
    return problem.told if isinstance(problem, OAuthProblem) else str(problem)


def without(text: str, secrets: Iterable[str | None]) -> str:
    """The text without any of these secrets."""
    for secret in sorted(filter(None, secrets), key=len, reverse=True):
        text = text.replace(secret, "***")
    return text
