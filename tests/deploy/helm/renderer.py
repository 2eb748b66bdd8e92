"""Renders the chart deploy/helm/aludel with render.go, as helm would."""

import os
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Any, Dict, List

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[2]
CHART = ROOT / "deploy/helm/aludel"
EXAMPLES = CHART / "examples"
GOPATH = Path("/usr/share/gocode")  # where Debian's packages put sources
# Which values make which overlay of deploy/kubernetes.
PAIRS: Dict[str, List[str]] = {"cpu-demo": [], "two-models-one-pool": ["two-models-one-pool.yaml"],
                               "two-models-one-pool-hpa": ["two-models-one-pool.yaml", "hpa.yaml"], "gpu": ["gpu.yaml"],
                               "rdma": ["gpu.yaml", "rdma.yaml"], "shared-store": ["shared-store.yaml"]}
Object = Dict[str, Any]


def why_not() -> str:
    """What keeps the chart from being rendered here; empty where nothing does."""
    if shutil.which("go") is None:
        return "go is missing"
    if not (GOPATH / "src/github.com/Masterminds/sprig").is_dir() or not (GOPATH / "src/gopkg.in/yaml.v3").is_dir():
        return "Sprig is missing (Debian: golang-github-masterminds-sprig-dev)"
    try:
        import yaml  # noqa: F401
    except ImportError:
        return "python3-yaml is missing"
    return ""


class Renderer:
    """The compiled program; `build` is a folder for it that may be there already."""

    def __init__(self, build: Path) -> None:
        build.mkdir(parents=True, exist_ok=True)
        self.program = build / "render"
        environment = {**os.environ, "GO111MODULE": "off", "GOPATH": str(GOPATH), "GOCACHE": str(build / "cache"),
                       "GOFLAGS": ""}
        with tempfile.TemporaryDirectory(dir=build) as fresh:  # other tests may build and run it now
            subprocess.run(["go", "build", "-o", f"{fresh}/render", str(HERE / "render.go")], env=environment,
                           check=True)
            os.replace(f"{fresh}/render", self.program)

    def chart(self, values: List[str], namespace: str = "aludel") -> List[Object]:
        import yaml
        done = subprocess.run([str(self.program), "-namespace", namespace, str(CHART), *values], capture_output=True,
                              text=True,
                              check=False)
        if done.returncode != 0:
            raise RuntimeError(done.stderr)
        return [one for one in yaml.safe_load_all(done.stdout) if one]

    def overlay(self, name: str) -> List[Object]:
        """What the values that stand for an overlay make, in the namespace that it names."""
        objects = self.chart([str(EXAMPLES / one) for one in PAIRS[name]])
        for one in objects:
            one["metadata"]["namespace"] = "aludel"
        return objects
