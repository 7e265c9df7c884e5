# What waits in socket buffers is kernel memory of the run, unread and unmapped.
import socket

limit, cap = int("{{MEM_LIMIT_MB}}") << 20, int("{{MEM_LIMIT_MB}}") * 3 << 20
block, queued, kept = b"x" * 65536, {}, []


def tcp_pair():
    with socket.create_server(("127.0.0.1", 0)) as server:
        client = socket.create_connection(server.getsockname())
        return client, server.accept()[0]


def fill(make):
    total = 0
    try:
        while total < cap:
            pair = make()
            kept.append(pair)
            for end in pair:
                end.setblocking(False)
                try:
                    while total < cap:
                        total += end.send(block)
                except BlockingIOError:
                    pass
    except OSError as error:
        info(error)
    return total


def fill_udp():
    datagram = b"x" * 60000
    try:
        while True:
            socket_ = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
            kept.append(socket_)
            socket_.bind(("127.0.0.1", 0))
            for _ in range(4):
                socket_.sendto(datagram, socket_.getsockname())
    except OSError as error:
        info(error)
    kept.pop().close()  # frees a descriptor to look with
    with open("/proc/net/udp") as table:
        waiting = [line.split()[4].split(":")[1] for line in table.read().splitlines()[1:]]
    return sum(int(size, 16) for size in waiting)


for name, queue in {
    "tcp": lambda: fill(tcp_pair),
    "udp": fill_udp,
    "unix": lambda: fill(socket.socketpair),
}.items():
    queued[name] = queue()
    info(f"{name}: {queued[name] >> 20} MB")
    if queued[name] > limit * 1.25:  # said at once: the next kind may end the run
        broken(f"{queued[name] >> 20} MB in {name} sockets, the limit is {limit >> 20}")
        sys.exit(0)
    kept.clear()
held(queued)
