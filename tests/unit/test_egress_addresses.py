"""N1: which addresses the gateway dials, whatever name led there."""

from __future__ import annotations

import pytest

from belljar.egress import addresses

NEVER = """
0.0.0.0 0.1.2.3 10.0.0.1 10.255.255.255 100.64.0.1 100.100.100.200 100.127.255.255
127.0.0.1 127.255.255.255 168.63.129.16 169.254.169.254 169.254.0.1 172.16.0.1 172.31.255.255
192.0.0.192 192.0.2.1 192.88.99.1 192.168.0.1 198.18.0.1 198.19.255.255 198.51.100.7 203.0.113.9
224.0.0.1 239.255.255.255 240.0.0.1 255.255.255.255
:: ::1 ::ffff:127.0.0.1 ::ffff:169.254.169.254 ::ffff:0:127.0.0.1 ::127.0.0.1 ::10.0.0.1
64:ff9b::127.0.0.1 64:ff9b::169.254.169.254 64:ff9b::10.0.0.1 64:ff9b:1::1 64:ff9b:1::8.8.8.8
100::1 2001::1 2001:0:7f00:1::1 2001:10::1 2001:20::1 2001:db8::1 2002:7f00:1:: 2002:808:808::1
2a00::5efe:127.0.0.1 2a00::200:5efe:10.0.0.1
3fff::1 5f00::1 fc00::1 fd00:ec2::254 fe80::1 fec0::1 ff02::1 ff0e::1
"""
PUBLIC = """
1.1.1.1 8.8.8.8 9.255.255.255 11.0.0.0 100.63.255.255 100.128.0.0 126.255.255.255 128.0.0.0
169.253.255.255 172.15.255.255 172.32.0.0 192.167.255.255 192.169.0.0 223.255.255.255
::ffff:8.8.8.8 64:ff9b::8.8.8.8 2001:4860:4860::8888 2606:4700::1111 2a00::5efe:8.8.8.8
"""


@pytest.mark.parametrize("text", NEVER.split())
def test_not_public(text: str) -> None:
    assert not addresses.is_public(addresses.plain(text))


@pytest.mark.parametrize("text", PUBLIC.split())
def test_public(text: str) -> None:
    assert addresses.is_public(addresses.plain(text))


def test_the_operator_may_choose_some() -> None:
    chosen = addresses.private(["10.1.0.0/16", "fd00:1::/64"])
    for text in ("10.1.2.3", "::ffff:10.1.2.3", "64:ff9b::10.1.2.3", "fd00:1::5"):
        assert addresses.may_be_dialled(addresses.plain(text), chosen), text
    for text in ("10.2.0.1", "fd00:2::5", "127.0.0.1", "169.254.169.254"):
        assert not addresses.may_be_dialled(addresses.plain(text), chosen), text


def test_a_zone_does_not_hide_an_address() -> None:
    assert str(addresses.plain("fe80::1%eth0")) == "fe80::1"
    assert not addresses.is_public(addresses.plain("fe80::1%eth0"))


def test_our_own_are_known() -> None:
    """The kernel says which; the other way to know agrees with it."""
    for text in ("127.0.0.1", "127.9.8.7", "::1"):
        address = addresses.plain(text)
        assert addresses.is_ours(address) and addresses._binds(address)
    for text in ("8.8.8.8", "2606:4700::1111"):
        address = addresses.plain(text)
        assert not addresses.is_ours(address) and not addresses._binds(address)


@pytest.mark.parametrize("text", ["10.1.0.1/16", "nonsense", "10.0.0.0/40"])
def test_what_is_no_network_is_said(text: str) -> None:
    with pytest.raises(ValueError):
        addresses.private([text])
