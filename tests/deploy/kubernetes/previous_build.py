"""Builds the servers of an earlier commit for manifests_test.py's upgrade: the nearest one whose programs differ and
that is built soon, as a compiler cache has most of it.

    previous_build.py --build build/release [--commit COMMIT] --out build/release/previous

With --commit, that one, whatever it takes. Leaves OUT/bin/aludel-{prefill,decode,gateway} and OUT/commit; where there
is nothing of the kind, it says so ("skipped: ...") and leaves no OUT/bin.
"""

import argparse
import filecmp
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Dict, List, Optional, Set

ROOT = Path(__file__).resolve().parents[3]
PROGRAMS = ["aludel-prefill", "aludel-decode", "aludel-gateway"]
CONFIGURATIONS = ROOT / "deploy/kubernetes/overlays/cpu-demo"
COMMITS = 40  # looked at, at most
COMPILATIONS = 80  # at some seconds each where the cache has none
BUILD_S = 180  # all tries together


def output_of(*command: str, cwd: Path = ROOT) -> str:
    return subprocess.run(command, cwd=cwd, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
                          check=True).stdout


def read_by(build: Path) -> Dict[str, Set[str]]:
    """The files of the repository that each object of the servers is compiled from."""
    wanted = {line for line in output_of("ninja", "-t", "inputs", *PROGRAMS, cwd=build).splitlines()
              if line.endswith(".o")}
    found: Dict[str, Set[str]] = {}
    for line in output_of("ninja", "-t", "deps", cwd=build).splitlines():
        if not line.startswith(" "):
            name = line.split(":")[0]
        elif name in wanted:
            path = os.path.relpath(os.path.normpath(build / line.strip()), ROOT)
            made = re.escape(os.path.relpath(build, ROOT))
            path = re.sub(rf"^{made}/(.*?)(\.grpc)?\.pb\.(h|cc)$", r"proto/\1.proto", path)
            found.setdefault(name, set()).add(path)
    return found


def candidates(build: Path) -> List[str]:
    """Commits that change servers, and not most of their files; the nearest first."""
    objects = read_by(build)
    found = []
    for commit in output_of("git", "rev-list", "--skip=1", f"--max-count={COMMITS}", "HEAD").split():
        changed = set(output_of("git", "diff", "--name-only", commit).splitlines())
        count = sum(bool(files & changed) for files in objects.values())
        if 0 < count <= COMPILATIONS:
            found.append(commit)
    return found


class Builder:
    """Builds one commit after the other in the same folder."""

    def __init__(self, build: Path, out: Path) -> None:
        self.build, self.out = build, out
        self.source = out / "source"
        cache = (build / "CMakeCache.txt").read_text()
        self.cuda = re.search(r"^ALUDEL_CUDA:\w+=(\w+)$", cache, re.MULTILINE)

    def make(self, commit: str, limit_s: Optional[float]) -> str:
        """Leaves stripped programs in out/bin; what went wrong, or nothing."""
        shutil.rmtree(self.source, ignore_errors=True)
        self.source.mkdir(parents=True)
        subprocess.run(f"git archive {commit} | tar -x -C '{self.source}'", shell=True, cwd=ROOT, check=True)
        # The same place below its root as ours below ours: paths are relative where the cache hashes them.
        made = self.source / os.path.relpath(self.build, ROOT)
        settings = [f"-DALUDEL_CUDA={self.cuda.group(1)}"] if self.cuda else []
        began = time.monotonic()
        with open(self.out / "log", "wb") as log:
            for command in (["cmake", "-G", "Ninja", "-S", str(self.source), "-B", str(made), "-DALUDEL_TESTS=OFF",
                             "-DCMAKE_BUILD_TYPE=Release", *settings],
                            ["ninja", "-C", str(made), *PROGRAMS]):
                left = None if limit_s is None else limit_s - (time.monotonic() - began)
                try:
                    done = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, timeout=left,
                                          check=False)
                except subprocess.TimeoutExpired:
                    return f"{commit[:9]} was not built within {limit_s:.0f} s"
                if done.returncode != 0:
                    return f"{commit[:9]} does not build here: {self.out}/log"
        fresh = self.out / "fresh"
        shutil.rmtree(fresh, ignore_errors=True)
        fresh.mkdir()
        for program in PROGRAMS:
            subprocess.run(["strip", "-o", str(fresh / program), str(made / "bin" / program)], check=True)
        reason = self.refuses(fresh) or self.same(fresh)
        if reason:
            return f"{commit[:9]}: {reason}"
        fresh.rename(self.out / "bin")
        (self.out / "commit").write_text(commit + "\n")
        shutil.rmtree(self.source)
        return ""

    def refuses(self, programs: Path) -> str:
        """What an old program says of a new configuration: an upgrade changes both, this test only programs."""
        for path in sorted(CONFIGURATIONS.rglob("*.textproto")):
            done = subprocess.run([str(programs / f"aludel-{path.stem}"), "--check-config", "--config", str(path)],
                                  capture_output=True, text=True, check=False)
            if done.returncode != 0:
                return f"refuses {path.relative_to(ROOT)}"
        return ""

    def same(self, programs: Path) -> str:
        with tempfile.TemporaryDirectory() as folder:
            for program in PROGRAMS:
                subprocess.run(["strip", "-o", f"{folder}/{program}", str(self.build / "bin" / program)], check=True)
                if not filecmp.cmp(f"{folder}/{program}", programs / program, shallow=False):
                    return ""
        return "its programs are the same"


def main() -> str:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--build", type=lambda path: Path(path).resolve(), required=True, help="ours, up to date")
    parser.add_argument("--out", type=lambda path: Path(path).resolve(), required=True)
    parser.add_argument("--commit")
    options = parser.parse_args()
    shutil.rmtree(options.out, ignore_errors=True)
    options.out.mkdir(parents=True)
    builder = Builder(options.build, options.out)
    if options.commit:
        (commit,) = output_of("git", "rev-parse", options.commit).split()
        return builder.make(commit, None)
    if shutil.which("ccache") is None:
        return "ccache is missing"
    if subprocess.run(["git", "rev-parse", "--verify", "-q", "HEAD~1"], cwd=ROOT, capture_output=True,
                      check=False).returncode != 0:
        return "this clone has no earlier commit"
    began = time.monotonic()
    reasons: List[str] = []
    for commit in candidates(options.build):
        left = BUILD_S - (time.monotonic() - began)
        if left <= 0:
            break
        reason = builder.make(commit, left)
        if not reason:
            print(f"{commit[:9]} built in {time.monotonic() - began:.0f} s")
            return ""
        reasons.append(reason)
    return "; ".join(reasons) or f"none of the last {COMMITS} commits changes some files of the servers and no more"


if __name__ == "__main__":
    said = main()
    if said:
        print(f"skipped: no programs of an earlier commit: {said}")
        sys.exit(1 if "--commit" in sys.argv else 0)
