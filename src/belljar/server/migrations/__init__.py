"""How the tables of the server's state came to be (Alembic)."""
