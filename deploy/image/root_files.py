"""The files of Aludel's image: our packages, the shared libraries that their programs load as Debian built them, and
the few lines of /etc without which a C library does not work. No shell, no package manager, nothing that is
set-user-id.
"""

import json
import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Dict, Iterable, List, Optional

USER = 65532
LIBRARIES, SERVERS, DEMO = "libraries", "servers", "demo"  # layers, the one that changes least first
OURS = "aludel"
# Of our packages: units, users of the machine and manual pages have no use here.
TAKEN = re.compile(r"^(usr/bin/|etc/aludel/|usr/share/aludel|usr/share/doc/[^/]+/copyright$)")
# The driver's, which the container runtime brings along.
DRIVER = re.compile(r"^lib(cuda|nvidia[^/]*)\.so")
# Loaded by name at run time: UCX's transports, and what libibverbs needs for a ConnectX card.
LOADED_LATER = ("/usr/lib/x86_64-linux-gnu/ucx/libuct_*.so.0", "/usr/lib/x86_64-linux-gnu/libibverbs/libmlx5-*.so")
ACCOUNTS = {
    "etc/passwd": f"root:x:0:0:root:/:/nonexistent\naludel:x:{USER}:{USER}:Aludel:/:/nonexistent\n",
    "etc/group": f"root:x:0:\naludel:x:{USER}:\n",
    "etc/nsswitch.conf": "passwd: files\ngroup: files\nhosts: files dns\n",
}
LINKS = {"bin": "usr/bin", "lib": "usr/lib", "lib64": "usr/lib64"}
# Of the demo's codec: what servers choose by themselves. The others are for comparison (deploy/demo/RESULTS.md).
SERVED = re.compile(r"^aludel-p2$")
# What runtimes mount over, and where volumes go.
FOLDERS = ("dev", "proc", "sys", "tmp", "etc", "var/lib/aludel/models")


@dataclass
class File:
    """One entry of the image; `source` is what is copied, or else `text` or the target of `link`, or it is a folder."""

    path: str  # without a leading slash
    layer: str
    package: str = ""  # a Debian package, OURS, or empty for what is written here
    source: Optional[Path] = None
    text: Optional[str] = None
    link: Optional[str] = None
    mode: int = 0o644


@dataclass
class Package:
    """What dpkg says of an installed package."""

    name: str
    version: str
    architecture: str
    source: str
    fields: str  # the paragraph that scanners of images read


def output_of(*command: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise SystemExit(f"image: {' '.join(command)}: code {done.returncode}: {done.stderr.strip()}")
    return done.stdout


def merged(path: str) -> str:
    """A path as it is on a machine whose /lib is a link to /usr/lib, without the first slash."""
    path = path.lstrip("/")
    return f"usr/{path}" if re.match(r"(lib\w*|bin|sbin)/", path) else path


def owners() -> Dict[str, str]:
    """The Debian package of every installed file."""
    found = {}
    for listing in Path("/var/lib/dpkg/info").glob("*.list"):
        for line in listing.read_text().splitlines():
            found[merged(line)] = listing.stem
    return found


def packages_of(names: List[str]) -> Dict[str, Package]:
    form = "${binary:Package}\t${Package}\t${Version}\t${Architecture}\t${source:Package}\t${Maintainer}\n"
    text = output_of("dpkg-query", "-W", "-f", form, *names)
    said = {}
    for line in text.splitlines():  # in an order of dpkg-query's own
        binary, *rest = line.split("\t")
        said[binary] = said[binary.split(":")[0]] = rest
    found = {}
    for name in names:
        package, version, architecture, source, maintainer = said[name]
        fields = (f"Package: {package}\nStatus: install ok installed\nMaintainer: {maintainer}\n"
                  f"Architecture: {architecture}\nSource: {source}\nVersion: {version}\n")
        found[name] = Package(package, version, architecture, source, fields)
    return found


def keep_served_formats(codec: Path) -> None:
    """Takes the formats that are not SERVED out of an artifact."""
    artifact = json.loads((codec / "artifact.json").read_text())
    artifact["formats"] = [one for one in artifact["formats"] if SERVED.match(one["name"])]
    artifact["controls"] = []
    (codec / "artifact.json").write_text(json.dumps(artifact, indent=1) + "\n")
    named = set(re.findall(r'"file": "([^"]+)"', (codec / "artifact.json").read_text()))
    for path in codec.glob("*.safetensors"):
        if path.name not in named:
            path.unlink()


def needed(binaries: Iterable[Path]) -> List[Path]:
    """The shared libraries that programs and modules load, under the names that they ask for."""
    found = set()
    for line in output_of("ldd", *map(str, binaries)).splitlines():
        match = re.match(r"\s*(\S+)(?: => (\S+))? \(0x", line)
        if "not found" in line and not DRIVER.match(line.strip()):
            raise SystemExit(f"image: {line.strip()}")
        if match and not DRIVER.match(Path(match.group(1)).name):
            path = match.group(2) or match.group(1)
            if path.startswith("/"):
                found.add(Path(path))
    return sorted(found)


class RootFiles:
    """Collects the files; `folder` is for what packages are unpacked into."""

    def __init__(self, packages: Path, folder: Path, demo: bool, libraries: List[Path]) -> None:
        self.files: Dict[str, File] = {}
        self._owners = owners()
        self._take_packages(packages, folder, demo)
        programs = [one.source for one in self.files.values() if one.path.startswith("usr/bin/")]
        modules = [path for pattern in LOADED_LATER for path in sorted(Path("/").glob(pattern.lstrip("/")))] + libraries
        for path in [*needed([*programs, *modules]), *modules]:
            self._take_library(path)
        if "usr/lib/x86_64-linux-gnu/libibverbs.so.1" in self.files and Path("/etc/libibverbs.d/mlx5.driver").exists():
            self._take_file(Path("/etc/libibverbs.d/mlx5.driver"))
        self.packages = packages_of(sorted({one.package for one in self.files.values()} - {OURS}))
        for package in self.packages.values():
            self._take_papers(package)
        for path, text in ACCOUNTS.items():
            self._add(File(path, LIBRARIES, text=text))
        for path, target in LINKS.items():
            self._add(File(path, LIBRARIES, link=target))
        for path in FOLDERS:
            self._add(File(path, LIBRARIES, mode=0o1777 if path == "tmp" else 0o755))

    def _add(self, file: File) -> None:
        self.files.setdefault(file.path, file)

    def _take_packages(self, packages: Path, folder: Path, demo: bool) -> None:
        for name in ("aludel-server", "aludel-gateway"):
            found = sorted(packages.glob(f"{name}_*.deb"))
            if len(found) != 1:
                raise SystemExit(f"image: {len(found)} packages {name} in {packages}, want one "
                                 "(ninja packages makes them)")
            output_of("dpkg-deb", "--extract", str(found[0]), str(folder))
            self.version = output_of("dpkg-deb", "-f", str(found[0]), "Version").strip()
        keep_served_formats(folder / "usr/share/aludel/demo/codec")
        for path in sorted(folder.rglob("*")):
            name = str(path.relative_to(folder))
            if path.is_dir() or not TAKEN.match(name):
                continue
            of_demo = "/demo/" in name or name.startswith("etc/aludel/")
            if of_demo and not demo:
                continue
            mode = 0o755 if name.startswith("usr/bin/") else 0o644
            self._add(File(name, DEMO if of_demo else SERVERS, OURS, source=path, mode=mode))

    def _take_library(self, path: Path) -> None:
        """The file, and the name that it is asked for by."""
        real = path.resolve()
        self._take_file(real, 0o755 if "ld-linux" in real.name else 0o644)
        name, target = merged(str(path)), merged(str(real))
        if name != target:
            self._add(File(name, LIBRARIES, self.files[target].package, link=f"/{target}"))

    def _take_file(self, path: Path, mode: int = 0o644) -> None:
        name = merged(str(path.resolve()))
        owner = self._owners.get(name)
        if owner is None:
            raise SystemExit(f"image: {path} belongs to no Debian package")
        self._add(File(name, LIBRARIES, owner, source=path.resolve(), mode=mode))

    def _take_papers(self, package: Package) -> None:
        """The license, and the paragraph by which scanners know which version of what is here."""
        self._add(File(f"var/lib/dpkg/status.d/{package.name}", LIBRARIES, package.name, text=package.fields))
        papers = Path(f"/usr/share/doc/{package.name}/copyright")
        if papers.exists():
            self._add(File(f"usr/share/doc/{package.name}/copyright", LIBRARIES, package.name, source=papers.resolve()))

    def write(self, root: Path) -> None:
        """The files as a folder."""
        for file in sorted(self.files.values(), key=lambda one: one.path):
            target = root / file.path
            target.parent.mkdir(parents=True, exist_ok=True)
            if file.link is not None:
                target.symlink_to(file.link)
                continue
            if file.source is not None:
                shutil.copyfile(file.source, target)
            elif file.text is not None:
                target.write_text(file.text)
            else:
                target.mkdir(exist_ok=True)
            target.chmod(file.mode)
