"""What runs inside the module before the code does: one program per interpreter."""
