"""What a client that allocates has to show, in five parts. Each works with programs/session.py, compares what
the program says with the same program elsewhere and with both books, and returns what goes into the table.

Where the client's library ends (its text, its exception) is never written down here: a card as large as the
ceiling says what it looks like without vramcap.
"""
import json
import os
import signal
import tempfile

from machine import CONTEXT_MIB, MIB, Machine, check, same

CEILING_MIB, GENEROUS_MIB, BLOCK_MIB, TOGETHER = 1024, 16384, 64, 4
BLOCKS = CEILING_MIB // BLOCK_MIB
OVERSUBSCRIBED = ("managed", "managed array", "managed pool")  # more of it than a card has is no error


class Client:
    """A program of programs/ in its environment."""

    def __init__(self, build, python, program):
        self.build = build
        self.command = [python, os.path.join(os.path.dirname(os.path.abspath(__file__)), "programs", program)]
        self.cache = tempfile.TemporaryDirectory(prefix="vramcap-clients-")

    def machine(self, compile_anew=False, **more):
        """What a client compiles is kept from one machine to the next."""
        machine = Machine(self.build, **more)
        if not compile_anew:
            machine.environment["NUMBA_CACHE_DIR"] = self.cache.name
        return machine

    def session(self, machine):
        process = machine.start(self.command)
        return process, json.loads(process.line())

    def tell(self, process, line):
        return json.loads(process.ask(line))


def work(client, process):
    answer = client.tell(process, "work")
    check("lines" in answer, "the work failed: %s" % answer)
    return answer["lines"]


def vramcap_lines(text):
    return [line for line in text.split("\n") if line.startswith("vramcap:")]


# ---- bare, and under a ceiling that is never reached ----

def runs(client):
    """Its piece of work, twice in one process and in another, bare: lines that are always the same."""
    with client.machine() as machine:
        process, hello = client.session(machine)
        lines = work(client, process)
        same("two runs in one process", lines, work(client, process))
        other, _ = client.session(machine)
        same("two processes", lines, work(client, other))
        same("exit status", [process.end(), other.end()], [0, 0])
        check(machine.card()["used"] == 0, "the card is not empty afterwards: %s" % machine.card())
    return hello, lines


def runs_under_a_ceiling(client, lines):
    with client.machine(compile_anew=True, ceiling_mib=GENEROUS_MIB) as machine:
        process, _ = client.session(machine)
        for _ in range(2):
            same("bare and under a ceiling", lines, work(client, process))
        check(str(process.pid) in map(str, machine.ledger()["by"]), "it has no slot in the ledger")
        # what asks for more than any ceiling is part of some work, and may be mentioned
        said = [line for line in vramcap_lines(process.said()) if "refused" not in line]
        same("lines on standard error", said, [])
        same("exit status", process.end(), 0)
        same("charged afterwards", machine.ledger()["charged"], 0)


# ---- at the ceiling ----

def _to_the_brim(client, machine, kind):
    """Until refused, give back, once more, then the usual work: all that the program says."""
    process, _ = client.session(machine)
    told = [client.tell(process, line) for line in (
        "fill %s %d" % (kind, BLOCK_MIB), "drop", "fill %s %d" % (kind, BLOCK_MIB), "drop",
        "take %s %d" % (kind, BLOCK_MIB), "drop", "work")]
    return told, process


def _without_text(told):
    return [{name: value for name, value in answer.items() if name != "error"} for answer in told]


def at_the_ceiling(client, kind, plain, lines):
    """On a card of that size, then under the ceiling: word for word the same. plain: the client's first
    kind, the pattern for kinds that a bare card never refuses (but for the text, which names the call)."""
    with client.machine(card_mib=CEILING_MIB + CONTEXT_MIB) as machine:
        bare, process = _to_the_brim(client, machine, plain if kind in OVERSUBSCRIBED else kind)
        same("exit status", process.end(), 0)
    check(bare[0].get("out_of_memory"), "a full card gives %s" % bare[0])
    with client.machine(ceiling_mib=CEILING_MIB) as machine:
        told, process = _to_the_brim(client, machine, kind)
        shown = _without_text if kind in OVERSUBSCRIBED else list
        same("%s: a full card and the ceiling" % kind, shown(bare[:6]), shown(told[:6]))
        check(told[2].get("taken") in (0, told[0]["taken"]), "%s: %s the second time" % (kind, told[2]))
        if told[2]["taken"]:  # a bare card may fail here: it leaves idle pools what they keep
            same("%s: the work after it" % kind, told[6].get("lines"), lines)
        else:  # the client keeps what it was given back
            same("%s: the work after it" % kind, bare[6], told[6])
        card, ledger = machine.card(), machine.ledger()
        check(card["alloc_peak"] <= CEILING_MIB * MIB, "%s: the card gave %d bytes" % (kind, card["alloc_peak"]))
        check(ledger["refusals"] >= 2, "%s: %d refusals in the ledger" % (kind, ledger["refusals"]))
        check(any("refused" in line for line in vramcap_lines(process.said())), "no line says why")
        same("exit status", process.end(), 0)
        same("%s: charged afterwards" % kind, machine.ledger()["charged"], 0)
    return {"kind": kind, "blocks": told[0]["taken"], "error": told[0]["error"],
            "again": told[2]["taken"] == told[0]["taken"]}


# ---- several processes ----

def several_share(client, kind):
    """Four fill at once; one is killed; another takes what it had; all end; a last one gets everything."""
    fill = "fill %s %d" % (kind, BLOCK_MIB)
    with client.machine(ceiling_mib=CEILING_MIB) as machine:
        processes = [client.session(machine)[0] for _ in range(TOGETHER)]
        for process in processes:
            process.send(fill)
        taken = [json.loads(process.line()) for process in processes]
        check(all(answer.get("out_of_memory") for answer in taken), "not refused as it should be: %s" % taken)
        counts = [answer["taken"] for answer in taken]
        check(sum(counts) == BLOCKS, "%s blocks together, not %d" % (counts, BLOCKS))
        card, ledger = machine.card(), machine.ledger()
        check(card["alloc"] <= CEILING_MIB * MIB, "the card gave %d bytes" % card["alloc"])
        same("the sum of the processes and what is charged", sum(ledger["by"].values()), ledger["charged"])
        same("processes in the ledger", len(ledger["by"]), TOGETHER)
        victim = max(range(TOGETHER), key=lambda i: counts[i])
        same("killed", processes[victim].end(kill=True), -signal.SIGKILL)
        survivor = processes[(victim + 1) % TOGETHER]
        same("what the killed one had", client.tell(survivor, fill)["taken"], counts[victim])
        for i, process in enumerate(processes):
            check(i == victim or process.end() == 0, "exit status of process %d" % i)
        same("charged afterwards", machine.ledger()["charged"], 0)
        last, _ = client.session(machine)
        same("a last one gets", client.tell(last, fill)["taken"], BLOCKS)
    return {"together": TOGETHER, "blocks": sum(counts)}


# ---- figures ----

def _agree(told, machine, context):
    ledger = machine.ledger()
    for where, (free, total) in told["figures"].items():
        same("%s, %s: total" % (context, where), total, CEILING_MIB * MIB)
        if free is not None:
            same("%s, %s: free" % (context, where), free, CEILING_MIB * MIB - ledger["charged"])


def figures_agree(client, kind):
    """In a process that holds something, in one that holds nothing, and in both at the ceiling."""
    with client.machine(ceiling_mib=CEILING_MIB) as machine:
        holder, _ = client.session(machine)
        watcher, _ = client.session(machine)
        for _ in range(3):
            client.tell(holder, "take %s %d" % (kind, BLOCK_MIB))
        check(machine.ledger()["charged"] >= 3 * BLOCK_MIB * MIB, "three blocks are not charged")
        for process, context in ((holder, "holder"), (watcher, "watcher")):
            _agree(client.tell(process, "figures"), machine, context)
        client.tell(holder, "fill %s %d" % (kind, BLOCK_MIB))
        told = client.tell(watcher, "figures")
        _agree(told, machine, "at the ceiling")
        check(machine.ledger()["free"] < BLOCK_MIB * MIB, "there is room left at the ceiling")
    return sorted(told["figures"])
