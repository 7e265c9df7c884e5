found = []
for name, arguments in {
    "unshare(user)": (310, 337, 0x10000000),
    "socket(AF_VSOCK)": (359, 281, 40, 1, 0),
    "socket(AF_NETLINK, SOCK_DIAG)": (359, 281, 16, 3, 4),
    "personality": (136, 136, 0x0040000),
}.items():
    if answers_32(*arguments)[0]:
        found.append(name)
conclude(found)
