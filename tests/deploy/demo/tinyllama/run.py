"""Runs the tests of this folder; exits with 77, which ctest reports as skipped, where NumPy is missing."""

import sys
import unittest
from pathlib import Path

HERE = Path(__file__).resolve().parent

try:
    import numpy  # noqa: F401
except ImportError:
    print(f"skipped: tinyllama: {sys.executable} has no NumPy (Debian: python3-numpy)")
    sys.exit(77)

sys.path.insert(0, str(HERE.parents[3] / "deploy/demo/tinyllama"))
result = unittest.TextTestRunner().run(unittest.TestLoader().discover(str(HERE), "*_test.py"))
sys.exit(0 if result.wasSuccessful() and result.testsRun > 0 else 1)
