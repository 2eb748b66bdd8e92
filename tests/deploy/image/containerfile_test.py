"""deploy/image/Containerfile, built by buildah without a registry: what it makes is what make_image.py makes, and the
demo's servers run from it.

    containerfile_test.py --packages build/release/packages --image build/release/image/aludel.oci.tar [--full]

The first stage, which compiles everything, is taken as done: its folder /image is made here of --packages. With --full
it is built as well, on a Debian 12 made by mmdebstrap, in half an hour or so and 6 GB of disk. Needs root; exits with
77 and a reason where buildah is missing or may not work here.
"""

import argparse
import hashlib
import io
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import unittest
from pathlib import Path
from typing import Any, Dict, Tuple

ROOT = Path(__file__).resolve().parents[3]
CONTAINERFILE = ROOT / "deploy/image/Containerfile"
LAST_STAGE = "FROM scratch"
BUILT = "localhost/aludel"
given: Any = None
storage = Path()

sys.path.insert(0, str(Path(__file__).resolve().parent))
from image_test import Image  # noqa: E402


def buildah(*arguments: str) -> str:
    command = ["buildah", "--root", f"{storage}/root", "--runroot", f"{storage}/run", "--storage-driver", "vfs",
               *arguments]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                          check=False)
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(command)}: code {done.returncode}: {done.stdout[-3000:]}{done.stderr[-3000:]}")
    return done.stdout


def image_of(name: str, *content: str) -> None:
    """An image of one layer: `content` as buildah's add takes it."""
    container = buildah("from", "scratch").strip()
    buildah("add", "--quiet", container, *content)
    buildah("commit", "--quiet", container, name)
    buildah("rm", container)


def build(epoch: str) -> None:
    options = ["--isolation", "chroot", "--timestamp", epoch, "--build-arg", f"SOURCE_DATE_EPOCH={epoch}",
               "--build-arg", "REVISION=unknown", "--tag", BUILT]
    if given.full:
        debian = storage / "debian.tar"
        subprocess.run(["mmdebstrap", "--quiet", "--variant=minbase", "--include=ca-certificates", "bookworm",
                        str(debian)], check=True)
        image_of("localhost/debian:12", str(debian), "/")
        debian.unlink()
        buildah("build", *options, "--build-arg", "BUILDER=localhost/debian:12", "--file", str(CONTAINERFILE),
                "--ignorefile", str(CONTAINERFILE.with_name("containerignore")), str(ROOT))
        return
    made = storage / "made"
    subprocess.run([sys.executable, str(ROOT / "deploy/image/make_image.py"), "--packages", str(given.packages),
                    "--root", str(made / "image")], env={**os.environ, "SOURCE_DATE_EPOCH": epoch}, check=True)
    image_of("localhost/made", str(made), "/")
    last = storage / "Containerfile"
    last.write_text("FROM localhost/made AS build\n" + LAST_STAGE + CONTAINERFILE.read_text().split(LAST_STAGE, 1)[1])
    (storage / "empty").mkdir()
    buildah("build", *options, "--file", str(last), str(storage / "empty"))


def entries(image: Image) -> Dict[str, Tuple[Any, ...]]:
    """What each path of an image is."""
    found = {}
    for layer in image.layers():
        with tarfile.open(fileobj=io.BytesIO(layer)) as archive:
            for member in archive:
                data = archive.extractfile(member).read() if member.isfile() else b""  # type: ignore
                mode = 0 if member.issym() else member.mode & 0o7777  # a link's own says nothing
                found[member.name.rstrip("/")] = (member.type, mode, member.uid, member.gid, member.linkname,
                                                  hashlib.sha256(data).hexdigest())
    return found


class Containerfile(unittest.TestCase):
    @classmethod
    def setUpClass(cls) -> None:
        cls.theirs = Image(given.image)
        build(str(cls.theirs.members()[0].mtime))
        cls.archive = storage / "aludel.oci.tar"
        # Its default compresses less than others do: 64 MB.
        buildah("push", "--quiet", "--format", "oci", "--compression-format", "gzip", "--compression-level", "9", BUILT,
                f"oci-archive:{cls.archive}:aludel")
        cls.ours = Image(cls.archive)

    def test_it_starts_as_the_archive_of_make_image(self) -> None:
        ours, theirs = self.ours.config["config"], self.theirs.config["config"]
        for name in ("User", "WorkingDir", "Env", "Cmd", "StopSignal"):
            self.assertEqual(ours[name], theirs[name], name)
        self.assertNotIn("Entrypoint", ours)
        for name, value in theirs["Labels"].items():
            if name.rsplit(".", 1)[1] not in ("created", "revision"):
                self.assertEqual(ours["Labels"][name], value)

    def test_it_has_the_same_files(self) -> None:
        ours, theirs = entries(self.ours), entries(self.theirs)
        self.assertEqual(set(ours), set(theirs))
        for path, entry in theirs.items():
            if given.full:  # compiled elsewhere: programs, and what names their hashes
                entry, ours[path] = entry[:5], ours[path][:5]
            self.assertEqual(ours[path], entry, path)

    def test_its_servers_answer(self) -> None:
        """As a user without rights, over a read-only root: the cases of image_test on this archive."""
        done = subprocess.run([sys.executable, str(Path(__file__).with_name("image_test.py")), "--image",
                               str(self.archive), "--packages", str(given.packages), "Contents.test_it_is_small",
                               "Contents.test_there_is_no_shell_and_nothing_that_raises_rights"],
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
        self.assertEqual(done.returncode, 0, done.stdout)
        print(next(line for line in done.stdout.splitlines() if "first answer" in line), flush=True)


def why_not() -> str:
    """What keeps buildah from working here; empty where nothing does."""
    for program in ("buildah", *(["mmdebstrap"] if given.full else [])):
        if shutil.which(program) is None:
            return f"{program} is missing"
    if os.geteuid() != 0:
        return "this is not root"
    try:
        image_of("localhost/probe", str(CONTAINERFILE), "/")
    except RuntimeError as error:
        return f"buildah may not work here: {str(error)[-300:]}"
    return ""


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--packages", type=lambda path: Path(path).resolve(), required=True,
                        help="folder of the .deb files")
    parser.add_argument("--image", type=lambda path: Path(path).resolve(), required=True,
                        help="what make_image.py made")
    parser.add_argument("--full", action="store_true", help="the first stage as well")
    given, rest = parser.parse_known_args()
    with tempfile.TemporaryDirectory() as place:
        storage = Path(place)
        reason = why_not()
        if reason:
            print(f"skipped: {reason}")
            sys.exit(77)
        result = unittest.main(argv=[sys.argv[0], *rest], verbosity=2, exit=False).result
    sys.exit(0 if result.wasSuccessful() else 1)
