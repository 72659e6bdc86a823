#!/usr/bin/env bash
# A Brotli decompressor with a limit on its output says it accepts more input, and keeps most of the text to itself.
#
# Packages: PyPI brotli 1.2.1. Needs Python 3.11 with venv, 64 bits.
#
# Expected: `process(data, output_buffer_limit=...)` stops at the limit. Its documentation says to call it with empty
# input from then on until `can_accept_more_data()` returns True, and that False means that output has to be taken
# first. So after that loop all output for the input so far has been taken.
#
# Seen on 2026-11-28: `can_accept_more_data()` knows only of compressed bytes that have not been read. The decompressor
# often reads all of them at once, and has far more output than the limit: the answer is True, the loop ends at once,
# and what was taken is the beginning of the text, with no error. `is_finished()` tells it at the end of a whole
# text. In a stream that was flushed and goes on, both methods answer the same before and after the rest is taken: only
# a call with empty input that returns nothing tells that nothing is left. Input in small pieces that compresses little
# shows none of this. The limit here is the size of the first block of output, so that it is kept exactly.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
python3 -m venv venv
venv/bin/pip install --quiet --disable-pip-version-check brotli==1.2.1 2>/dev/null

cat >check.py <<'PY'
import brotli

LIMIT = 32752


def play(title: str, text: bytes, compressed: bytes, size: int) -> None:
    decompressor = brotli.Decompressor()
    taken = b""
    for start in range(0, len(compressed), size):
        taken += decompressor.process(compressed[start : start + size], output_buffer_limit=LIMIT)
        while not decompressor.can_accept_more_data():
            taken += decompressor.process(b"", output_buffer_limit=LIMIT)
    states = [(decompressor.can_accept_more_data(), decompressor.is_finished())]
    rest = b""
    while piece := decompressor.process(b"", output_buffer_limit=LIMIT):
        rest += piece
    states.append((decompressor.can_accept_more_data(), decompressor.is_finished()))
    assert taken + rest == text
    told = ", then ".join(f"accepts {accepts} finished {finished}" for accepts, finished in states)
    print(f"{title}: taken {len(taken)}, left {len(rest)}; {told}")


numbers = b"".join(b"%d\n" % number for number in range(40_000))
play("numbers, pieces of 64", numbers, brotli.compress(numbers), 64)
play("numbers, one piece", numbers, brotli.compress(numbers), 1_000_000)
lines = b"the same line\n" * 20_000
play("equal lines, pieces of 64", lines, brotli.compress(lines), 64)
compressor = brotli.Compressor()
flushed = compressor.process(lines) + compressor.flush()
play("equal lines, flushed", lines, flushed, 64)
PY
seen=$(venv/bin/python check.py)
echo "$seen"
[ "$seen" = "numbers, pieces of 64: taken 228890, left 0; accepts True finished True, then accepts True finished True
numbers, one piece: taken 32752, left 196138; accepts True finished False, then accepts True finished True
equal lines, pieces of 64: taken 32752, left 247248; accepts True finished False, then accepts True finished True
equal lines, flushed: taken 32752, left 247248; accepts True finished False, then accepts True finished False" ]
