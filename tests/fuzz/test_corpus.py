"""The corpus is replayed: every promise holds for each input that is in it, and a mutated connection changes nothing
for a good client. The judge itself can fail."""

from __future__ import annotations

from random import Random

import pytest

from tests.fuzz.connections import attack_http, attack_stdio
from tests.fuzz.explore import CORPUS, seeds
from tests.fuzz.mutations import mutate
from tests.fuzz.targets import TARGETS

INPUTS = [(target, file.name) for target in TARGETS for file in sorted((CORPUS / target).iterdir())]


@pytest.mark.parametrize(("target", "name"), INPUTS, ids=[f"{target}-{name}" for target, name in INPUTS])
def test_every_promise_holds_for_the_inputs_of_the_corpus(target: str, name: str) -> None:
    TARGETS[target]((CORPUS / target / name).read_bytes())


@pytest.mark.few(2)
@pytest.mark.parametrize("target", sorted(TARGETS))
def test_every_promise_holds_close_to_the_inputs_of_the_corpus(target: str) -> None:
    corpus = seeds(target)
    for number in range(100):
        random = Random(number)
        TARGETS[target](mutate(random.choice(corpus), random, corpus))


def test_the_same_number_makes_the_same_connection() -> None:
    corpus = seeds("http")
    assert mutate(corpus[0], Random("7/1"), corpus) == mutate(corpus[0], Random("7/1"), corpus)
    assert mutate(corpus[0], Random("7/1"), corpus) != mutate(corpus[0], Random("7/2"), corpus)


@pytest.mark.slow
def test_mutated_connections_and_lines_leave_the_host_and_its_good_client_alone() -> None:
    http1, http2 = (attack_http(200, 30, seed=1, http2=is_http2) for is_http2 in (False, True))
    over_stdio = attack_stdio(300, 30, seed=1)
    assert [outcome.faults for outcome in (http1, http2, over_stdio)] == [[], [], []]
    assert [outcome.tried for outcome in (http1, http2, over_stdio)] == [200, 200, 300]
