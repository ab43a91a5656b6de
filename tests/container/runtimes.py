"""Containers by eight runtimes, all from one description.

A Box says what the container is made of (root folder, environment, mounts, program); each runtime turns it
into the command that starts it with standard input and output connected. Nothing here knows what is
tested. Everything a runtime stores is below the work folder, and processes end with their container.
Run as a program it is the inner half of `unshare`: mounts, chroot, execve.
"""
import itertools
import json
import os
import shutil
import subprocess
import sys
import threading
import time

PODMAN_LIMITS = ["--ulimit", "nofile=1024:1024", "--ulimit", "nproc=4096:4096"]
DAEMON_SECONDS = 60
# crun takes a machine with both versions of cgroups for one with the newer alone
WITHOUT_UNIFIED = ["unshare", "--mount", "sh", "-c",
                   'umount /sys/fs/cgroup/unified 2>/dev/null; exec "$@"', "sh"]


class Box:
    def __init__(self, root, argv, env=None, mounts=None, uid=0, read_only=False, podman=None,
                 first_uid=0):
        self.root = root
        self.argv = list(argv)
        self.env = {"PATH": "/usr/bin:/bin", **(env or {})}
        # [(path on the host, path in the container, options)]; options: subset of ro noexec nosuid nodev
        self.mounts = list(mounts or [])
        self.uid = uid
        self.read_only = read_only
        self.first_uid = first_uid  # runc: root in there is this user outside
        self.podman = list(podman or [])  # further options of `podman run` and `docker run`


class Runtime:
    """name; tools that must be there; what its command is started by; does it read CDI specifications?"""
    name = ""
    tools = ()
    around = []
    has_cdi = False

    def __init__(self, work):
        self.work = os.path.join(work, self.name.replace(", ", "-"))
        os.makedirs(self.work, exist_ok=True)
        self.numbers = itertools.count(1)  # next() is one step, whatever threads ask

    def missing(self):
        for tool in self.tools:
            if shutil.which(tool) is None:
                return "no " + tool
        return None

    def close(self):
        """Ends what missing() or command() started."""

    def folder(self):
        path = os.path.join(self.work, "%d" % next(self.numbers))
        os.makedirs(path)
        return path


class Bwrap(Runtime):
    name = "bwrap"
    tools = ("bwrap",)

    def command(self, box):
        argv = ["bwrap", "--ro-bind" if box.read_only else "--bind", box.root, "/",
                "--dev", "/dev", "--proc", "/proc", "--tmpfs", "/tmp", "--tmpfs", "/dev/shm",
                "--unshare-pid", "--unshare-ipc", "--unshare-uts", "--die-with-parent", "--clearenv"]
        if box.uid:
            argv += ["--unshare-user", "--uid", str(box.uid)]
        for host, inside, options in box.mounts:
            argv += ["--ro-bind" if "ro" in options else "--bind", host, inside]
        for name, value in box.env.items():
            argv += ["--setenv", name, value]
        return argv + ["--"] + box.argv


class Unshare(Runtime):
    name = "unshare"  # a user namespace of its own, root mapped to the caller
    tools = ("unshare",)

    def command(self, box):
        spec = os.path.join(self.folder(), "spec.json")
        with open(spec, "w", encoding="utf-8") as f:
            json.dump(vars(box), f)
        return ["unshare", "--user", "--map-root-user", "--mount", "--pid", "--ipc", "--uts", "--fork",
                "--kill-child", sys.executable, "-B", os.path.abspath(__file__), spec]


class Runc(Runtime):
    name = "runc"
    tools = ("runc",)

    def command(self, box):
        folder = self.folder()
        subprocess.run([self.name, "spec"], check=True, cwd=folder)
        path = os.path.join(folder, "config.json")
        with open(path, encoding="utf-8") as f:
            config = json.load(f)
        config["root"] = {"path": box.root, "readonly": box.read_only}
        config["process"].update(terminal=False, args=box.argv, cwd="/",
                                 user={"uid": box.uid, "gid": box.uid},
                                 env=["%s=%s" % pair for pair in box.env.items()])
        config["mounts"] += [{"source": host, "destination": inside, "type": "bind",
                              "options": ["rbind"] + (list(options) or ["rw"])}
                             for host, inside, options in box.mounts]
        if box.first_uid:
            ids = [{"containerID": 0, "hostID": box.first_uid, "size": 65536}]
            config["linux"].update(uidMappings=ids, gidMappings=ids)
            config["linux"]["namespaces"].append({"type": "user"})
        with open(path, "w", encoding="utf-8") as f:
            json.dump(config, f)
        return self.around + [self.name, "--root", os.path.join(self.work, "state"), "run", "--bundle", folder,
                              "vramcap-test-%d-%s" % (os.getpid(), os.path.basename(folder))]


class Crun(Runc):
    name = "crun"
    tools = ("crun", "unshare")
    around = WITHOUT_UNIFIED


class Podman(Runtime):
    name = "podman"
    runs = "runc"
    tools = ("podman", "runc", "conmon")
    has_cdi = True

    def base(self, *options):
        return self.around + ["podman", "--root", os.path.join(self.work, "storage"), "--runroot",
                              os.path.join(self.work, "run"), "--runtime", self.runs, "--cgroup-manager",
                              "cgroupfs", "--events-backend", "none", "--log-level", "error", *options]

    def command(self, box, *options):
        argv = self.base(*options) + ["run", "--rm", "--interactive", "--network=none"] + PODMAN_LIMITS
        argv += ["--read-only"] if box.read_only else []
        argv += ["--user", str(box.uid)] if box.uid else []
        for host, inside, options in box.mounts:
            argv += ["--volume", ":".join([host, inside] + ([",".join(options)] if options else []))]
        for name, value in box.env.items():
            argv += ["--env", "%s=%s" % (name, value)]
        return argv + box.podman + ["--rootfs", box.root + ":O"] + box.argv

    def missing(self):
        why = super().missing()
        if why is None:
            tried = subprocess.run(self.base() + ["info"], capture_output=True, text=True, check=False)
            if tried.returncode != 0:
                why = "podman does not work here: " + tried.stderr.strip().splitlines()[-1]
        return why


class PodmanCrun(Podman):
    name = "podman, crun"
    runs = "crun"
    tools = ("podman", "crun", "conmon", "unshare")
    around = WITHOUT_UNIFIED


class Daemon:
    """A daemon that ends with this program; said: its log."""

    def __init__(self, argv, log, folders):
        path = ":".join(folders + [os.environ["PATH"]])
        self.log = log
        with open(log, "wb") as f:
            self.process = subprocess.Popen(["setpriv", "--pdeathsig", "KILL", *argv], stdin=subprocess.DEVNULL,
                                            stdout=f, stderr=f, env=dict(os.environ, PATH=path))

    def answers(self, argv):
        """Waits until this command succeeds; why not, if the daemon ends or says nothing for long."""
        end = time.monotonic() + DAEMON_SECONDS
        while time.monotonic() < end and self.process.poll() is None:
            if subprocess.run(argv, capture_output=True, check=False).returncode == 0:
                return None
            time.sleep(0.1)
        with open(self.log, encoding="utf-8", errors="replace") as f:
            return (f.read().strip().splitlines() or ["it says nothing"])[-1]

    def end(self):
        self.process.terminate()
        try:
            self.process.wait(DAEMON_SECONDS)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


class Containerd(Runtime):
    name = "containerd"
    tools = ("runc", "setpriv")
    parts = {"VRAMCAP_CONTAINERD": "/usr/bin"}

    def __init__(self, work):
        super().__init__(work)
        self.daemons = []
        self.folders = []
        self.socket = os.path.join(self.work, "containerd.sock")

    def missing(self):
        why = super().missing()
        for variable, folder in self.parts.items():
            where = os.environ.get(variable)
            if why is None and not where:
                why = "no " + variable.rsplit("_", 1)[1].lower()
            self.folders.append((where or "") + folder)
        if why is None:
            why = self.start()
        return why

    def start(self):
        config = os.path.join(self.work, "config.toml")
        with open(config, "w", encoding="utf-8") as f:
            f.write('version = 2\nroot = "%s/root"\nstate = "%s/state"\n'
                    'disabled_plugins = ["io.containerd.grpc.v1.cri"]\n[grpc]\naddress = "%s"\n' %
                    (self.work, self.work, self.socket))
        self.daemons.append(Daemon([self.folders[0] + "/containerd", "--config", config],
                                   os.path.join(self.work, "containerd.log"), self.folders))
        return self.daemons[-1].answers(self.ctr() + ["version"])

    def ctr(self):
        return [self.folders[0] + "/ctr", "--address", self.socket]

    def command(self, box):
        argv = self.ctr() + ["run", "--rm", "--cwd", "/"] + (["--read-only"] if box.read_only else [])
        argv += ["--user", str(box.uid)] if box.uid else []
        for host, inside, options in box.mounts:
            argv += ["--mount", "type=bind,src=%s,dst=%s,options=%s" %
                     (host, inside, ":".join(["rbind"] + (list(options) or ["rw"])))]
        for name, value in box.env.items():
            argv += ["--env", "%s=%s" % (name, value)]
        return argv + ["--rootfs", box.root, "vramcap-test-%d" % next(self.numbers)] + box.argv

    def close(self):
        for daemon in reversed(self.daemons):
            daemon.end()


class Docker(Containerd):
    """dockerd without networks; a root becomes an image when it is first asked for."""
    name = "docker"
    has_cdi = True
    parts = dict(Containerd.parts, VRAMCAP_DOCKERD="/usr/sbin", VRAMCAP_DOCKER="/usr/bin")

    def __init__(self, work):
        super().__init__(work)
        self.images = {}
        self.lock = threading.Lock()

    def start(self):
        why = super().start()
        if why is not None:
            return why
        config = os.path.join(self.work, "daemon.json")
        with open(config, "w", encoding="utf-8") as f:
            json.dump({"features": {"cdi": True}, "cdi-spec-dirs": ["/run/cdi"], "hosts": [self.host()],
                       "containerd": self.socket, "data-root": os.path.join(self.work, "data"),
                       "exec-root": os.path.join(self.work, "exec"), "pidfile": os.path.join(self.work, "pid"),
                       "bridge": "none", "iptables": False, "ip6tables": False, "ip-forward": False,
                       "ip-masq": False, "userland-proxy": False}, f)
        self.daemons.append(Daemon([self.folders[1] + "/dockerd", "--config-file", config],
                                   os.path.join(self.work, "dockerd.log"), self.folders))
        return self.daemons[-1].answers(self.docker() + ["version"])

    def host(self):
        return "unix://" + os.path.join(self.work, "docker.sock")

    def docker(self):
        return [self.folders[2] + "/docker", "--host", self.host()]

    def image(self, root):
        with self.lock:
            if root not in self.images:
                name = "vramcap-test-%d" % len(self.images)
                tar = subprocess.Popen(["tar", "-C", root, "--exclude=./usr/share", "--exclude=./var", "-c", "."],
                                       stdout=subprocess.PIPE)
                subprocess.run(self.docker() + ["import", "-", name], stdin=tar.stdout, check=True,
                               capture_output=True)
                tar.stdout.close()
                if tar.wait() != 0:
                    raise OSError("tar ended with %d" % tar.returncode)
                self.images[root] = name
            return self.images[root]

    def command(self, box):
        argv = self.docker() + ["run", "--rm", "--interactive", "--network=none"]
        argv += ["--read-only"] if box.read_only else []
        argv += ["--user", str(box.uid)] if box.uid else []
        for host, inside, options in box.mounts:  # of these options it knows `ro` alone
            argv += ["--volume", ":".join([host, inside] + (["ro"] if "ro" in options else []))]
        for name, value in box.env.items():
            argv += ["--env", "%s=%s" % (name, value)]
        return argv + box.podman + [self.image(box.root)] + box.argv


ALL = (Bwrap, Unshare, Runc, Crun, Containerd, Docker, Podman, PodmanCrun)


def inside(spec):
    """The inner half of `unshare`."""
    with open(spec, encoding="utf-8") as f:
        box = json.load(f)
    root = box["root"]

    def mount(*arguments):
        subprocess.run(("mount",) + arguments, check=True)

    mount("--rbind", root, root)
    mount("-t", "proc", "proc", root + "/proc")
    mount("--rbind", "/dev", root + "/dev")
    mount("-t", "tmpfs", "-o", "mode=1777", "tmpfs", root + "/dev/shm")
    mount("-t", "tmpfs", "-o", "mode=1777", "tmpfs", root + "/tmp")
    for host, target, options in box["mounts"]:
        mount("--bind", host, root + target)
        if options:
            mount("-o", "remount,bind," + ",".join(options), root + target)
    os.chroot(root)
    os.chdir("/")
    os.execve(box["argv"][0], box["argv"], box["env"])


if __name__ == "__main__":
    inside(sys.argv[1])
