"""An internet of the tests' own: every address there is, in namespaces that lead nowhere."""

from tests.world.place import World, why_not

__all__ = ["World", "why_not"]
