"""A command for so long and no longer: whatever it does, the caller goes on.

    limited.py SECONDS [--say TEXT] COMMAND...      TEXT: its standard input, else there is none

Ends with the command's own status, 128 + signal, 124 when it was cut off, 127 when it could not be started. A
command that is cut off goes with all processes of its session. One that cannot even be killed (it hangs in the
kernel, as with a driver that does not answer) is left behind and not waited for.
"""
import os
import select
import signal
import subprocess
import sys
import tempfile
import time

KILLED_WITHIN_S = 3
MOST_OUTPUT = 4 << 20


def start(command, **more):
    return subprocess.Popen(command, start_new_session=True, **more)


def end(process):
    """Kills what is left of a started command's session and collects it, if the kernel lets go of it."""
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass
    try:
        process.wait(KILLED_WITHIN_S)
    except subprocess.TimeoutExpired:
        pass


def run(command, seconds, environment=None, say=""):
    """(status, output, errors). The status is the command's number as subprocess has it, or words. Output goes through
    files: a pipe would stay open for as long as a process that the command left behind."""
    with tempfile.TemporaryFile() as told, tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        told.write(say.encode())
        told.seek(0)
        try:
            process = start(command, env=environment, stdin=told, stdout=out, stderr=err)
        except OSError as error:
            return "not run: %s" % error, "", ""
        try:
            status = process.wait(max(0, seconds))
        except subprocess.TimeoutExpired:
            status = "not finished in %d s" % seconds
        finally:
            if process.returncode is None:
                end(process)
        texts = []
        for file in (out, err):
            file.seek(0)
            texts.append(file.read(MOST_OUTPUT).decode(errors="replace"))
        return status, texts[0], texts[1]


def line_of(process, seconds):
    """The next line that a process with an unbuffered pipe prints, None: it ended, or none came in time."""
    until, text = time.monotonic() + seconds, b""
    while not text.endswith(b"\n"):
        ready, _, _ = select.select([process.stdout], [], [], max(0, until - time.monotonic()))
        byte = os.read(process.stdout.fileno(), 1) if ready else b""
        if not byte:
            return None
        text += byte
    return text.decode(errors="replace").rstrip("\n")


def end_on_signals():
    """A signal to end takes the way of an exception, so that what was started is ended too."""
    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
        signal.signal(number, lambda got, _: sys.exit(128 + got))


def main():
    arguments = sys.argv[1:]
    say = ""
    if len(arguments) > 3 and arguments[1] == "--say":
        say = arguments[2] + "\n"
        del arguments[1:3]
    if len(arguments) < 2:
        print(__doc__, file=sys.stderr)
        return 2
    end_on_signals()
    status, out, err = run(arguments[1:], float(arguments[0]), say=say)
    sys.stdout.write(out)
    sys.stderr.write(err)
    if isinstance(status, int):
        return status if status >= 0 else 128 - status
    print("%s: %s" % (arguments[1], status), file=sys.stderr)
    return 127 if status.startswith("not run") else 124


if __name__ == "__main__":
    sys.exit(main())
