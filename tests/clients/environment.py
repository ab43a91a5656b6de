"""A virtual environment per client, below the build folder, from a requirements file with hashes.

Wheels are kept in a cache ($VRAMCAP_CACHE, else ~/.cache/vramcap), so that only the first run on a machine
needs a network, and an environment is made again only when its requirements or the interpreter change.
"""
import hashlib
import os
import shutil
import subprocess
import sys
import sysconfig

SUPPORTED = ((3, 11), (3, 12), (3, 13))


class Unavailable(Exception):
    """This machine cannot have the client; the text says why."""


def _cache():
    root = os.environ.get("VRAMCAP_CACHE") or os.path.join(os.path.expanduser("~"), ".cache", "vramcap")
    return os.path.join(root, "wheels")


def _quiet(command):
    return subprocess.run(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, text=True)


def _install(python, requirements, cache):
    offline = [python, "-m", "pip", "install", "-q", "--no-deps", "--require-hashes", "--no-index",
               "--find-links", cache, "--disable-pip-version-check", "--no-compile", "-r", requirements]
    if os.path.isdir(cache) and _quiet(offline).returncode == 0:
        return
    os.makedirs(cache, exist_ok=True)
    fetched = _quiet([python, "-m", "pip", "download", "-q", "--no-deps", "--require-hashes",
                      "--only-binary=:all:", "--disable-pip-version-check", "-d", cache, "-r", requirements])
    if fetched.returncode != 0:
        raise Unavailable("the packages of %s cannot be had: %s" % (
            os.path.basename(requirements), (fetched.stdout.strip().split("\n") or ["?"])[-1]))
    done = _quiet(offline)
    if done.returncode != 0:
        raise Unavailable("pip: %s" % done.stdout.strip())


def prepare(folder, requirements):
    """The interpreter of an environment that has all of the requirements files; raises Unavailable."""
    if sys.version_info[:2] not in SUPPORTED or sysconfig.get_platform() != "linux-x86_64":
        raise Unavailable("wheels are pinned for Python 3.11 to 3.13 on x86-64, not for Python %d.%d on %s" % (
            sys.version_info[0], sys.version_info[1], sysconfig.get_platform()))
    recipe = hashlib.sha256((sys.version + os.path.realpath(sys.executable)).encode())
    for file in requirements:
        with open(file, "rb") as stream:
            recipe.update(stream.read())
    stamp, python = os.path.join(folder, "made-of"), os.path.join(folder, "bin", "python")
    try:
        with open(stamp, encoding="ascii") as stream:
            if stream.read() == recipe.hexdigest():
                return python
    except OSError:
        pass
    shutil.rmtree(folder, ignore_errors=True)
    made = _quiet([sys.executable, "-m", "venv", folder])
    if made.returncode != 0:
        raise Unavailable("no virtual environment: %s" % made.stdout.strip().split("\n")[-1])
    for file in requirements:
        _install(python, file, _cache())
    with open(stamp, "w", encoding="ascii") as stream:
        stream.write(recipe.hexdigest())
    return python
