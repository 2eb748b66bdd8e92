"""Objects of the overlays in deploy/kubernetes, rendered by kubectl; or by the chart, where there is no kubectl that
knows kustomize 4 and the chart makes the same.
"""

import subprocess
import sys
from pathlib import Path
from typing import Any, Dict, List

ROOT = Path(__file__).resolve().parents[3]
OVERLAYS = ROOT / "deploy/kubernetes/overlays"
sys.path.insert(0, str(ROOT / "tests/deploy/helm"))
import renderer  # noqa: E402
import tools  # noqa: E402
from renderer import PAIRS, Renderer  # noqa: E402

Object = Dict[str, Any]


def kubectl_why_not(build: Path) -> str:
    """What keeps kubectl from rendering overlays; empty where nothing does."""
    return tools.why_not("kubectl", build)


def why_not(overlay: str, build: Path) -> str:
    """What keeps an overlay from being rendered here; empty where nothing does."""
    reason = kubectl_why_not(build)
    if not reason:
        try:
            import yaml  # noqa: F401
        except ImportError:
            return "python3-yaml is missing"
        return ""
    if overlay not in PAIRS:
        return f"{reason}, and the chart has no {overlay}"
    return f"{reason}, and no chart instead: {renderer.why_not()}" if renderer.why_not() else ""


def by_kubectl(overlay: str, build: Path) -> List[Object]:
    import yaml
    done = subprocess.run([tools.path("kubectl", build), "kustomize", str(OVERLAYS / overlay)], capture_output=True,
                          text=True, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"kubectl kustomize {overlay}: {done.stderr}")
    return [one for one in yaml.safe_load_all(done.stdout) if one]


def render(overlay: str, build: Path) -> List[Object]:
    """The objects of an overlay for which why_not() says nothing; the chart's renderer is built in `build`."""
    if not kubectl_why_not(build):
        return by_kubectl(overlay, build)
    print(f"{overlay}: from the chart", flush=True)
    return Renderer(build / "chart").overlay(overlay)
