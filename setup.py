"""The native index core. All other metadata is in pyproject.toml."""

from pathlib import Path

from setuptools import Extension, setup

NATIVE = Path("indexer/native")

setup(
    ext_modules=[
        Extension(
            "kvatlas.indexer._native",
            sources=[str(path) for path in sorted(NATIVE.glob("*.cpp"))],
            depends=[str(path) for path in sorted(NATIVE.glob("*.h"))],
            define_macros=[("Py_LIMITED_API", "0x030B0000")],
            py_limited_api=True,
            optional=True,  # where no compiler is, kvatlas runs on its Python index
            extra_compile_args=["-std=c++20", "-O3", "-fvisibility=hidden", "-Wall", "-Wextra"],
        )
    ],
    include_package_data=False,  # C++ sources are for the sdist; `package-data` names what is installed
    options={"bdist_wheel": {"py_limited_api": "cp311"}},
)
