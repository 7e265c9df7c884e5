"""The suite as one class."""

from __future__ import annotations

from belljar.testing.suite.files import Files
from belljar.testing.suite.kept import Kept
from belljar.testing.suite.kept_copies import KeptCopies
from belljar.testing.suite.kept_files import KeptFiles
from belljar.testing.suite.kept_languages import KeptLanguages
from belljar.testing.suite.kept_live import KeptLive
from belljar.testing.suite.life import Life
from belljar.testing.suite.limits import Limited
from belljar.testing.suite.live import Live
from belljar.testing.suite.neighbours import Neighbours
from belljar.testing.suite.network import Networked
from belljar.testing.suite.refusals import Refusals
from belljar.testing.suite.restricted import Restricted
from belljar.testing.suite.runs import Runs


class EngineConformance(
    Runs,
    Live,
    Files,
    Limited,
    Neighbours,
    Life,
    Restricted,
    Refusals,
    Kept,
    KeptLive,
    KeptFiles,
    KeptCopies,
    KeptLanguages,
    Networked,
):
    """What a wall must do, through the public interface. Subclass it and set `engine`."""
