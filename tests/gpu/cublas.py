"""cuBLASLt, which a bundle leaves to the machine: where its library is, and the loader told so."""

import os
import sys
from pathlib import Path
from typing import Callable, Iterable, List, Optional

from machine import Failed, run


def folders(major: str, python_path: Iterable[str]) -> List[Path]:
    """Where CUDA toolkits, and NVIDIA's wheels in a Python, put it; the likeliest first."""
    toolkits = [Path("/usr/local/cuda"), *sorted(Path("/usr/local").glob(f"cuda-{major}*"), reverse=True),
                *(Path(os.environ[name]) for name in ("CUDA_HOME", "CUDA_PATH") if os.environ.get(name))]
    return [*(toolkit / below for toolkit in toolkits for below in ("lib64", "targets/x86_64-linux/lib", "lib")),
            *(Path(entry) / "nvidia" / below for entry in python_path for below in (f"cu{major}/lib", "cublas/lib"))]


def loader_path(folder: Optional[Path]) -> str:
    """LD_LIBRARY_PATH with the folder in front."""
    return ":".join(part for part in (str(folder or ""), os.environ.get("LD_LIBRARY_PATH", "")) if part)


def loads(library: str, folder: Optional[Path]) -> bool:
    """Whether a new process finds the library and all that it needs."""
    try:
        run([sys.executable, "-c", "import ctypes, sys; ctypes.CDLL(sys.argv[1])", library], 60,
            {"LD_LIBRARY_PATH": loader_path(folder)})
        return True
    except Failed:
        return False


def find(library: str, candidates: List[Path], loads_from: Callable[[str, Optional[Path]], bool] = loads) -> Optional[Path]:
    """The first folder that it is loaded from; None where the loader finds it by itself. Failed where nobody has it."""
    if loads_from(library, None):
        return None
    for folder in candidates:
        if (folder / library).is_file() and loads_from(library, folder):
            return folder
    raise Failed(f"{library} is neither on the loader's path nor in a CUDA toolkit or a wheel of {sys.executable}, and no "
                 f"kernel runs without it: install the CUDA Toolkit's cuBLAS or `pip install nvidia-cublas`, or name its "
                 "folder in LD_LIBRARY_PATH")
