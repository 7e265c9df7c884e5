"""Which addresses may be dialled, whatever name led to them (N1)."""

from __future__ import annotations

import errno
import socket
import struct
from collections.abc import Sequence
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network

Address = IPv4Address | IPv6Address
Network = IPv4Network | IPv6Network

_NOT_PUBLIC_4 = {
    "0.0.0.0/8": "this machine",
    "10.0.0.0/8": "a private network",
    "100.64.0.0/10": "shared by a carrier; some clouds' metadata",
    "127.0.0.0/8": "loopback",
    "168.63.129.16/32": "a cloud's host agent",
    "169.254.0.0/16": "link-local; clouds' metadata",
    "172.16.0.0/12": "a private network",
    "192.0.0.0/24": "of protocols; some clouds' metadata",
    "192.0.2.0/24": "for documentation",
    "192.88.99.0/24": "relays of 6to4",
    "192.168.0.0/16": "a private network",
    "198.18.0.0/15": "for measuring",
    "198.51.100.0/24": "for documentation",
    "203.0.113.0/24": "for documentation",
    "224.0.0.0/4": "multicast",
    "240.0.0.0/4": "reserved, broadcast",
}
_PUBLIC_6 = ip_network("2000::/3")
"""All of IPv6 that was ever given out; private, link-local, mapped and the like are outside."""
_NOT_PUBLIC_6 = {
    "2001::/23": "of protocols; Teredo, which wraps IPv4",
    "2001:db8::/32": "for documentation",
    "2002::/16": "6to4, which wraps IPv4",
    "3fff::/20": "for documentation",
}
_NAT64 = IPv6Network("64:ff9b::/96")
_ISATAP = (0x0000_5EFE, 0x0200_5EFE)

_REFUSED_4 = [ip_network(text) for text in _NOT_PUBLIC_4]
_REFUSED_6 = [ip_network(text) for text in _NOT_PUBLIC_6]

_RTM_GETROUTE, _NLM_F_REQUEST, _NLMSG_ERROR = 26, 1, 2
_RTA_DST, _RTN_UNICAST = 1, 1
_UNROUTED = (errno.ENETUNREACH, errno.EHOSTUNREACH, errno.EACCES, errno.EINVAL)


def private(texts: Sequence[str]) -> list[Network]:
    """`network_private` as networks; ValueError says which is none."""
    return [ip_network(text) for text in texts]


def plain(text: str) -> Address:
    """One address in its one form: IPv4 that IPv6 maps is IPv4."""
    address = ip_address(text)
    if isinstance(address, IPv6Address):
        if address.ipv4_mapped:
            return address.ipv4_mapped
        if address.scope_id:  # a zone of the host's is link-local or forged
            return IPv6Address(int(address))
    return address


def is_public(address: Address, allowed: Sequence[Network] = ()) -> bool:
    """Of the wide internet, or chosen by the operator."""
    if any(address in network for network in allowed):  # of the other version: is not in
        return True
    if isinstance(address, IPv4Address):
        return not any(address in network for network in _REFUSED_4)
    low = int(address) & 0xFFFF_FFFF
    if address in _NAT64:  # what a host with IPv6 alone reaches IPv4 by
        return is_public(IPv4Address(low), allowed)
    if (int(address) >> 32 & 0xFFFF_FFFF) in _ISATAP and not is_public(IPv4Address(low), allowed):
        return False
    return address in _PUBLIC_6 and not any(address in network for network in _REFUSED_6)


def is_ours(address: Address) -> bool:
    """Whether a packet to it stays on this machine (or is a broadcast): the kernel's own word."""
    try:
        kind = _route(address)
    except OSError as error:
        if error.errno in _UNROUTED:
            return False  # nothing leads there, dialling it fails by itself
        return _binds(address)
    return kind != _RTN_UNICAST


def may_be_dialled(address: Address, allowed: Sequence[Network] = ()) -> bool:
    if any(address in network for network in allowed):
        return True
    return is_public(address, allowed) and not is_ours(address)


def _route(address: Address) -> int:
    family = socket.AF_INET if address.version == 4 else socket.AF_INET6
    packed = address.packed
    # struct rtmsg: family, dst_len, src_len, tos, table, protocol, scope, type, flags
    question = struct.pack("=8BI", family, len(packed) * 8, *([0] * 7))
    question += struct.pack("=HH", 4 + len(packed), _RTA_DST) + packed
    header = struct.pack("=IHHII", 16 + len(question), _RTM_GETROUTE, _NLM_F_REQUEST, 1, 0)
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, 0) as kernel:
        kernel.settimeout(1.0)
        kernel.bind((0, 0))
        kernel.send(header + question)
        answer = kernel.recv(8192)
    (kind,) = struct.unpack_from("=H", answer, 4)
    if kind == _NLMSG_ERROR:
        (code,) = struct.unpack_from("=i", answer, 16)
        raise OSError(-code, "no route")
    return answer[16 + 7]


def _binds(address: Address) -> bool:
    """Where netlink is not to be had: only an own address can be bound."""
    family = socket.AF_INET if address.version == 4 else socket.AF_INET6
    with socket.socket(family, socket.SOCK_DGRAM) as trial:
        try:
            trial.bind((str(address), 0))
        except OSError as error:
            return error.errno != errno.EADDRNOTAVAIL
        return True
