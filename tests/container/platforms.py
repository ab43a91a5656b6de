"""Runs the cells and the situations, and holds docs/platforms.md to them.

The document's parts between `<!-- begin NAME -->` and `<!-- end NAME -->` come from here. `matrix`,
`situations` and `deployments` must be word for word what this run found; `figures` are measurements: sizes
are nearly compared (figures.py says how nearly), times are bounded by the noise of a machine. --update
writes them all, `--only figures --update` these alone.
"""
import argparse
import atexit
import os
import re
import sys

import deployments
import figures
import matrix
import runtimes
import situations


def section(text, name):
    found = re.search(r"<!-- begin %s -->\n(.*?)<!-- end %s -->" % (name, name), text, re.S)
    if found is None:
        sys.exit("platforms.py: the document has no section '%s'" % name)
    return found


def replaced(text, name, lines):
    found = section(text, name)
    return text[:found.start(1)] + "\n" + "\n".join(lines) + "\n\n" + text[found.end(1):]


def differences(text, name, lines):
    """Rows of this run that the document does not have, and the document's that this run contradicts."""
    said = {line for line in section(text, name).group(1).splitlines() if line.startswith("|")}
    found = [line for line in lines if line.startswith("|")]
    out = ["+ %s" % line for line in found if "not run" not in line and line not in said]
    if not any("not run" in line for line in found):
        out += ["- %s" % line for line in sorted(said - set(found))]
    return out


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--prefix", required=True)
    parser.add_argument("--work", required=True)
    parser.add_argument("--document", required=True)
    parser.add_argument("--samples", required=True)
    parser.add_argument("--root", action="append", default=[])
    parser.add_argument("--missing", action="append", default=[])
    parser.add_argument("--update", action="store_true")
    parser.add_argument("--only", choices=("matrix", "situations", "deployments", "figures"))
    options = parser.parse_args()

    def wanted(part):
        return options.only in (None, part)

    missing = list(options.missing)
    roots = dict(pair.split("=", 1) for pair in options.root)
    bench = matrix.Bench(options.prefix, options.work)
    matrix.prepare(bench)
    usable = []
    for kind in runtimes.ALL:
        runtime = kind(options.work)
        atexit.register(runtime.close)
        why = runtime.missing()
        if why is None:
            usable.append(runtime)
        else:
            missing.append("%s: %s" % (runtime.name, why))
    failures, found = [], {}
    if wanted("matrix"):
        table, bad = matrix.all_cells(bench, usable, roots)
        failures += bad
        every_root = ["bullseye", "bookworm", "trixie", "sid", "no shell"]
        found["matrix"] = matrix.lines(table, every_root, [kind.name for kind in runtimes.ALL])
    if wanted("situations"):
        rows, bad, left = situations.run(bench, {r.name: r for r in usable}, roots)
        failures += bad
        missing += left
        found["situations"] = rows
    if wanted("deployments"):
        rows, bad, left = deployments.run(bench, {r.name: r for r in usable}, roots, options.samples)
        failures += bad
        missing += left
        found["deployments"] = rows
    if wanted("figures"):
        found["figures"], bad = figures.measure(bench, roots)
        failures += bad
    for name, lines in found.items():
        print("\n%s:" % name)
        print("\n".join(lines))
    print()
    with open(options.document, encoding="utf-8") as f:
        text = f.read()
    if options.update and not failures:
        for name, lines in found.items():
            text = replaced(text, name, lines)
        with open(options.document, "w", encoding="utf-8") as f:
            f.write(text)
    else:
        for name in ("matrix", "situations", "deployments"):
            for line in differences(text, name, found.get(name, [])) if name in found else []:
                failures.append("%s says otherwise: %s" % (os.path.basename(options.document), line))
        if "figures" in found:
            failures += figures.compare(section(text, "figures").group(1), found["figures"])
    for line in failures:
        print("FAILED: %s" % line)
    for line in missing:
        print("skipped: %s" % line)
    if failures:
        sys.exit(1)
    if missing:
        sys.exit(1 if os.environ.get("VRAMCAP_MUST_WORK") == "1" else 77)


main()
