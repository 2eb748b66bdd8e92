#!/usr/bin/env python3
"""Makes Aludel's container image from its Debian packages, without a container tool, a registry or root.

    deploy/image/make_image.py --packages build/release/packages --out build/release/image/aludel.oci.tar

The archive is an OCI image layout, which `podman load`, `skopeo copy oci-archive:` and containerd read. Prints its
digest, by which manifests name it. The same packages on the same Debian give the same bytes; the time is
SOURCE_DATE_EPOCH, else the commit's.
"""

import argparse
import gzip
import hashlib
import io
import json
import os
import subprocess
import sys
import tarfile
import tempfile
import time
from pathlib import Path
from typing import Any, Dict, List, Tuple

sys.path.insert(0, str(Path(__file__).resolve().parent))
import sbom  # noqa: E402
from root_files import DEMO, LIBRARIES, SERVERS, USER, File, RootFiles  # noqa: E402

HERE = Path(__file__).resolve().parent
DESCRIPTION = "Disaggregated prefill and decode servers for language models, with their gateway"
# What NVIDIA's container runtime mounts of the driver. Which cards is for the device plugin or --gpus to say: the
# gateway gets none.
CUDA_ENVIRONMENT = ["NVIDIA_DRIVER_CAPABILITIES=compute,utility"]


def of_commit(form: str) -> str:
    done = subprocess.run(["git", "log", "-1", f"--format={form}"], cwd=HERE, capture_output=True, text=True,
                          check=False)
    return done.stdout.strip()


def tar_of(files: List[File], epoch: int) -> bytes:
    """A layer: sorted, owned by root, of one time. Folders stand before what is in them."""
    entries: Dict[str, File] = {}
    for file in files:
        parts = Path(file.path).parts
        for depth in range(1, len(parts)):
            folder = "/".join(parts[:depth])
            entries.setdefault(folder, File(folder, file.layer, mode=0o755))
        entries[file.path] = file
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for path in sorted(entries):
            file = entries[path]
            info = tarfile.TarInfo(path)
            info.mtime, info.mode = epoch, file.mode
            if file.link is not None:
                info.type, info.linkname, info.mode = tarfile.SYMTYPE, file.link, 0o777
                archive.addfile(info)
            elif file.source is None and file.text is None:
                info.type = tarfile.DIRTYPE
                archive.addfile(info)
            else:
                data = sbom.content(file)
                info.size = len(data)
                archive.addfile(info, io.BytesIO(data))
    return buffer.getvalue()


class Layout:
    """Blobs of an OCI image layout."""

    def __init__(self) -> None:
        self.blobs: Dict[str, bytes] = {}

    def add(self, media: str, data: bytes) -> Dict[str, Any]:
        digest = hashlib.sha256(data).hexdigest()
        self.blobs[digest] = data
        return {"mediaType": f"application/vnd.oci.image.{media}", "digest": f"sha256:{digest}", "size": len(data)}

    def write(self, out: Path, manifest: Dict[str, Any], name: str, epoch: int) -> None:
        index = {"schemaVersion": 2, "mediaType": "application/vnd.oci.image.index.v1+json",
                 "manifests": [{**manifest, "annotations": {"org.opencontainers.image.ref.name": name}}]}
        files = [File("oci-layout", "", text='{"imageLayoutVersion":"1.0.0"}'),
                 File("index.json", "", text=json.dumps(index))]
        with tempfile.TemporaryDirectory() as folder:
            for digest, data in self.blobs.items():
                (Path(folder) / digest).write_bytes(data)
                files.append(File(f"blobs/sha256/{digest}", "", source=Path(folder) / digest))
            out.write_bytes(tar_of(files, epoch))


def configuration(version: str, revision: str, created: str, variant: str) -> Dict[str, Any]:
    """What a container starts with: no entry point, because the command picks the program; a user without rights."""
    return {"User": f"{USER}:{USER}", "WorkingDir": "/",
            "Env": ["PATH=/usr/bin", *(CUDA_ENVIRONMENT if variant == "cuda" else [])],
            "Cmd": ["/usr/bin/aludel-gateway", "--help"], "StopSignal": "SIGTERM",
            "Labels": {"org.opencontainers.image.title": "aludel", "org.opencontainers.image.description": DESCRIPTION,
                       "org.opencontainers.image.version": version, "org.opencontainers.image.revision": revision,
                       "org.opencontainers.image.created": created, "org.opencontainers.image.licenses": "Apache-2.0"}}


def make(root: RootFiles, revision: str, epoch: int, variant: str, out: Path) -> Tuple[str, int, int]:
    """Writes the archive; its digest, and the bytes of its layers packed and unpacked."""
    layout, layers, diffs, unpacked = Layout(), [], [], 0
    for name in (LIBRARIES, SERVERS, DEMO):
        files = [one for one in root.files.values() if one.layer == name]
        if files:
            plain = tar_of(files, epoch)
            unpacked += len(plain)
            diffs.append("sha256:" + hashlib.sha256(plain).hexdigest())
            layers.append(layout.add("layer.v1.tar+gzip", gzip.compress(plain, 6, mtime=0)))
    created = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(epoch))
    described = {"created": created, "architecture": "amd64", "os": "linux",
                 "config": configuration(root.version, revision, created, variant),
                 "rootfs": {"type": "layers", "diff_ids": diffs}}
    manifest = layout.add("manifest.v1+json", json.dumps({
        "schemaVersion": 2, "mediaType": "application/vnd.oci.image.manifest.v1+json",
        "config": layout.add("config.v1+json", json.dumps(described).encode()), "layers": layers}).encode())
    layout.write(out, manifest, f"aludel:{root.version}", epoch)
    return manifest["digest"], sum(one["size"] for one in layers), unpacked


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--packages", type=Path, required=True, help="folder of the .deb files")
    parser.add_argument("--out", type=Path, help="the archive; beside it FILE.spdx.json, the bill of materials")
    parser.add_argument("--root", type=Path, help="writes the files as a folder (what the Containerfile copies)")
    parser.add_argument("--variant", choices=("cpu", "cuda"), default="cpu",
                        help="cuda: programs built with CUDA; the driver is mounted")
    parser.add_argument("--library", dest="libraries", type=Path, action="append", default=[],
                        help="one more library of a Debian package (libcublasLt)")
    parser.add_argument("--no-demo", action="store_true", help="without the demo's models and configurations")
    parser.add_argument("--revision", default=of_commit("%H") or "unknown",
                        help="the commit that the packages were built from")
    wanted = parser.parse_args()
    epoch = int(os.environ.get("SOURCE_DATE_EPOCH") or of_commit("%ct") or 0)
    with tempfile.TemporaryDirectory() as folder:
        root = RootFiles(wanted.packages, Path(folder), not wanted.no_demo, wanted.libraries)
        bill = sbom.bill_of(root, epoch)
        root.files[sbom.PATH] = File(sbom.PATH, SERVERS, text=bill)
        if wanted.root:
            root.write(wanted.root)
        if wanted.out:
            wanted.out.parent.mkdir(parents=True, exist_ok=True)
            digest, packed, unpacked = make(root, wanted.revision, epoch, wanted.variant, wanted.out)
            wanted.out.with_name(wanted.out.name + ".spdx.json").write_text(bill)
            print(f"{digest}: {packed / 1e6:.1f} MB packed, {unpacked / 1e6:.1f} MB unpacked, "
                  f"{len(root.packages)} Debian packages")


if __name__ == "__main__":
    main()
