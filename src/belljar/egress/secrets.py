"""Secrets on their way: the code writes a placeholder, the right host reads the value (N2).

    host      held = hold(secrets); variables(held) go into the sandbox, to_dict() to the gateway
    gateway   keeper = Keeper(Held.of(...) for each); per request keeper.name, keeper.request and
              its body, keeper.response and its body

A placeholder that heads anywhere else stops the request. That is a tripwire and not the wall: a
placeholder is worth nothing outside its sandbox. The wall is that the value is put in one header
(query and body if asked) for one host over TLS, and taken out of what that host answers
(`scrubbing`).
"""

from __future__ import annotations

import base64
import binascii
import json
import secrets as randomness
import string
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from itertools import accumulate
from urllib.parse import quote, quote_plus

from belljar.egress.bodies import LONGEST_BYTES, Filled, Outgoing
from belljar.egress.escapes import begun, undone
from belljar.egress.finding import Spellings
from belljar.egress.refusal import Refusal, blocked
from belljar.egress.scrubbing import Headers, Incoming
from belljar.egress.spellings import (
    SHORTEST_JOINED,
    exact,
    in_base64,
    resizes,
    spellings,
)
from belljar.egress.surroundings import CHARSET_FIELD, SEEN_BYTES, Kind, in_query, names_charset
from belljar.errors import InvalidRequest
from belljar.network import MOST_SECRETS, SHORTEST_SECRET, Secret

LONGEST_SECRET = 4096
"""It has to fit a header."""
MOST_TOGETHER = 16_384
"""Characters of all secrets of a sandbox: the gateway prepares to find each in every spelling."""

MOST_IN_BODY = 32
"""Placeholders: each takes its time."""

_ALPHABET = (string.ascii_letters + string.digits).encode()
_LETTERS = bytes(_ALPHABET[byte % len(_ALPHABET)] for byte in range(256))
_UNEVEN = bytes(range(256 - 256 % len(_ALPHABET), 256))
"""With these some letters would come more often than others."""
_DROPPED = frozenset(
    b"range if-range request-range x-ms-range accept-encoding accept-charset te".split()
)
"""Of requests to hosts with secrets: a part of an answer could begin within the value, and in some
character sets it is not found."""


@dataclass(frozen=True, kw_only=True)
class Held:
    """One secret with its value and its placeholder."""

    variable: str
    placeholder: bytes
    value: bytes = field(repr=False)
    host: str
    header: str
    query: bool
    body: bool

    def to_dict(self) -> dict[str, object]:
        """For the gateway's control socket, and nothing else: the value is in it."""
        return {
            "variable": self.variable,
            "placeholder": self.placeholder.decode(),
            "value": self.value.decode(),
            "host": self.host,
            "header": self.header,
            "query": self.query,
            "body": self.body,
        }

    @classmethod
    def of(cls, data: Mapping[str, object]) -> Held:
        """The inverse of `to_dict`."""
        return cls(
            variable=str(data["variable"]),
            placeholder=str(data["placeholder"]).encode(),
            value=str(data["value"]).encode(),
            host=str(data["host"]),
            header=str(data["header"]),
            query=bool(data["query"]),
            body=bool(data["body"]),
        )

    @cached_property
    def header_name(self) -> bytes:
        return self.header.partition(":")[0].lower().encode()

    @cached_property
    def around(self) -> tuple[bytes, bytes]:
        """What stands before and after it in its header."""
        before, _, after = self.header.partition(": ")[2].partition("{}")
        return before.encode(), after.encode()

    @cached_property
    def sent(self) -> dict[bytes, bytes]:
        """What the gateway writes for it beside the value itself → what is read instead of it."""
        ways = {_percent_encoded(self.value)} if self.query else set()
        if self.body:
            ways |= {_spelled(self, name) for name in ("form", "json")}
        pairs = {way: (self.placeholder * len(way))[: len(way)] for way in ways - {self.value}}
        if self.is_basic:
            pairs |= zip(in_base64(self.value), in_base64(self.placeholder), strict=True)
        return pairs

    @cached_property
    def is_basic(self) -> bool:
        """The header is base64 of user:password, and the placeholder may be one of them."""
        before, after = self.around
        return before.lower() == b"basic " and not after


def hold(secrets: Mapping[str, Secret]) -> tuple[Held, ...]:
    """Read the values now, and make a placeholder for each: random, as long as the value."""
    if len(secrets) > MOST_SECRETS:
        raise InvalidRequest(f"secrets: at most {MOST_SECRETS}")
    held = []
    for variable, secret in secrets.items():
        value = secret.value()
        if len(value) > LONGEST_SECRET:
            raise InvalidRequest(f"secrets: {variable} has more than {LONGEST_SECRET:,} characters")
        if value != value.strip():
            raise InvalidRequest(f"secrets: {variable} begins or ends with a space")
        read = undone(undone(value.encode()))
        if len(read) < SHORTEST_SECRET or len(read) - begun(read) < SHORTEST_JOINED:
            raise InvalidRequest(
                f"secrets: {variable} has fewer than {SHORTEST_SECRET} characters when its escapes "
                "are decoded; in a response it could not be told from other text"
            )
        held.append(
            Held(
                variable=variable,
                placeholder=_placeholder(len(value)),
                value=value.encode(),
                host=secret.host,
                header=secret.header,
                query=secret.query,
                body=secret.body,
            )
        )
    if sum(len(one.value) for one in held) > MOST_TOGETHER:
        raise InvalidRequest(
            f"secrets: together they have more than {MOST_TOGETHER:,} characters",
            hint="give a sandbox only the secrets that it needs",
        )
    return tuple(held)


def _placeholder(length: int) -> bytes:
    found = b""
    while len(found) < length:
        found += randomness.token_bytes(length).translate(_LETTERS, _UNEVEN)
    return found[:length]


def variables(held: Iterable[Held]) -> dict[str, str]:
    """What the code finds in its environment."""
    return {one.variable: one.placeholder.decode() for one in held}


@dataclass(frozen=True, kw_only=True)
class Rewritten:
    """A request as it goes on. `target` may hold the value: it goes into no record."""

    target: bytes
    headers: Headers
    body: Outgoing


class Keeper:
    """The secrets of one lease, in the gateway. What it raises is a Refusal."""

    def __init__(self, held: Sequence[Held] = ()) -> None:
        self._held = tuple(held)
        self._written = [(one, spellings(one.placeholder, one.placeholder)) for one in held]
        self._any = Spellings(form for _, forms in self._written for form in forms)
        self._owners = {id(form): one for one, forms in self._written for form in forms}
        self._bodies: dict[tuple[str, Kind | None], Spellings] = {}
        self._values: dict[str, Spellings] = {}

    def guards(self, host: str) -> bool:
        """Whether `host` gets a secret. Then no tunnel and no Upgrade may lead to it, for what
        they carry cannot be read."""
        return any(one.host == host for one in self._held)

    def name(self, host: str) -> None:
        """To be asked before `host` is looked up: a look-up tells the name to others."""
        self._refuse([(host.encode(), "the name of the host")], host, tls=True)

    def request(
        self, *, host: str, tls: bool, method: bytes, target: bytes, headers: Headers
    ) -> Rewritten:
        """`host` as `host_name` gives it; `headers` without those of the hop."""
        own = [one for one in self._held if one.host == host and tls]
        if self.guards(host):
            headers = [one for one in headers if one[0].lower() not in _DROPPED]
            headers.append((b"Accept-Encoding", b"identity"))
        kinds = _all(headers, b"content-type")
        kind = Kind()
        if any(one.body for one in own):
            kind = Kind.of(kinds, _all(headers, b"content-encoding"))
        unmeasured = any(
            one.body and len(_spelled(one, kind.name)) != len(one.value) for one in own
        )

        def check(trailers: Headers) -> None:
            parts = [(b": ".join(one), "what follows the body") for one in trailers]
            self._refuse(parts, host, tls=tls)

        body = self._outgoing(host, kind, own, check)
        rest = [(host.encode(), "the name of the host"), (method, "the method")]
        if any(one.query or one.body for one in own) and names_charset(target):
            _raise_charset(host)
        target, left = _fill_query(own, target, kinds)
        rest.append((left, "the address"))
        filled: Headers = []
        used: list[Held] = []
        for name, value in headers:
            value, left = _fill_header(own, name, value, used)
            shown = name.decode("ascii", "replace")[:64]
            rest += [(name, "the name of a header"), (left, f"the header {shown}")]
            filled.append((name, value))
        self._refuse(rest, host, tls=tls)
        if len(used) > len(set(map(id, used))):
            raise blocked(f"{used[0].variable} stands in more than one header")
        headers = filled
        if unmeasured:
            headers = _unmeasured(headers)
        return Rewritten(target=target, headers=headers, body=body)

    def response(
        self, *, host: str, method: bytes, status: int, reason: bytes, headers: Headers
    ) -> Incoming:
        """Also for what comes before the answer proper (1xx). Its head is still to be read."""
        own = [one for one in self._held if one.host == host]
        if own and host not in self._values:
            self._values[host] = Spellings(
                form for one in own for form in spellings(one.value, one.placeholder, one.sent)
            )
        return Incoming(
            self._values.get(host),
            host=host,
            method=method,
            status=status,
            reason=reason,
            headers=headers,
            resizing=any(resizes(one.value) for one in own),
        )

    def _refuse(self, parts: Sequence[tuple[bytes, str]], host: str, *, tls: bool) -> None:
        """If there is a placeholder in any of them."""
        # No spelling has this byte in it, so none is found across two parts.
        found = self._any.first(b"\xff".join(part for part, _ in parts))
        if found is None:
            return
        form, at = found
        ends = accumulate(len(part) + 1 for part, _ in parts)
        where = next(where for end, (_, where) in zip(ends, parts, strict=True) if at < end)
        raise _refusal(self._owners[id(form)], where, host, tls=tls)

    def _outgoing(
        self, host: str, kind: Kind, own: Sequence[Held], check: Callable[[Headers], None]
    ) -> Outgoing:
        # Names below a `*.` have no end: all hosts without a secret share one.
        key = host if own else ""
        if (stopped := self._bodies.get((key, None))) is None:
            forms = [
                form.refusing(partial(_raise, one, key or "another host"))
                for one, written in self._written
                for form in written
            ]
            if any(one.query or one.body for one in own):
                # Some hosts read query and form as one.
                forms += [
                    form.refusing(partial(_raise_charset, host))
                    for form in spellings(CHARSET_FIELD, CHARSET_FIELD)
                ]
            stopped = self._bodies[key, None] = Spellings(forms)
        filling = [one for one in own if one.body]
        if not filling:
            return Outgoing(stopped, check)
        if (filled := self._bodies.get((key, kind))) is None:
            forms = [
                exact(
                    one.placeholder,
                    _spelled(one, kind.name),
                    partial(_check_place, one, kind, "the body"),
                )
                for one in filling
            ]
            filled = self._bodies[key, kind] = Spellings([*forms, *stopped.forms])
        return Filled(filled, stopped, check, partial(_check_whole, filling, kind))


def _refusal(one: Held, where: str, host: str, *, tls: bool) -> Refusal:
    if one.host != host:
        return blocked(f"{one.variable} belongs to {one.host} and stands in {where} for {host}")
    if not tls:
        return blocked(f"{one.variable} is sent to {host} over https only")
    places = [f"the header {one.header!r}"]
    places += ["the query"] if one.query else []
    places += ["the body"] if one.body else []
    return blocked(
        f"{one.variable} stands in {where}, but may stand, as it is, only in {' or '.join(places)}"
    )


def _raise(one: Held, host: str) -> bytes:
    if one.host == host and one.body:
        raise blocked(
            f"{one.variable} stands in the body, but not as it is, or in one of more than "
            f"{LONGEST_BYTES:,} bytes"
        )
    raise _refusal(one, "the body", host, tls=True)


def _raise_charset(host: str) -> bytes:
    raise blocked(
        f"a request to {host}, which gets a secret in the query or the body, names a character set "
        f"in a field {CHARSET_FIELD.decode()}"
    )


def _check_whole(own: Sequence[Held], kind: Kind, body: bytes) -> None:
    """Refuses a body with a value in it that is something else than it says."""
    counts = [(body.count(one.placeholder), one) for one in own]
    if sum(count for count, _ in counts) > MOST_IN_BODY:
        raise blocked(f"secrets stand in the body more than {MOST_IN_BODY} times")
    for count, one in counts:
        if count and (why := kind.unlike(body, one.placeholder)):
            raise blocked(f"{one.variable} stands in the body, {why}")


def _check_place(one: Held, kind: Kind, where: str, before: bytes, after: bytes) -> None:
    """Refuses a value where a host would not read it as it is."""
    if why := kind.trouble(before, after):
        raise blocked(
            f"{one.variable} stands in {where}, {why}: the host might not read the value as it is"
        )


def _fill_query(
    own: Sequence[Held], target: bytes, content_types: Sequence[bytes]
) -> tuple[bytes, bytes]:
    """The target with values, and what of it a placeholder may not stand in."""
    path, mark, query = target.partition(b"?")
    left = query
    for one in own:
        if one.query and one.placeholder in left:
            kind = in_query(content_types)
            before, *rest = left.split(one.placeholder)
            for further in rest:
                _check_place(one, kind, "the query", before[-SEEN_BYTES:], further[:1])
                before += b"\xff" + further
            query = query.replace(one.placeholder, _percent_encoded(one.value))
            left = before
    return path + mark + query, path + mark + left


def _percent_encoded(value: bytes) -> bytes:
    return quote(value, safe="").encode()


def _fill_header(
    own: Sequence[Held], name: bytes, value: bytes, used: list[Held]
) -> tuple[bytes, bytes]:
    """The same for a header: a placeholder where the secret's template has it is replaced."""
    for one in own:
        if one.header_name != name.lower():
            continue
        # A cookie is one of several in its header.
        parts = value.split(b"; ") if one.header_name == b"cookie" else [value]
        filled = [_fill_part(one, part) for part in parts]
        if found := [one for part, new in zip(parts, filled, strict=True) if new[0] != part]:
            used += found
            return b"; ".join(new for new, _ in filled), b"\xff".join(left for _, left in filled)
    return value, value


def _fill_part(one: Held, part: bytes) -> tuple[bytes, bytes]:
    before, after = one.around
    begins, rest = part[: len(before)], part[len(before) :]
    if begins.lower() != before.lower():
        return part, part
    if rest == one.placeholder + after:
        return begins + one.value + after, b""
    if one.is_basic:
        try:
            user, colon, password = base64.b64decode(rest, validate=True).partition(b":")
        except binascii.Error:
            return part, part
        if colon and password == one.placeholder:
            return begins + base64.b64encode(user + b":" + one.value), user
        if colon and user == one.placeholder:
            return begins + base64.b64encode(one.value + b":" + password), password
    return part, part


def _all(headers: Headers, wanted: bytes) -> list[bytes]:
    return [value for name, value in headers if name.lower() == wanted]


def _spelled(one: Held, kind: str) -> bytes:
    """The value as it is written in a body of this kind."""
    if kind == "form":
        return quote_plus(one.value).encode()
    return json.dumps(one.value.decode())[1:-1].encode()


def _unmeasured(headers: Headers) -> Headers:
    """For a body whose length may change."""
    if not any(name.lower() == b"content-length" for name, _ in headers):
        return headers
    kept = [one for one in headers if one[0].lower() != b"content-length"]
    return [*kept, (b"Transfer-Encoding", b"chunked")]
