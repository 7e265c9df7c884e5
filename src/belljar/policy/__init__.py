"""What a caller may have, decided before anything starts. Pure: no engine is imported here."""
