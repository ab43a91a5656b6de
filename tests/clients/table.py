"""docs/clients.md: what the checks of all clients found, compared with what is committed.

A row that the run did not produce (its client skipped) is an error. The version of a client that a
distribution brings may differ from the committed one; everything else may not.
"""
import difflib
import json
import os

from sessions import BLOCK_MIB, BLOCKS, CEILING_MIB, GENEROUS_MIB

HEAD = """# Real clients on the simulated driver

Programs that nobody here wrote, unmodified, each bare and under vramcap. Produced by
`ctest -C full -R '^clients_'` ([tests/clients/](../tests/clients/README.md) says how); the test compares
this file with what it found, so a change of behaviour shows here. The driver is simulated: this is
about calls, results, errors and figures, not about speed or kernels.

| client | version | bare | under a ceiling | at the ceiling | several processes | figures agree |
| --- | --- | --- | --- | --- | --- | --- |
"""

COLUMNS = """
- **bare**: a fixed piece of work (copies, fills, streams, events, captured graphs, what the library has) gives
  the same output each time.
- **under a ceiling** of %d MiB: the same output, byte for byte; on standard error at most the refusal of a
  request that no card could serve.
- **at the ceiling** of %d MiB: blocks of %d MiB until one is refused, everything given back, the same again:
  all that the program sees, the text of the exception too, is what it sees on a bare card of that size.
  Then the work gives its usual output. The card never gives more than the ceiling.
- **several processes** under one ceiling fill up at once and get all of it and no more; one is killed, and
  another gets exactly what it had.
- **figures agree**: these show the ceiling as total, and what all processes of the container have left of
  it as free, in a process that holds memory and in one that does not.

## Kinds of memory

| client | kind | blocks of %d | then | after giving back |
| --- | --- | --- | --- | --- |
""" % (GENEROUS_MIB, CEILING_MIB, BLOCK_MIB, BLOCKS)

NOTES = """
cuda-core's `VirtualMemoryResource` takes one reference more than it gives back when a buffer is closed, so its
memory stays until the process ends (cuda-python pull request 2884); bare and under a ceiling alike. Managed memory is
charged in full, so it ends at the ceiling, where a bare card would let it be oversubscribed.
"""


def _cell(text):
    return str(text).replace("|", "\\|").replace("\n", " ")


def _row(cells):
    return "| " + " | ".join(_cell(cell) for cell in cells) + " |\n"


def _again(kind):
    return "all of it again" if kind["again"] else "nothing: the client keeps it"


def render(rows):
    """The document for rows as run.py wrote them."""
    text = HEAD
    for row in rows:
        figures = ", ".join("`%s`" % name if name.replace("_", "").replace(".", "").isalnum() else name
                            for name in row["figures"]) or "shows none"
        text += _row([row["client"], row["version"], row["bare"], row["under"], row["at"], row["several"],
                      figures])
    text += COLUMNS
    for row in rows:
        for kind in row.get("kinds", []):
            error = kind["error"].replace("__main__.Failed: ", "")
            text += _row([row["client"], kind["kind"], kind["blocks"], "`%s`" % error, _again(kind)])
    return text + NOTES


def _without_distribution_versions(text):
    lines = []
    for line in text.split("\n"):
        cells = line.split(" | ")
        if "(Debian)" in cells[0] and len(cells) > 2:
            cells[1] = "*"
        lines.append(" | ".join(cells))
    return "\n".join(lines)


def compare(folder, names, document, update):
    """0: the document says what was found."""
    rows, missing = [], []
    for name in names:
        try:
            with open(os.path.join(folder, name + ".json"), encoding="utf-8") as file:
                rows.append(json.load(file))
        except OSError:
            missing.append(name)
    if missing:
        print("no result of: %s" % ", ".join(missing))
        return 1 if os.environ.get("VRAMCAP_MUST_WORK") == "1" or update else 77
    found = render(rows)
    if update:
        with open(document, "w", encoding="utf-8") as file:
            file.write(found)
        return 0
    with open(document, encoding="utf-8") as file:
        committed = file.read()
    if _without_distribution_versions(found) == _without_distribution_versions(committed):
        return 0
    print("%s is not what was found; after a look at the difference, run.py table --update:" % document)
    print("\n".join(difflib.unified_diff(committed.split("\n"), found.split("\n"), "committed", "found", lineterm="")))
    return 1
