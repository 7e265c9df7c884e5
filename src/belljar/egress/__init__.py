"""The gateway: a process of its own through which sandboxes reach the hosts that rules name."""
