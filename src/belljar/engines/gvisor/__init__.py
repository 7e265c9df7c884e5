"""gVisor: a kernel in user space between the code and the host's, run by `runsc` without Docker."""
