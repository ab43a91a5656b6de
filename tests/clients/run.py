#!/usr/bin/env python3
"""Real clients on the simulated driver.

    run.py check CLIENT --library L --tool T --sim DIR --holder H --work DIR      one client; its row in DIR
    run.py table --work DIR --document FILE [--update]      the rows of all of them against docs/clients.md

A check skips with 77 where the client cannot be had, and fails instead with VRAMCAP_MUST_WORK=1.
README.md says how to add a client.
"""
import argparse
import glob
import json
import os
import subprocess
import sys

import environment
import gstreamer
import media
import sessions
import table
import watchers
from machine import Build, Failed

HERE = os.path.dirname(os.path.abspath(__file__))


def requirements(*names):
    return [os.path.join(HERE, "requirements", name + ".txt") for name in names]


def has_compiler():
    """A CUDA 13 toolkit where numba-cuda looks for one."""
    for root in [os.environ.get("CUDA_HOME"), os.environ.get("CUDA_PATH"), "/usr/local/cuda"]:
        if root and glob.glob(os.path.join(root, "lib*", "libnvrtc.so.13*")) and (
                glob.glob(os.path.join(root, "nvvm", "lib64", "libnvvm.so.4*"))
                or glob.glob(os.path.join(root, "lib*", "libnvvm.so.4*"))):
            return True
    return False


def allocating(build, folder, program, names):
    python = environment.prepare(folder, requirements(*names))
    client = sessions.Client(build, python, program)
    hello, lines = sessions.runs(client)
    sessions.runs_under_a_ceiling(client, lines)
    plain = hello["kinds"][0]
    kinds = [sessions.at_the_ceiling(client, kind, plain, lines) for kind in hello["kinds"]]
    shared = sessions.several_share(client, plain)
    figures = sessions.figures_agree(client, plain)
    return hello, {
        "bare": "runs", "under": "same output",
        "at": "as on a full card, word for word, for %d kinds of memory" % len(kinds),
        "several": "%d at once: %d of %d blocks; one killed" % (shared["together"], shared["blocks"],
                                                                sessions.BLOCKS),
        "figures": figures, "kinds": kinds}


def nvml(build, folder):
    python = environment.prepare(folder, requirements("nvidia-ml-py"))
    return watchers.nvml(sessions.Client(build, python, "use_nvml.py"))


def nvitop(build, folder):
    python = environment.prepare(folder, requirements("nvitop"))
    version = subprocess.run([python, "-c", "import importlib.metadata as m; print(m.version('nvitop'))"],
                             stdout=subprocess.PIPE, text=True, check=True).stdout.strip()
    return watchers.nvitop(build, python, version)


def ffmpeg(build, _):
    reason = media.can()
    if reason:
        raise environment.Unavailable(reason)
    return media.ffmpeg(build)


def gst(build, folder):
    decoder = os.path.join(os.path.dirname(folder), "video")
    reason = gstreamer.can(decoder)
    if reason:
        raise environment.Unavailable(reason)
    return gstreamer.gstreamer(build, decoder)


CLIENTS = {
    "cuda-bindings": lambda b, f: allocating(b, f, "use_cuda_bindings.py", ["cuda-bindings"]),
    "cuda-core": lambda b, f: allocating(b, f, "use_cuda_core.py", ["cuda-core"]),
    "numba-cuda": lambda b, f: allocating(b, f, "use_numba_cuda.py", ["numba-cuda"] + (
        [] if has_compiler() else ["numba-cuda-compiler"])),
    "nvidia-ml-py": nvml,
    "nvitop": nvitop,
    "ffmpeg": ffmpeg,
    "gstreamer": gst,
}


def check(arguments):
    build = Build(arguments.library, arguments.tool, arguments.sim, arguments.holder,
                  os.path.join(arguments.work, "bytecode"))
    rows = os.path.join(arguments.work, "rows")
    os.makedirs(rows, exist_ok=True)
    row = os.path.join(rows, arguments.client + ".json")
    if os.path.exists(row):
        os.remove(row)
    try:
        hello, cells = CLIENTS[arguments.client](build, os.path.join(arguments.work, arguments.client))
    except environment.Unavailable as reason:
        if os.environ.get("VRAMCAP_MUST_WORK") == "1":
            print("FAILED: %s" % reason)
            return 1
        print("skipped: %s" % reason)
        return 77
    except Failed as failure:
        print("FAILED: %s" % failure)
        return 1
    with open(row, "w", encoding="utf-8") as file:
        json.dump(dict(cells, client=hello["name"], version=hello["version"]), file, indent=1, sort_keys=True)
    print(json.dumps(cells, indent=1))
    return 0


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    one = commands.add_parser("check")
    one.add_argument("client", choices=sorted(CLIENTS))
    for name in ("library", "tool", "sim", "holder", "work"):
        one.add_argument("--" + name, required=True)
    all_ = commands.add_parser("table")
    all_.add_argument("--work", required=True)
    all_.add_argument("--document", required=True)
    all_.add_argument("--update", action="store_true")
    arguments = parser.parse_args()
    if arguments.command == "check":
        return check(arguments)
    return table.compare(os.path.join(arguments.work, "rows"), list(CLIENTS), arguments.document,
                         arguments.update)


if __name__ == "__main__":
    sys.exit(main())
