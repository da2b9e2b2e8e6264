"""Prints the oldest version that pyproject.toml declares of each dependency, as pip takes it."""

import re

import tomllib

with open("pyproject.toml", "rb") as stream:
    project = tomllib.load(stream)["project"]
for dependency in project["dependencies"]:
    match = re.match(r"([\w.-]+)>=([\d.]+)", dependency)
    if match is None:
        raise SystemExit(f"{dependency} declares no oldest version")
    print(f"{match[1]}=={match[2]}")
