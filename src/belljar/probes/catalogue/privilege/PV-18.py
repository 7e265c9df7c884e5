ADDR_NO_RANDOMIZE = 0x0040000
result, errno = try_syscall(135, 92, ADDR_NO_RANDOMIZE)
conclude(result >= 0 and "address randomisation can be switched off", f"errno {errno}")
