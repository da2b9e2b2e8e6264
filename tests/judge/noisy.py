"""What a library may do while it is imported."""

from __future__ import annotations

import os


def start() -> None:
    print("hello from a library")
    os.write(1, b"and from a C library\n")
