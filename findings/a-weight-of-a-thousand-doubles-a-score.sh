#!/usr/bin/env bash
# In SQLite's bm25(), one more tool that mentions a word outdoes any weight that the name of another tool has.
#
# Packages: PyPI apsw 3.54.1.0 (SQLite 3.54.1). Needs Python 3.11 with venv.
#
# Expected: with bm25(tools, 10, 1), a word in the name counts about ten times as much as one in the description, and
# with a weight of 1000 the name decides. A word that more tools mention counts a little less. In a catalog of a few
# tools, which a caller sees of a large one, the order changes as gently as in the large one.
#
# Seen on 2026-11-29: the weight multiplies how often a word occurs, and the score levels off with that number: from
# weight 1 to 1000 it doubles, and from 10 to 1000 it hardly changes. A word in at least half of the rows has an inverse
# document frequency of zero or less, in place of which FTS5 takes 0.000001. So the score of such a word is lost beside
# that of any rarer one. Of the rows, the whole counts: a word that is in one name only, but in half of the
# descriptions, is lost for the name as well. The usual variant, ln(1 + …), has no such step.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
python3 -m venv venv
venv/bin/pip install --quiet --disable-pip-version-check apsw==3.54.1.0 2>/dev/null

cat >check.py <<'PY'
import apsw

TOOLS = [
    ("issue_search", "Find tickets"),
    ("label_add", "Put a label on an issue"),
    ("branch_make", "Start a new branch"),
    ("file_write", "Write a new file"),
    ("user_list", "List all users"),
]
MORE = {"mentioned by 2 of 6": "Write a comment", "mentioned by 3 of 6": "Write a comment on an issue"}


def search(description: str, weight: int) -> list[tuple[str, float]]:
    database = apsw.Connection(":memory:")
    database.execute("CREATE VIRTUAL TABLE tools USING fts5(name, description)")
    database.executemany("INSERT INTO tools VALUES (?, ?)", [*TOOLS, ("comment_add", description)])
    query = f"SELECT name, bm25(tools, {weight}, 1) AS score FROM tools('issue OR new') ORDER BY score, rowid"
    return list(database.execute(query))


print(f"SQLite {apsw.sqlite_lib_version()}")
for title, description in MORE.items():
    for weight in (1, 10, 1000):
        found = [f"{name} {score:.2g}" for name, score in search(description, weight)]
        print(f"{title}, weight {weight}: {', '.join(found)}")
PY
seen=$(venv/bin/python check.py)
echo "$seen"
new='branch_make -0.57, file_write -0.57'
first='branch_make -0.59, file_write -0.59'
[ "$seen" = "SQLite 3.54.1
mentioned by 2 of 6, weight 1: issue_search -0.67, $new, label_add -0.5
mentioned by 2 of 6, weight 10: issue_search -1.2, $new, label_add -0.5
mentioned by 2 of 6, weight 1000: issue_search -1.3, $new, label_add -0.5
mentioned by 3 of 6, weight 1: $first, issue_search -1.2e-06, label_add -8.9e-07, comment_add -8.9e-07
mentioned by 3 of 6, weight 10: $first, issue_search -2e-06, label_add -8.9e-07, comment_add -8.9e-07
mentioned by 3 of 6, weight 1000: $first, issue_search -2.2e-06, label_add -8.9e-07, comment_add -8.9e-07" ]
