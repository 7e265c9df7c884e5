"""Belljar as tools for models, by the Model Context Protocol (A4). Needs the extra `mcp`."""
