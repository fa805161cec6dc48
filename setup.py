"""The packages and native parts. All other metadata is in pyproject.toml."""

from pathlib import Path

import numpy as np
from setuptools import Extension, find_packages, setup

ROOMS = ("events", "indexer", "scorers", "configs", "tokenization", "fleet", "routing", "api", "app", "sim")
"""Top-level folders, each a package of the namespace `kvatlas`."""

EVENTS, INDEX, SCORERS, HTTP2, EXT_PROC, ENCODING = (
    Path(folder, "native")
    for folder in ("events", "indexer", "scorers", "api/http2", "api/extproc", "tokenization/encoding")
)


def packages(room: str) -> list[str]:
    """Return the full names of a room's packages."""
    return [f"kvatlas.{room}", *(f"kvatlas.{room}.{name}" for name in sorted(find_packages(room)))]


def native(name: str, folder: Path) -> Extension:
    """Return one extension module of all sources in a folder; without a compiler kvatlas runs on pure Python."""
    return Extension(
        name,
        sources=[str(path) for path in sorted(folder.glob("*.cpp"))],
        depends=[
            str(path) for path in sorted((*folder.glob("*.h"), *EVENTS.glob("*.h"), HTTP2 / "passage.h"))
        ],
        include_dirs=[
            str(EVENTS),  # python.h for all; batch.h for the index
            str(HTTP2),  # passage.h for ext-proc
            np.get_include(),  # arrays for scorers
        ],
        define_macros=[("Py_LIMITED_API", "0x030B0000")],
        py_limited_api=True,
        optional=True,
        # Scores have the bits of the Python versions, so products and sums are not fused.
        extra_compile_args=[
            "-std=c++20",
            "-O3",
            "-ffp-contract=off",
            "-fvisibility=hidden",
            "-Wall",
            "-Wextra",
        ],
    )


setup(
    packages=[name for room in ROOMS for name in packages(room)],
    package_dir={f"kvatlas.{room}": room for room in ROOMS},
    ext_modules=[
        native("kvatlas.events._native", EVENTS),
        native("kvatlas.indexer._native", INDEX),
        native("kvatlas.scorers._native", SCORERS),
        native("kvatlas.api.http2._native", HTTP2),
        native("kvatlas.api.extproc._native", EXT_PROC),
        native("kvatlas.tokenization.encoding._native", ENCODING),
    ],
    include_package_data=False,  # C++ sources are for the sdist; `package-data` names what is installed
    options={"bdist_wheel": {"py_limited_api": "cp311"}},
)
