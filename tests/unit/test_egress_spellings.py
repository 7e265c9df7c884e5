"""Finding a text in all its spellings, in pieces (N2)."""

from __future__ import annotations

import base64
import cProfile
import html
import json
import re
import string
from urllib.parse import quote, quote_plus, unquote, unquote_plus, unquote_to_bytes

import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from belljar.egress.escapes import undone
from belljar.egress.finding import Spellings, Stream
from belljar.egress.spellings import exact, resizes, spellings

VALUE = b"sk-Proj_4f9aKx02/Lm+Qz=7Yt&\"'<"
INSTEAD = b"q7Zt0WmB3xLc9Rk2VhY5nD8sPf1gJ6"
NAMES = {"/": b"sol", "+": b"plus", "=": b"equals", "&": b"amp", "_": b"lowbar", "<": b"lt"}
FOUND = Spellings(spellings(VALUE, INSTEAD))

WRITTEN = {
    "as it is": lambda v: v,
    "lower case": bytes.lower,
    "upper case": bytes.upper,
    "query": lambda v: quote(v, safe="").encode(),
    "path": lambda v: quote(v).encode(),
    "form": lambda v: quote_plus(v).encode(),
    "query twice": lambda v: quote(quote(v, safe=""), safe="").encode(),
    "every byte": lambda v: b"".join(b"%%%02x" % byte for byte in v),
    "JSON": lambda v: json.dumps(v.decode())[1:-1].encode(),
    "JSON, slashes": lambda v: json.dumps(v.decode())[1:-1].replace("/", "\\/").encode(),
    "JSON, escaped": lambda v: b"".join(b"\\u%04x" % byte for byte in v),
    "JSON in JSON": lambda v: json.dumps(json.dumps(v.decode())[1:-1])[1:-1].encode(),
    "JSON in JSON, slashes": lambda v: v.replace(b"/", rb"\\\/").replace(b"+", rb"\\u002B"),
    "HTML": lambda v: html.escape(v.decode()).encode(),
    "HTML, numbers": lambda v: b"".join(
        bytes([byte]) if chr(byte).isalnum() or byte in b"-._~" else b"&#%d;" % byte for byte in v
    ),
    "HTML, all numbers": lambda v: b"".join(b"&#%d;" % byte for byte in v),
    "HTML, to base 16": lambda v: b"".join(b"&#x%02x;" % byte for byte in v),
    "HTML, names": lambda v: b"".join(
        b"&%s;" % NAMES[chr(byte)] if chr(byte) in NAMES else bytes([byte]) for byte in v
    ),
    "HTML twice": lambda v: html.escape(html.escape(v.decode())).encode(),
    "HTML in JSON": lambda v: html.escape(v.decode()).replace("&", "\\u0026").encode(),
    "HTML, percent-encoded": lambda v: quote(html.escape(v.decode()), safe="").encode(),
    "Markdown": lambda v: v.replace(b"_", rb"\_").replace(b"-", rb"\-"),
    "repr": lambda v: repr(v.decode() + "\x00")[1:-5].encode(),
    "hex": lambda v: v.hex().encode(),
    "HEX": lambda v: v.hex().upper().encode(),
    "UTF-16, capitals": lambda v: v.upper().decode().encode("utf-16"),
    "UTF-16": lambda v: v.decode().encode("utf-16"),
    "UTF-16, big end first": lambda v: v.decode().encode("utf-16-be"),
}


def _in_base64(encode, before: int, after: int):
    return lambda v: encode(b"~" * before + v + b"\xff" * after)


def _escaped(v: bytes) -> bytes:
    return json.dumps(base64.encodebytes(v).replace(b"\n", b"\r\n").decode())[1:-1].encode()


WRITTEN |= {
    f"{kind}, {before} before, {after} after": _in_base64(encode, before, after)
    for kind, encode in (
        ("base64", base64.b64encode),
        ("base64 for URLs", base64.urlsafe_b64encode),
        ("base64 in lines", base64.encodebytes),
        ("base64 in folded lines", lambda v: base64.encodebytes(v).replace(b"\n", b"\r\n \t")),
        ("base64 in escaped lines", _escaped),
        ("base64, slashes escaped", lambda v: base64.b64encode(v).replace(b"/", rb"\/")),
        ("base64, percent-encoded", lambda v: quote(base64.encodebytes(v), safe="").encode()),
        ("base64 in HTML", lambda v: base64.b64encode(v).replace(b"+", b"&#43;")),
        ("base64 in JSON", lambda v: base64.b64encode(v).replace(b"+", rb"\u002B")),
    )
    for before in (0, 1, 2, 40)
    for after in (0, 1, 2)
}

anything = st.binary(max_size=40) | st.sampled_from(
    [VALUE[:7], VALUE[5:], b"%", b"%25", b"\\u00", b"&am", b"\n", INSTEAD]
)
written = st.sampled_from(list(WRITTEN.values())).map(lambda write: write(VALUE))
texts = st.lists(anything | written, max_size=6).map(b"".join)


def in_pieces(found: Spellings, data: bytes, cuts: list[int]) -> bytes:
    stream, done, at = Stream(found), [], 0
    for cut in [*sorted(cuts), len(data)]:
        done.append(stream.feed(data[at : max(at, cut)]))
        at = max(at, cut)
    return b"".join([*done, stream.finish()])


@pytest.mark.parametrize("how", WRITTEN)
def test_every_spelling_is_found_and_its_reader_reads_the_other(how: str) -> None:
    before = WRITTEN[how](VALUE)
    after = FOUND.replace(b"<" + before + b">")[1:-1]
    assert FOUND.occur(before) and not FOUND.occur(after)
    if how.startswith("base64"):
        assert from_base64(after) == from_base64(before).replace(VALUE, INSTEAD)
    elif "UTF-16" not in how and "hex" not in how.lower():
        assert INSTEAD.lower() == read_back(after).replace(b"\\", b"").lower()
    else:
        assert after.lower() == WRITTEN[how](INSTEAD).lower()


def read_back(text: bytes) -> bytes:
    """By other means than those under test."""
    for _ in range(3):
        text = unquote_to_bytes(text)
    text = re.sub(rb"\\+(?:x|u00)(..)", lambda found: bytes.fromhex(found[1].decode()), text)
    return html.unescape(html.unescape(text.decode())).encode()


def from_base64(text: bytes) -> bytes:
    """Escapes undone with other means than those under test."""
    text = unquote_to_bytes(text).replace(rb"\r\n", b"").replace(rb"\/", b"/")
    text = re.sub(rb"\\u00(..)", lambda found: bytes.fromhex(found[1].decode()), text)
    return base64.b64decode(html.unescape(text.decode()).translate({45: "+", 95: "/"}))


@settings(deadline=None)
@given(texts, st.lists(st.integers(0, 400), max_size=12))
@example(VALUE * 3, [1, 2, 40])
def test_pieces_do_not_matter(data: bytes, cuts: list[int]) -> None:
    whole = FOUND.replace(data)
    assert in_pieces(FOUND, data, cuts) == whole
    assert in_pieces(FOUND, data, list(range(len(data)))) == whole
    assert VALUE not in whole


@settings(deadline=None)
@given(
    st.text(st.characters(min_codepoint=32, max_codepoint=126), min_size=8, max_size=20),
    st.data(),
)
@example("%25%25%25", None)
@example("\\\\\\\\\\\\\\\\", None)
@example("aaaaaaaa", None)
@example("&amp;&amp;", None)
def test_any_value(text: str, data: st.DataObject | None) -> None:
    value = text.encode()
    instead = b"Zq7" * 7
    found = Spellings(spellings(value, instead[: len(value)]))
    parts = [write(value) for write in WRITTEN.values()]
    mixed = data.draw(st.permutations(parts)) if data else parts
    whole = b"--".join(mixed[:12])
    assert value not in found.replace(whole)
    assert in_pieces(found, whole, [7, 11, 12, 90]) == found.replace(whole)


def ways(byte: int) -> list[bytes]:
    code = b"%02x" % byte
    return [
        bytes([byte]),
        bytes([byte]).swapcase(),
        b"%" + code,
        b"%25" + code.upper(),
        rb"\u00" + code,
        rb"\\x" + code,
        b"&#%d;" % byte,
        b"&#x%s;" % code,
        b"&amp;#0%d;" % byte,
    ]


@settings(deadline=None)
@given(
    st.text(st.sampled_from("aZ09-_./+=;~:#<>\"'? "), min_size=8, max_size=40).filter(
        lambda text: text == text.strip()
    ),
    st.data(),
)
def test_any_mixture_of_ways(text: str, data: st.DataObject) -> None:
    """Each character in another way."""
    value = text.encode()
    instead = (b"Zq7" * 14)[: len(value)]
    found = Spellings(spellings(value, instead))
    written = b"".join(data.draw(st.sampled_from(ways(byte))) for byte in value)
    if len(written) > found.window_bytes:
        return
    cut = data.draw(st.integers(0, len(written)))
    whole = found.replace(b"> " + written + b"\n\n")
    assert whole.endswith(b"\n\n") and not found.occur(whole)
    assert read_back(whole[2:-2]).lower() == instead.lower()
    assert in_pieces(found, b"> " + written + b"\n\n", [cut]) == whole


@pytest.mark.parametrize(
    "before",
    rb"% %4 %2 %25 %254 %25254 \x \x4 \u \u0 \u00 \u004 100%2525 & &# \ \\ \\x &#x4 + %2B".split(),
)
@pytest.mark.parametrize(
    "value", [b"41/bcdef=", b"2541/bcdef=", b"1/bcdefg=", b"x41/bcdef=", b"0041/bcd=", b"/zbcdef="]
)
def test_what_stands_in_front_does_not_hide_it(before: bytes, value: bytes) -> None:
    """Code chooses it where a query or a body may have the placeholder."""
    found = Spellings(spellings(value, b"Zq7Zq7Zq7Zq7"[: len(value)]))
    for written in (value, value.replace(b"/", rb"\/"), value.replace(b"=", b"%3D")):
        assert b"/bcd" not in found.replace(before + written).replace(b"\\", b"")
        assert b"zbcdef" not in found.replace(before + written)


def test_a_host_may_have_undone_what_looks_like_an_escape() -> None:
    found = Spellings(spellings(b"a%41bc+defgh", b"Zq7Zq7Zq7Zq7"))
    for written in (b"a%41bc+defgh", b"aAbc defgh", b"a%2541bc%2Bdefgh", rb"a%41bc\u002bdefgh"):
        assert b"defgh" not in found.replace(written), written


@settings(deadline=None)
@given(texts)
def test_what_is_not_there_is_not_touched(data: bytes) -> None:
    found = Spellings(spellings(b"NeverInTheseTexts", b"x" * 17))
    assert found.replace(data) == data


@settings(deadline=None)
@given(texts)
def test_plain_values_keep_lengths(data: bytes) -> None:
    value, instead = b"sk-Proj_4f9aKx02LmQz", b"q7Zt0WmB3xLc9Rk2VhY5"
    found = Spellings(spellings(value, instead))
    data = data.replace(VALUE, value) + b"".join(write(value) for write in WRITTEN.values())
    assert not resizes(value)
    assert len(found.replace(data)) == len(data)


def beginnings(write):
    return st.integers(1, 12).map(lambda count: write(VALUE)[:count])


@settings(deadline=None)
@given(
    st.lists(
        st.sampled_from(list(WRITTEN.values())).flatmap(beginnings)
        | st.sampled_from([b"\n", b"\r\n", b"}\n", b"data: ", b"\xff", b"\r", b" "]),
        max_size=30,
    )
)
@example([VALUE[:9], b"!"])
def test_what_waits_says_nothing_about_the_value(pieces: list[bytes]) -> None:
    """N2: code that can have its own text answered would learn the value by what comes late."""
    own = Stream(FOUND)
    other = Stream(Spellings(spellings(b"#" * len(VALUE), INSTEAD)))
    assert [own.feed(piece) for piece in pieces] == [other.feed(piece) for piece in pieces]


@pytest.mark.parametrize("end", [b"\n\n", b"\r\n\r\n", b"}\n", b'"}]\r\n', b"\xe2\x80\xa6"])
def test_events_and_lines_do_not_wait(end: bytes) -> None:
    stream = Stream(FOUND)
    assert stream.feed(b"data: " + VALUE[:9] + end) == b"data: " + VALUE[:9] + end
    assert stream.feed(b"abc") == b""


def test_of_two_the_longer_and_then_the_first() -> None:
    found = Spellings([exact(b"abcdefgh", b"11111111"), exact(b"abcdefghij", b"2222222222")])
    assert found.replace(b"abcdefghi abcdefghij") == b"11111111i 2222222222"
    assert in_pieces(found, b"abcdefghi abcdefghij", [9, 18]) == b"11111111i 2222222222"
    assert Spellings([exact(b"abc", b"1"), exact(b"abc", b"2")]).replace(b"abc") == b"1"


def test_long_values_are_compared_to_their_end() -> None:
    value = bytes(33 + i * 7 % 90 for i in range(4096))
    found = Spellings(spellings(value, b"x" * 4096))
    nearly = value[:-1] + b"\x7f"
    assert found.replace(nearly + value) == nearly + b"x" * 4096
    assert value not in base64.b64decode(found.replace(base64.b64encode(b"a" + value)))


COSTLY = {
    "one letter, then a sign": (b"a" * 4095 + b"&", b"a" * 4000 + b"&"),
    "one letter": (b"a" * 4096, b"a" * 4095 + b"b"),
    "a sign among letters": (b"a" * 2000 + b"&" + b"a" * 2095, b"aaaaaaaaa&"),
    "backslashes": (b"\\" * 4095 + b"X", b"\\"),
    "percent signs": (b"%25" * 1365 + b"x", b"%25"),
    "an open end": (b"a" * 3000 + b"\\" * 1000, b"a" * 99 + b"\\" * 900 + b"!"),
    "ampersands": (b"&amp;" * 800 + b"x", b"&amp;"),
    "base64 with blank lines": (b"a" * 4095 + b"b", b"YWFh" * 900 + b"\n\n"),
}


def steps(value: bytes, data: bytes) -> int:
    """Calls made, of Python and of its built-in functions. (No clock: machines are busy.)"""
    found = Stream(Spellings(spellings(value, b"x" * len(value))))
    profile = cProfile.Profile()
    profile.enable()
    for at in range(0, len(data), 16_384):
        found.feed(data[at : at + 16_384])
    found.finish()
    profile.disable()
    return sum(one.callcount for one in profile.getstats())


@pytest.mark.parametrize("kind", COSTLY)
def test_work_grows_with_the_data_alone(kind: str) -> None:
    """Four times the data are four times the steps, and a byte costs few of them."""
    value, repeated = COSTLY[kind]
    data = (repeated * 262_144)[:262_144]
    once, often = steps(value, data[:65_536]), steps(value, data)
    assert often < 6 * once + 1000
    assert often < 20 * len(data)


ENCODERS = {
    "nothing": (lambda text: text, lambda text: text),
    "query": (lambda text: quote(text, safe=""), unquote),
    "path": (quote, unquote),
    "query twice": (lambda text: quote(quote(text, safe="")), lambda text: unquote(unquote(text))),
    "form": (quote_plus, unquote_plus),
    "JSON": (lambda text: json.dumps(text)[1:-1], lambda text: json.loads(f'"{text}"')),
    "JSON, slashes": (
        lambda text: json.dumps(text)[1:-1].replace("/", "\\/"),
        lambda text: json.loads(f'"{text}"'),
    ),
    "HTML": (html.escape, html.unescape),
    "HTML in JSON": (
        lambda text: json.dumps(html.escape(text))[1:-1].replace("&", "\\u0026"),
        lambda text: html.unescape(json.loads(f'"{text}"')),
    ),
    "JSON in HTML": (
        lambda text: html.escape(json.dumps(text)[1:-1]),
        lambda text: json.loads(f'"{html.unescape(text)}"'),
    ),
    "query in JSON": (
        lambda text: json.dumps(quote(text))[1:-1].replace("/", "\\/"),
        lambda text: unquote(json.loads(f'"{text}"')),
    ),
}
AROUND = ["", " ", "%", "%4", "%25", "%2", "\\", "\\\\", "\\x", "\\u00", "\\u004", "&", "&#", "&#4"]
AROUND += [
    "&#x",
    "&amp",
    "a",
    "4",
    "41",
    ";",
    "lt;",
    "amp;",
    "x41",
    "u0041",
    "#65;",
    "2541",
    "+",
    "/",
]


@settings(deadline=None, max_examples=600)
@given(
    st.text(st.sampled_from("abcdefxuzABZ0123459-_./+=~:"), min_size=8, max_size=24)
    | st.text(st.sampled_from("abxu0124-/+%&\\;#<"), min_size=10, max_size=24),
    st.sampled_from(list(ENCODERS)),
    st.sampled_from(AROUND),
    st.sampled_from(AROUND),
)
@example("4a/bcdef==", "JSON, slashes", "%4", "")
@example("41/bcdef==", "query in JSON", "%", "")
def test_whatever_code_puts_around_it_a_host_that_encodes_it_gives_nothing_back(
    value: str, how: str, before: str, behind: str
) -> None:
    """Code chooses what stands around the value, the host encodes it all, code decodes it."""
    encode, decode = ENCODERS[how]
    assume(len(undone(undone(value.encode()))) >= 8)  # others are refused
    instead = "".join(f"Q{digit}" for digit in range(9)) * 2
    found = Spellings(spellings(value.encode(), instead[: len(value)].encode()))
    scrubbed = found.replace(encode(f"<{before}{value}{behind}>").encode()).decode()
    try:
        read = decode(scrubbed)
    except ValueError:  # what is left of an escape beside it
        read = scrubbed
    assert value.lower() not in read.lower()
    assert value.lower() not in html.unescape(unquote(scrubbed)).replace("\\", "").lower()


SURROUNDINGS = [
    ("", ""),
    ("<p>", "</p>"),
    ('{"a": "', '"}'),
    ("Bearer ", "\r\n"),
    ("Bearer ", "\\r\\n"),
    ("?t=", "&x=1"),
    ("'", "'"),
    ("[", "]"),
    ("token ", ", bad"),
    ('\\"', '\\"'),
    ("&quot;", "&quot;"),
    ("%22", "%22"),
]


@settings(deadline=None, max_examples=400)
@given(
    st.text(st.sampled_from("aZ09%\\&;<>\"'/+="), min_size=8, max_size=20),
    st.sampled_from(["", "%", "\\", "&", "\\\\", "%4", "&am", "\\u00", "&#4", "%25", "&amp;"]),
    st.sampled_from(list(ENCODERS)),
    st.sampled_from(SURROUNDINGS),
    st.lists(st.integers(0, 200), max_size=5),
)
@example('p"ssw0rd<1', "\\", "JSON", ('{"a": "', '"}'), [])
@example('p"ssw0rd<1', "\\", "HTML", ("<p>", "</p>"), [])
@example("5021m&\\%5ap", "", "query twice", ("<p>", "</p>"), [])
def test_a_value_that_a_host_encodes_between_its_own_text_is_found(
    value: str, end: str, how: str, around: tuple[str, str], cuts: list[int]
) -> None:
    """Also one that ends in what could be the beginning of an escape."""
    value += end
    assume(len(undone(undone(value.encode()))) >= 8)  # others are refused
    written = ENCODERS[how][0](value)
    found = Spellings(spellings(value.encode(), (b"Zq7" * 9)[: len(value)]))
    data = f"got {around[0]}{written}{around[1]} back".encode()
    for scrubbed in (found.replace(data), in_pieces(found, data, cuts)):
        assert written.encode() not in scrubbed
        assert scrubbed.startswith(b"got ") and scrubbed.endswith(b" back")


@pytest.mark.parametrize("end", ["\\", "\\\\", "%", "&", "%4", "&am"])
@pytest.mark.parametrize("how", ["JSON", "HTML", "query", "query in JSON"])
def test_what_is_around_a_value_with_an_open_end_can_still_be_read(end: str, how: str) -> None:
    value, instead = 'p"ssw0rd<1' + end, "Q1Q2Q3Q4Q5Q6Q7"
    encode, decode = ENCODERS[how]
    found = Spellings(spellings(value.encode(), instead[: len(value)].encode()))
    scrubbed = found.replace(encode(f'("{value}")').encode()).decode()
    assert decode(scrubbed).lower() == f'("{instead[: len(value)]}")'.lower()


SIGNS_OF_BASE64 = {
    "as they are": {},
    "HTML": {"+": "&#43;", "/": "&#x2F;", "=": "&#61;"},
    "HTML, names": {"+": "&plus;", "/": "&sol;"},
    "JSON": {"+": "\\u002b", "/": "\\/"},
    "JavaScript": {"+": "\\u{2b}", "/": "\\u{002F}"},
    "query": {"+": "%2B", "/": "%2F", "=": "%3D"},
    "letters, too": {"+": "&#43;", "a": "%61", "W": "&#87;", "0": "\\u0030", "Z": "&#x5A;"},
}
LINE_BREAKS = [
    "\n",
    "\r\n",
    "\r",
    "\n  ",
    "\r\n\t",
    "%0D\n",
    "\r%0A",
    "&#13;\n",
    "\r&#10;",
    "%0A",
    "\\n",
]


@settings(deadline=None, max_examples=400)
@given(
    st.binary(max_size=30),
    st.text(st.characters(min_codepoint=33, max_codepoint=126), min_size=8, max_size=40),
    st.binary(max_size=30),
    st.sampled_from([1, 4, 8, 19, 64, 76]),
    st.sampled_from(LINE_BREAKS),
    st.sampled_from(list(SIGNS_OF_BASE64)),
    st.lists(st.integers(0, 300), max_size=5),
)
@example(b"ab", ">>>>>>>>>>>>", b"", 4, "\n", "HTML", [])
@example(b"", "????????????", b"", 4, "\r\n", "JavaScript", [20])
def test_base64_in_lines_is_found_wherever_an_escaped_letter_stands(
    before: bytes, text: str, behind: bytes, width: int, line_break: str, how: str, cuts: list[int]
) -> None:
    value = text.encode()
    assume(value not in before + behind)
    letters = base64.b64encode(before + value + behind).decode()
    lines = [letters[at : at + width] for at in range(0, len(letters), width)]
    written = line_break.join(line.translate(str.maketrans(SIGNS_OF_BASE64[how])) for line in lines)
    found = Spellings(spellings(value, (b"Zq7" * 14)[: len(value)]))
    assume(len(written) <= found.window_bytes)
    data = f"<pre>{written}</pre>".encode()
    for scrubbed in (found.replace(data), in_pieces(found, data, cuts)):
        read = re.sub(
            r"\\u\{?(?:00)?(..)\}?", lambda one: chr(int(one[1], 16)), scrubbed[5:-6].decode()
        )
        read = html.unescape(unquote(read)).replace("\\n", "").replace("\\", "")
        assert value not in base64.b64decode(read)


def test_of_two_that_overlap_none_is_passed_on() -> None:
    """Code that knows how one value ends can write the rest of it before another."""
    first, second = b"user-key-sk-live-", b"sk-live-7Qw2Zx9Lm4Kp0Vb8"
    found = Spellings([*spellings(first, b"A" * 17), *spellings(second, b"B" * 24)])
    for before, after in ((b"user-key-", b"."), (b"%75ser-key-", b"%41")):
        scrubbed = found.replace(before + second + after)
        assert scrubbed.endswith(b"0" * 16 + after)
        assert len(scrubbed) == len(before + second + after)
    assert found.replace(second + first) == b"B" * 24 + b"A" * 17


@pytest.mark.parametrize(
    "value",
    [b"12121212", b"aaaaaaaa", b"abcabcabcab", b"secret-key-secret", b"%41%41%41%41%41%41%41%41"],
)
def test_a_value_that_repeats_itself_is_replaced_to_its_end(value: bytes) -> None:
    """Code that writes the beginning of it in front of it would else read its end."""
    found = Spellings(spellings(value, b"P" * len(value)))
    for overlap in range(1, len(value)):
        if not value.endswith(value[: len(value) - overlap]):
            continue
        data = b"<" + value[:overlap] + value + b">"
        whole = found.replace(data)
        assert whole.startswith(b"<P") and whole.endswith((b"P>", b"0>"))
        assert value[-overlap:] not in whole
        for cut in range(len(data)):
            stream = Stream(found)
            pieces = stream.feed(data[:cut]) + stream.feed(data[cut:]) + stream.finish()
            assert pieces == whole


def test_values_that_all_overlap_do_not_take_long() -> None:
    """Counted, not timed: each byte is looked at by few of the finds."""
    base = (string.ascii_lowercase + string.digits).encode()[:32]
    turned = [(base * 2)[at : at + 32] for at in range(32)]
    found = Spellings(form for one in turned for form in spellings(one, b"P" * 32))
    data = base * 512
    advance = found.advance(data, until=len(data))
    assert base[:8] not in advance.done
    assert advance.finds < 2 * len(data)
    one = Spellings(spellings(b"a" * 8, b"P" * 8))
    assert one.advance(b"a" * 16_384, until=16_384).finds < 3 * 16_384 / 4
