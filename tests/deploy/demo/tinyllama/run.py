"""Runs the tests of one folder; exits with 77, which ctest reports as skipped, where a package is missing.

    run.py FOLDER PACKAGE...
"""

import importlib.util
import sys
import unittest
from pathlib import Path

DEBIAN = {"numpy": "python3-numpy", "torch": "python3-torch"}

folder, packages = Path(sys.argv[1]), sys.argv[2:]
for package in packages:
    if importlib.util.find_spec(package) is None:
        print(f"skipped: {folder}: {sys.executable} has no {package} (Debian: {DEBIAN[package]})")
        sys.exit(77)

sys.path.insert(0, str(Path(__file__).resolve().parents[4] / "deploy/demo/tinyllama"))
result = unittest.TextTestRunner().run(unittest.TestLoader().discover(str(folder.resolve()), "*_test.py"))
sys.exit(0 if result.wasSuccessful() and result.testsRun > 0 else 1)
