"""The native parts. All other metadata is in pyproject.toml."""

from pathlib import Path

from setuptools import Extension, setup

INDEX, HTTP2, TOKENIZATION = (
    Path(folder, "native") for folder in ("indexer", "api/http2", "api/tokenization")
)


def native(name: str, folder: Path) -> Extension:
    """One extension module of all sources in a folder; where no compiler is, kvatlas runs on what it has in Python."""
    return Extension(
        name,
        sources=[str(path) for path in sorted(folder.glob("*.cpp"))],
        depends=[str(path) for path in sorted((*folder.glob("*.h"), *INDEX.glob("*.h")))],
        include_dirs=[str(INDEX)],  # python.h, for all
        define_macros=[("Py_LIMITED_API", "0x030B0000")],
        py_limited_api=True,
        optional=True,
        extra_compile_args=["-std=c++20", "-O3", "-fvisibility=hidden", "-Wall", "-Wextra"],
    )


setup(
    ext_modules=[
        native("kvatlas.indexer._native", INDEX),
        native("kvatlas.api.http2._native", HTTP2),
        native("kvatlas.api.tokenization._native", TOKENIZATION),
    ],
    include_package_data=False,  # C++ sources are for the sdist; `package-data` names what is installed
    options={"bdist_wheel": {"py_limited_api": "cp311"}},
)
