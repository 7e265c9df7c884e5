"""`fetch`: one page for an agent whose code needs no network (N3).

Two sandboxes: one with a way to the page's host gets it, another without any network makes text of
it. What comes from outside is parsed in neither this process nor the one that could send it on.
"""

from belljar.fetching.fetch import Page as Page
from belljar.fetching.fetch import fetch as fetch
