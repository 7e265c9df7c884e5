"""A machine of its own for every sandbox: QEMU's microvm, restored from a snapshot."""
