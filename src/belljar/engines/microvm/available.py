"""Whether a machine can be started here, at a glance."""

from __future__ import annotations

import os
import shutil
import sys

from belljar.engines.base import Missing
from belljar.settings import Settings

PROGRAM = "qemu-system-x86_64"
_INSTALL = "on Debian and Ubuntu: apt-get install qemu-system-x86 erofs-utils"


def why_not(settings: Settings) -> Missing | None:
    if sys.platform != "linux" or os.uname().machine != "x86_64":
        return Missing(why="microVMs are made for Linux on x86-64", hint="use engine='docker'")
    if not program(settings):
        return Missing(why=f"{settings.microvm_program or PROGRAM} is not installed", hint=_INSTALL)
    from . import disks

    if not disks.maker():
        return Missing(why="neither mkfs.erofs nor mksquashfs is installed", hint=disks.HINT)
    from . import image

    if not image.locate(settings):
        return Missing(why="the guest's image is not built", hint="belljar image build --microvm")
    return None


def program(settings: Settings) -> str | None:
    return shutil.which(settings.microvm_program or PROGRAM)
