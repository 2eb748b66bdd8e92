"""This machine's files under a systemd of their own: an overlay of / in new namespaces (mounts, processes, network, control
groups), so that packages are installed and units run as on a machine that has just booted, and nothing of it remains.

    with BootedRoot() as root:
        root.run("systemctl", "start", "something")

Needs root and a kernel that lets it mount an overlay; why_not() says what is missing.
"""

import os
import shutil
import subprocess
import tempfile
import time
from pathlib import Path
from types import TracebackType
from typing import Optional, Type

BOOT_S = 90
NAMESPACES = ["--mount", "--pid", "--fork", "--cgroup", "--net", "--ipc", "--uts", "--kill-child"]
# The upper layer is in memory. Of /dev there is what a container has; sysfs and /proc are those of the new namespaces.
# policy-rc.d of a container image would keep packages from stopping what they remove.
MAKE_ROOT = """
set -e
mount --make-rprivate /
mount -t tmpfs none "$1"
mkdir "$1/up" "$1/work" "$1/root"
mount -t overlay none -o "lowerdir=/,upperdir=$1/up,workdir=$1/work" "$1/root"
cd "$1/root"
mount -t proc none proc
mount -t sysfs none sys
mount -t cgroup2 none sys/fs/cgroup
for folder in dev run tmp; do mount -t tmpfs none $folder; done
mkdir dev/shm dev/pts
mount -t devpts -o newinstance,ptmxmode=0666 none dev/pts
ln -s pts/ptmx dev/ptmx
for device in null zero full random urandom tty; do
  touch dev/$device
  mount --bind /dev/$device dev/$device
done
ln -s /proc/self/fd dev/fd
rm -f usr/sbin/policy-rc.d
cp -r "$2" run/given
"""
# Not chroot: the kernel gives nobody who is in one a user namespace, and units ask for it (PrivateUsers).
BOOT = """
mkdir old
pivot_root . old
umount --lazy old
rmdir old
exec env -i container=test PATH=/usr/sbin:/usr/bin:/sbin:/bin /lib/systemd/systemd --system --unit=basic.target
"""


def why_not() -> str:
    """What keeps this machine from booting one; empty where nothing does."""
    if os.geteuid() != 0:
        return "this is not root"
    for program in ("unshare", "nsenter", "systemctl"):
        if shutil.which(program) is None:
            return f"{program} is missing"
    with tempfile.TemporaryDirectory() as folder:
        tried = subprocess.run(["unshare", *NAMESPACES, "bash", "-c", MAKE_ROOT, "bash", folder, "/dev/null"],
                               capture_output=True, text=True, check=False)
    return "" if tried.returncode == 0 else f"no overlay in namespaces: {tried.stderr.strip()}"


class BootedRoot:
    def __init__(self, given: Path) -> None:
        """`given` is a file or folder that the root finds as /run/given."""
        self.given = given.resolve()
        self.folder = tempfile.mkdtemp(prefix="aludel-root-")
        self.process: Optional[subprocess.Popen] = None
        self.init = 0

    def __enter__(self) -> "BootedRoot":
        self.process = subprocess.Popen(
            ["unshare", *NAMESPACES, "bash", "-c", MAKE_ROOT + BOOT, "bash", self.folder, str(self.given)],
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
        try:
            self.await_text("running|degraded", "systemctl", "is-system-running")
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def __exit__(self, kind: Optional[Type[BaseException]], error: Optional[BaseException],
                 trace: Optional[TracebackType]) -> None:
        assert self.process is not None
        self.process.kill()
        self.process.wait()
        shutil.rmtree(self.folder)

    def enter(self) -> int:
        """The first process of the root, in this machine's numbers."""
        assert self.process is not None
        if self.process.poll() is not None:
            raise RuntimeError(f"the root ended with code {self.process.returncode}")
        if self.init == 0:
            children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text().split()
            if children and Path(f"/proc/{children[0]}/comm").read_text() == "systemd\n":
                self.init = int(children[0])
        return self.init

    def try_run(self, *command: str, timeout: float = 120) -> "subprocess.CompletedProcess[str]":
        """Runs a command in the root; its errors stand behind its output."""
        entered = ["nsenter", "--target", str(self.enter()), "--all", "--root", "--wd"]
        return subprocess.run([*entered, *command], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, text=True, timeout=timeout, check=False,
                              env={"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL": "C.UTF-8"})

    def run(self, *command: str, timeout: float = 120) -> str:
        done = self.try_run(*command, timeout=timeout)
        if done.returncode != 0:
            raise RuntimeError(f"{' '.join(command)}: code {done.returncode}: {done.stdout}")
        return done.stdout

    def show(self, unit: str, name: str) -> str:
        """A property of a unit, as systemctl show has it."""
        return self.run("systemctl", "show", "--value", f"--property={name}", unit).strip()

    def await_text(self, wanted: str, *command: str) -> str:
        """Until a command in the root says one of `wanted` ("a|b")."""
        deadline = time.monotonic() + BOOT_S
        text = "nothing yet"
        while time.monotonic() < deadline:
            if self.enter() != 0:
                text = self.try_run(*command).stdout
                if any(one in text for one in wanted.split("|")):
                    return text
            time.sleep(0.1)
        raise RuntimeError(f"{' '.join(command)} did not say {wanted} within {BOOT_S} s, but: {text}")
