"""Map the repository's top folders into the one import package `smelt` (see docs/map.md)."""

import sys

from setuptools import find_packages, setup

FLOORS = ("families", "importer", "core", "targets", "devicefarm")


def installed() -> tuple[list[str], dict[str, str]]:
    """Packages and where they lie, each once: what a wheel takes."""
    found = [p for f in FLOORS for p in find_packages(include=[f, f"{f}.*"])]
    own = [
        p
        for p in find_packages(include=["smelt", "smelt.*"])
        if not p.startswith(tuple(f"smelt.{f}" for f in FLOORS))
    ]
    return [*own, *(f"smelt.{p}" for p in found)], {"smelt": "smelt", **{f"smelt.{f}": f for f in FLOORS}}


def in_place() -> tuple[list[str], dict[str, str]]:
    """The same through the links in smelt/: for an editable install, which then is one line in a .pth file.
    With an import hook instead, a folder called `smelt`, as clones are, hides the package from its siblings.
    """
    return find_packages(include=["smelt", "smelt.*"]), {"": "."}


packages, package_dir = in_place() if "editable_wheel" in sys.argv else installed()
setup(packages=packages, package_dir=package_dir)
