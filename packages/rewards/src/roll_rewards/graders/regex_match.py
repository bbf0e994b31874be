"""The last match of a regular expression, computed here or in a child interpreter that ends in time.

A regular expression holds the interpreter lock until it is done, and an unlucky pair of pattern and
text takes exponential time. So the pattern grader runs this file as a script where that could happen:
request on standard input, answer on standard output, both JSON. It imports the standard library only.
"""

import json
import re
import signal
import sys


def last_match(pattern: str, text: str, *, full: bool, group: int | str) -> list[str | None]:
    """The last match as `[matched text, text of the group]`, empty when there is none.

    Args:
        pattern: A valid regular expression.
        text: Searched text.
        full: Whether the whole text must match, instead of a part of it.
        group: Number or name of a group of the pattern; 0 is the whole match.
    """
    compiled = re.compile(pattern)
    last = compiled.fullmatch(text) if full else None
    if not full:
        for match in compiled.finditer(text):
            last = match
    return [] if last is None else [last[0], last[group]]


def main() -> None:
    """Answer one request."""
    request = json.load(sys.stdin)
    # Processor time, so that a busy machine changes no verdict. The signal ends the process even in
    # the middle of a match, and also when the parent is gone.
    signal.setitimer(signal.ITIMER_VIRTUAL, request["timeout_s"])
    found = last_match(request["pattern"], request["text"], full=request["full"], group=request["group"])
    json.dump(found, sys.stdout)


if __name__ == "__main__":
    main()
