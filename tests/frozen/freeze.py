"""Write the current outputs of the cases to `frozen.json`.

    python -m tests.frozen.freeze                 freeze all cases
    python -m tests.frozen.freeze 'method/*'      freeze the cases with matching names
    python -m tests.frozen.freeze --words         accept changed words; fail if a number differs

Run it with `PYTHONPATH=src` when outputs are meant to change, and commit the file together with the change that caused
it.
"""

from __future__ import annotations

import argparse
import fnmatch
import sys
import time
import traceback
from collections.abc import Sequence
from typing import Any

from tests.frozen.cases import CASES, outputs_of
from tests.frozen.recorded import FILE, differences, machine, plain, read, write


def main(argv: Sequence[str] | None = None) -> int:
    """Freeze the chosen cases.

    The exit code is 1 if `--words` finds a changed number, and 2 if a case fails or the file was frozen on another
    machine.
    """
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("patterns", nargs="*", metavar="CASE", help="names of cases; * matches any characters")
    parser.add_argument("--words", action="store_true", help="accept changed words, and fail if a number differs")
    args = parser.parse_args(argv)
    patterns = args.patterns or ["*"]
    chosen = [name for name in CASES if any(fnmatch.fnmatch(name, pattern) for pattern in patterns)]
    if not chosen:
        parser.error(f"no case is called {' or '.join(patterns)}: the names are {', '.join(CASES)}")
    known = read() if FILE.exists() else {"machine": machine(), "cases": {}}
    kept = {name: outputs for name, outputs in known["cases"].items() if name in CASES}
    if known["machine"] != machine() and (args.words or set(kept) - set(chosen)):
        print(f"frozen on another machine, {known['machine']}: freeze all cases here first", file=sys.stderr)
        return 2
    found, failed, numbers = dict(kept), [], 0
    for name in chosen:
        started = time.process_time()
        try:
            outputs: Any = plain(outputs_of(name))
        except Exception:
            traceback.print_exc()
            failed.append(name)
            continue
        changed = list(differences(kept.get(name, {}), outputs, name, exact=True))
        for one in changed if name in kept else ():
            print(one)
        numbers += sum(not one.words for one in changed)
        found[name] = outputs
        print(f"{time.process_time() - started:6.2f} s  {name}")
    if failed:
        print(f"{len(failed)} cases failed, and nothing was written: {', '.join(failed)}", file=sys.stderr)
        return 2
    if args.words and numbers:
        print(f"{numbers} numbers differ: nothing was written", file=sys.stderr)
        return 1
    write(found)
    print(f"{len(chosen)} cases, {FILE.stat().st_size / 1000:.0f} kB in {FILE}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
