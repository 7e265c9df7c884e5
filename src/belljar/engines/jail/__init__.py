"""The embedded wall: Linux namespaces, a private root, seccomp, Landlock and cgroups."""
