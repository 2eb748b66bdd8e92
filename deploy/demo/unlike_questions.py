#!/usr/bin/env python3
"""Questions over text that no calibration prompt looks like, as JSON lines: passages of a plain-text file, each with a
question of the demo's own set. No answer is right; what counts is how far a format's next-token distributions move.

    deploy/demo/unlike_questions.py LICENSE > unlike.jsonl
"""

import json
import sys
from pathlib import Path

WORDS = 120  # of a passage
STRIDE = 12


def main() -> None:
    if len(sys.argv) != 2 or sys.argv[1] in ("-h", "--help"):
        sys.exit(__doc__)
    words = Path(sys.argv[1]).read_text().split()
    own = Path(__file__).with_name("questions.jsonl").read_text().splitlines()
    for i, start in enumerate(range(0, len(words) - WORDS, STRIDE)):
        question = json.loads(own[i % len(own)])
        print(json.dumps({"context": " ".join(words[start : start + WORDS]), "question": question["question"],
                          "answers": question["answers"], "kind": "unlike"}))


if __name__ == "__main__":
    main()
