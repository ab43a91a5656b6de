"""A client on a string: one command a line on standard input, one line of JSON on standard output.

What all client programs share. A program defines a class with

    name, version      of the library under test
    kinds              kinds of memory that take() knows, the plain one first
    start()            brings the library up
    work()             a fixed piece of work; lines that are the same wherever it runs
    figures()          {where: [free, total]} in bytes, of every place where the library shows them;
                       free may be None
    take(kind, mib)    allocates one block and returns what holds it
    let_go(blocks)     gives blocks back
    is_out_of_memory(error)   whether the exception is the library's own for that

and ends with session.run(Class()). Programs never judge: run.py compares what they say.

    work | figures | take KIND MIB | fill KIND MIB | drop | quit
"""
import json
import sys


def say(answer):
    print(json.dumps(answer, sort_keys=True), flush=True)


class Session:
    def __init__(self, client):
        self.client, self.blocks = client, []

    def command(self, word, *arguments):
        if arguments:
            arguments = (" ".join(arguments[:-1]), arguments[-1])
        return getattr(self, "do_" + word)(*arguments)

    def do_work(self):
        try:
            return {"lines": self.client.work()}
        except Exception as error:  # noqa: the runner wants to see any
            return self.refused(error)

    def do_figures(self):
        return {"figures": self.client.figures()}

    def do_take(self, kind, mib):
        try:
            self.blocks.append(self.client.take(kind, int(mib)))
        except Exception as error:  # noqa: the runner wants to see any
            return self.refused(error)
        return {"taken": 1}

    def do_fill(self, kind, mib):
        """Takes blocks until one is refused; the error must be the library's own for that."""
        taken = 0
        while taken < 4096:
            answer = self.do_take(kind, mib)
            if "error" in answer:
                return dict(answer, taken=taken)
            taken += 1
        return {"taken": taken, "error": None}

    def do_drop(self):
        count = len(self.blocks)
        self.client.let_go(self.blocks)
        self.blocks = []
        return {"dropped": count}

    def refused(self, error):
        name = type(error).__module__.split(".")[0] + "." + type(error).__name__
        return {"error": "%s: %s" % (name, str(error).strip()),
                "out_of_memory": bool(self.client.is_out_of_memory(error))}


def run(client):
    client.start()
    session = Session(client)
    say({"name": client.name, "version": client.version, "kinds": client.kinds})
    for line in sys.stdin:
        words = line.split()
        if not words or words[0] == "quit":
            break
        say(session.command(*words))
    session.do_drop()
