"""Objects of the overlays in deploy/kubernetes, rendered by kubectl; or by the chart, where kubectl is missing or too
old for them (Debian 12's is) and the chart makes the same.
"""

import functools
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, Dict, List

ROOT = Path(__file__).resolve().parents[3]
OVERLAYS = ROOT / "deploy/kubernetes/overlays"
sys.path.insert(0, str(ROOT / "tests/deploy/helm"))
import renderer  # noqa: E402
from renderer import PAIRS, Renderer  # noqa: E402

Object = Dict[str, Any]
# What the manifests use and kustomize 3 does not know. The repository's own files are no measure: a mistake in them
# must fail.
PROBE = """
apiVersion: kustomize.config.k8s.io/v1beta1
kind: Kustomization
labels: [{pairs: {a: b}, includeSelectors: true}]
components: [component]
configMapGenerator: [{name: probe, literals: [a=b]}]
"""


@functools.lru_cache(maxsize=None)
def kubectl_why_not() -> str:
    """What keeps kubectl from rendering kustomize's version 4; empty where nothing does."""
    if shutil.which("kubectl") is None:
        return "kubectl is missing"
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "component").mkdir()
        (Path(folder) / "component/kustomization.yaml").write_text(
            "apiVersion: kustomize.config.k8s.io/v1alpha1\nkind: Component\nnamePrefix: a-\n")
        (Path(folder) / "kustomization.yaml").write_text(PROBE)
        done = subprocess.run(["kubectl", "kustomize", folder], capture_output=True, check=False)
    return "" if done.returncode == 0 else "this kubectl is too old: it wants kustomize 4 (kubectl 1.21 or newer)"


def why_not(overlay: str) -> str:
    """What keeps an overlay from being rendered here; empty where nothing does."""
    reason = kubectl_why_not()
    if not reason:
        try:
            import yaml  # noqa: F401
        except ImportError:
            return "python3-yaml is missing"
        return ""
    if overlay not in PAIRS:
        return f"{reason}, and the chart has no {overlay}"
    return f"{reason}, and no chart instead: {renderer.why_not()}" if renderer.why_not() else ""


def by_kubectl(overlay: str) -> List[Object]:
    import yaml
    done = subprocess.run(["kubectl", "kustomize", str(OVERLAYS / overlay)], capture_output=True, text=True,
                          check=False)
    if done.returncode != 0:
        raise RuntimeError(f"kubectl kustomize {overlay}: {done.stderr}")
    return [one for one in yaml.safe_load_all(done.stdout) if one]


def render(overlay: str, build: Path) -> List[Object]:
    """The objects of an overlay for which why_not() says nothing; the chart's renderer is built in `build`."""
    if not kubectl_why_not():
        return by_kubectl(overlay)
    print(f"{overlay}: from the chart", flush=True)
    return Renderer(build / "chart").overlay(overlay)
