"""`belljar serve`: the same Belljar for many callers, over HTTP (A3, F2)."""
