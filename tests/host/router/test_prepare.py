"""The decisions on the way of a request, as tables, and driven against servers that do what they like."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from host.router.prepare import (
    LEASED,
    MAX_ATTEMPTS,
    MAX_SENT,
    MAX_START_WAITS,
    READY,
    RESOLVED,
    STARTING,
    UNLEASED,
    UNRESOLVED,
    UNSENT,
    CallFailure,
    Known,
    Past,
    Reached,
    Recovery,
    Sending,
    Sent,
    Setback,
    Step,
    after_failure,
    next_sending,
    next_step,
)

UNLISTED = Known(is_listed=False)
MISSING = Known(is_missing=True)
OLD = Known(is_old=True)
UNREAD = Known(is_unread=True)
UNREAD_WITHOUT_LOGIN = Known(is_unread=True, needs_login=True)
EXHAUSTED = Past(is_resolved=True, attempts=MAX_ATTEMPTS)
STARTED_OFTEN = Past(is_resolved=True, starts=MAX_START_WAITS)
LISTED = Past(waited_listed=True)


@pytest.mark.parametrize(
    ("known", "past", "step"),
    [
        (READY, UNRESOLVED, Step.ATTEMPT),
        (READY, RESOLVED, Step.ATTEMPT),
        (UNLISTED, UNRESOLVED, Step.WAIT_LISTED),
        (Known(is_listed=False, is_missing=True, is_starting=True), UNRESOLVED, Step.WAIT_LISTED),
        (UNLISTED, LISTED, Step.ATTEMPT),
        (MISSING, UNRESOLVED, Step.REREAD),
        (MISSING, LISTED, Step.REREAD),
        (OLD, UNRESOLVED, Step.REREAD),
        (Known(is_old=True, is_starting=True), UNRESOLVED, Step.REREAD),
        (UNLISTED, RESOLVED, Step.ATTEMPT),
        (MISSING, RESOLVED, Step.ATTEMPT),
        (OLD, RESOLVED, Step.ATTEMPT),
        (STARTING, UNRESOLVED, Step.WAIT_STARTED),
        (STARTING, RESOLVED, Step.WAIT_STARTED),
        (STARTING, STARTED_OFTEN, Step.REFUSE_CHANGING),
        (READY, STARTED_OFTEN, Step.ATTEMPT),
        (UNREAD, RESOLVED, Step.REFUSE_UNREAD),
        (UNREAD_WITHOUT_LOGIN, RESOLVED, Step.OFFER_LOGIN),
        (READY, EXHAUSTED, Step.REFUSE_CHANGING),
        (STARTING, EXHAUSTED, Step.REFUSE_CHANGING),
        (READY, RESOLVED.after_attempt(Setback.OTHER_ERA), Step.WAIT_READ),
        (STARTING, RESOLVED.after_attempt(Setback.NO_LOGIN), Step.OFFER_LOGIN),
        (READY, Past(attempts=MAX_ATTEMPTS, setback=Setback.OTHER_ERA), Step.WAIT_READ),
    ],
)
def test_the_next_step_of_a_request_that_is_not_admitted(known: Known, past: Past, step: Step) -> None:
    assert next_step(known, past) is step


def test_a_wait_for_lists_is_not_repeated_and_one_for_a_start_or_a_login_counts() -> None:
    assert UNRESOLVED.after(Step.WAIT_LISTED) == LISTED
    assert LISTED.after(Step.REREAD) == RESOLVED
    assert UNRESOLVED.after(Step.WAIT_STARTED) == Past(is_resolved=True, starts=1)
    failed = Past(is_resolved=True, starts=2).after_attempt(Setback.NO_LOGIN)
    assert failed == Past(is_resolved=True, attempts=1, setback=Setback.NO_LOGIN)
    assert failed.after(Step.OFFER_LOGIN) == Past(is_resolved=True, attempts=1)
    assert RESOLVED.after(Step.OFFER_LOGIN) == Past(is_resolved=True, attempts=1), "there was no attempt that counted"


@pytest.mark.parametrize(
    ("known", "past", "step"),
    [
        (UNLEASED, UNSENT, Sending.LEASE),
        (Reached(is_starting=True), UNSENT, Sending.WAIT_STARTED),
        (Reached(is_starting=True, is_old=True), UNSENT, Sending.WAIT_STARTED),
        (Reached(is_starting=True), Sent(starts=MAX_START_WAITS), Sending.REFUSE_CHANGING),
        (Reached(is_old=True), UNSENT, Sending.REREAD),
        (Reached(is_old=True), Sent(was_reread=True), Sending.LEASE),
        (Reached(is_old=True), Sent(times=1), Sending.LEASE),
        (LEASED, UNSENT, Sending.SEND),
        (LEASED, Sent(times=1), Sending.SEND),
        (Reached(is_leased=True, is_other_era=True), UNSENT, Sending.RESOLVE_AGAIN),
        (Reached(is_leased=True, is_other_era=True, is_incapable=True), Sent(times=1), Sending.RESOLVE_AGAIN),
        (Reached(is_leased=True, is_incapable=True), UNSENT, Sending.REFUSE_MISSING),
        (Reached(is_leased=True, is_incapable=True), Sent(times=1), Sending.SEND),
    ],
)
def test_the_next_step_of_an_admitted_request(known: Reached, past: Sent, step: Sending) -> None:
    assert next_sending(known, past) is step


@pytest.mark.parametrize(
    ("failure", "times", "retries", "recovery"),
    [
        (CallFailure.SESSION_LOST, 1, False, Recovery.REOPEN),
        (CallFailure.SESSION_LOST, 1, True, Recovery.REOPEN),
        (CallFailure.SESSION_LOST, 2, False, Recovery.NONE),
        (CallFailure.LOGIN_LOST, 1, False, Recovery.RENEW),
        (CallFailure.LOGIN_LOST, 2, True, Recovery.RENEW),
        (CallFailure.URL_REQUIRED, 1, False, Recovery.REFUSE_PAGES),
        (CallFailure.URL_REQUIRED, 2, True, Recovery.SHOW_PAGES),
        (CallFailure.REFUSED, 1, True, Recovery.NONE),
    ],
)
def test_what_can_be_done_about_a_failure(failure: CallFailure, times: int, retries: bool, recovery: Recovery) -> None:
    assert after_failure(failure, Sent(times=times), retries=retries) is recovery


# Servers that do what they like

KNOWN = st.builds(Known, *[st.booleans()] * 6)
BEFORE_LEASE = st.builds(Reached, st.booleans(), st.booleans())
AFTER_LEASE = st.builds(Reached, st.just(False), st.just(False), st.just(True), st.booleans(), st.booleans())
OUTCOMES = st.none() | st.sampled_from(CallFailure)
"""None: an answer."""
BOUND = 2 + (MAX_ATTEMPTS + 1) * (MAX_START_WAITS + 2)
"""Steps of a request outside its attempts, at most."""
ATTEMPT_BOUND = MAX_START_WAITS + 1 + 3 * MAX_SENT


@dataclass
class Driver:
    """One request, without I/O: all that is seen is what Hypothesis says."""

    data: st.DataObject
    sent: list[CallFailure | None] = field(default_factory=list)
    """How each sending ended, of all attempts."""

    def drive(self, past: Past) -> None:
        steps = 0
        while True:
            steps += 1
            assert steps <= BOUND + MAX_ATTEMPTS, "it always ends"
            known = self.data.draw(KNOWN)
            step = next_step(known, past)
            if step in (Step.REFUSE_UNREAD, Step.REFUSE_CHANGING):
                return
            if step is not Step.ATTEMPT:
                past = past.after(step)
                continue
            assert not known.is_starting
            assert not known.is_unread
            setback = self.attempt()
            if setback is None:
                return
            past = past.after_attempt(setback)

    def attempt(self) -> Setback | None:
        """One attempt, with the permit that it has; None once the request has its answer, or its error."""
        past, steps, leased = UNSENT, 0, False
        while True:
            steps += 1
            assert steps <= ATTEMPT_BOUND, "it always ends"
            known = self.data.draw(AFTER_LEASE if leased else BEFORE_LEASE)
            step = next_sending(known, past)
            if step is Sending.LEASE:
                assert not known.is_starting
                leased = True
            elif step is Sending.SEND:
                assert not known.is_other_era
                assert past.times < MAX_SENT
                assert past.times == 0 or self.sent[-1] is CallFailure.SESSION_LOST, (
                    "sent again only if it was not processed"
                )
                past, leased = past.after(step), False
                outcome = self.data.draw(OUTCOMES)
                self.sent.append(outcome)
                if outcome is None:
                    return None
                recovery = after_failure(outcome, past, retries=self.data.draw(st.booleans()))
                if recovery is Recovery.RENEW:
                    return Setback.NO_LOGIN
                if recovery is not Recovery.REOPEN:
                    return None
            elif step is Sending.RESOLVE_AGAIN:
                return Setback.OTHER_ERA
            elif step in (Sending.REFUSE_MISSING, Sending.REFUSE_CHANGING):
                return None
            else:
                past = past.after(step)


@given(st.data(), st.sampled_from([UNRESOLVED, RESOLVED]))
def test_a_request_ends_and_is_processed_at_most_once(data: st.DataObject, past: Past) -> None:
    driver = Driver(data)
    driver.drive(past)
    assert len(driver.sent) <= MAX_ATTEMPTS * MAX_SENT
    not_processed = (CallFailure.SESSION_LOST, CallFailure.LOGIN_LOST)
    assert all(outcome in not_processed for outcome in driver.sent[:-1])


@given(
    KNOWN, st.builds(Past, st.booleans(), st.booleans(), st.integers(0, MAX_START_WAITS), st.integers(0, MAX_ATTEMPTS))
)
def test_nothing_is_attempted_while_its_server_starts_or_with_a_remembered_definition(known: Known, past: Past) -> None:
    if next_step(known, past) is Step.ATTEMPT:
        assert not known.is_starting
        assert not known.is_unread
        assert past.attempts < MAX_ATTEMPTS
