"""Search inputs that break a promise of one target: `python -m tests.fuzz.explore TARGET --seconds N`.

With atheris the search is guided by coverage: an input that reaches a new branch of `host` or `config` is kept and
changed further. Where atheris cannot be installed, Hypothesis changes the inputs of the corpus. An input that breaks a
promise is written to `build/fuzz/`, and the exit status is 1; once the fault is mended, add the input to the corpus.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from random import Random

ROOT = Path(__file__).parents[2]
CORPUS = Path(__file__).parent / "corpus"
BUILD = ROOT / "build" / "fuzz"
LONGEST = 4096
"""Bytes of one input: faults of size are the business of `make attack`."""
SLOWEST = 20
"""Seconds that one input may take on a busy machine."""


def seeds(target: str) -> list[bytes]:
    """The inputs of the corpus for a target, in a fixed order."""
    return [file.read_bytes() for file in sorted((CORPUS / target).iterdir())]


def guided(target: str, seconds: int) -> None:
    """Search with atheris. It ends the process by itself: with status 0 when the time is over."""
    import atheris  # type: ignore[import-not-found,import-untyped,unused-ignore]  # it is optional

    with atheris.instrument_imports(include=["host", "config"]):
        from tests.fuzz.targets import TARGETS

    kept = BUILD / "kept" / target
    kept.mkdir(parents=True, exist_ok=True)
    limits = [f"-max_total_time={seconds}", f"-max_len={LONGEST}", f"-timeout={SLOWEST}", "-rss_limit_mb=2048"]
    places = [f"-artifact_prefix={BUILD}/{target}-", str(kept), str(CORPUS / target)]
    atheris.Setup([sys.argv[0], "-print_final_stats=1", "-verbosity=0", *limits, *places], TARGETS[target])
    atheris.Fuzz()


def unguided(target: str, seconds: int) -> None:
    """Search with Hypothesis, which also makes a found input smaller."""
    from hypothesis import HealthCheck, given, seed, settings
    from hypothesis import strategies as st

    from tests.fuzz.mutations import mutate
    from tests.fuzz.targets import TARGETS

    corpus = seeds(target)
    close = st.builds(
        lambda data, random: mutate(data, random, corpus)[:LONGEST],
        st.sampled_from(corpus),
        st.randoms(use_true_random=False),
    )
    tried = 0

    @settings(max_examples=1000, deadline=None, database=None, suppress_health_check=list(HealthCheck))
    @given(close | st.binary(max_size=200))
    def one_round(data: bytes) -> None:
        nonlocal tried
        tried += 1
        BUILD.joinpath(f"{target}-last").write_bytes(data)
        TARGETS[target](data)

    end = time.monotonic() + seconds
    while time.monotonic() < end:
        seed(Random().getrandbits(64))(one_round)()
    print(f"stat::number_of_executed_units: {tried}")


def explore(target: str, seconds: int) -> tuple[bool, int]:
    """Search in a process of its own. Returns whether every promise held, and how many inputs were tried."""
    BUILD.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-m", "tests.fuzz.explore", target, "--seconds", str(seconds)]
    log = BUILD / f"{target}.log"
    with log.open("wb") as output:
        status = subprocess.run(
            command, cwd=ROOT, stdout=output, stderr=subprocess.STDOUT, timeout=seconds + 120, check=False
        ).returncode
    tried = 0
    for line in log.read_text(errors="replace").splitlines():
        if "number_of_executed_units" in line:
            with suppress(ValueError):
                tried = int(line.rpartition(":")[2])
    return status == 0, tried


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("target", choices=sorted(path.name for path in CORPUS.iterdir() if path.name != "http"))
    parser.add_argument("--seconds", type=int, default=60)
    arguments = parser.parse_args()
    os.chdir(ROOT)
    BUILD.mkdir(parents=True, exist_ok=True)
    search = guided if find_spec("atheris") is not None else unguided
    search(arguments.target, arguments.seconds)


if __name__ == "__main__":
    main()
