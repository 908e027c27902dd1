"""Map the repository's top folders into the one import package `smelt` (see docs/map.md)."""

from setuptools import find_packages, setup

FLOORS = ("families", "importer", "core", "targets", "devicefarm")
found = [p for f in FLOORS for p in find_packages(include=[f, f"{f}.*"])]
own = [
    p
    for p in find_packages(include=["smelt", "smelt.*"])
    if not p.startswith(tuple(f"smelt.{f}" for f in FLOORS))
]
setup(
    packages=[*own, *(f"smelt.{p}" for p in found)],
    package_dir={"smelt": "smelt", **{f"smelt.{f}": f for f in FLOORS}},
)
