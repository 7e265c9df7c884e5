"""What tenants do: each job is one or several requests that belong together."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from random import Random
from typing import Any
from urllib.parse import quote

from belljar.testing.upstream import NAME

from .cases import CASES, Case
from .talk import AGENTS, Disturbed, Judge, Talk

USE_SECRET = """\
import os, urllib.request
key = os.environ["API_KEY"]
asked = urllib.request.Request("{url}", headers={{"Authorization": "Bearer " + key}})
with urllib.request.urlopen(asked, timeout=60) as answer:
    echo = answer.read().decode()
print("{token}", echo == "Bearer " + key)
"""
REFUSED = """\
import urllib.request
try:
    urllib.request.urlopen("{url}", timeout=60)
except OSError as error:
    print("{token}", getattr(error, "code", error))
"""
LARGE = "open('/data/output/large', 'wb').write(bytes(3 << 20))\nprint('{token}')"


@dataclass(frozen=True)
class Job:
    weight: int
    do: Callable[[Talk, Random], Awaitable[None]]
    once: bool = True
    """One-shot runs alone, by clients that stay."""


def say(expected: str) -> Judge:
    return lambda result: "" if result["stdout"] == expected else f"not {expected!r}"


# -- one-shot runs ---------------------------------------------------------------------------------


def chosen(cases: Sequence[Case], *, hostile: bool) -> Callable[[Talk, Random], Awaitable[None]]:
    mine = [case for case in cases if case.hostile is hostile]
    weights = [case.weight for case in mine]

    async def job(talk: Talk, chance: Random) -> None:
        case = chance.choices(mine, weights)[0]
        token = talk.token()

        def judge(result: Any) -> str:
            return "" if case.right(result, token) else f"not what {case.name} is answered with"

        if chance.random() < 0.25:
            await talk.stream(
                f"stream {case.name}",
                "/v1/runs",
                case.request(token),
                token=token,
                judge=judge,
                one_run=True,
            )
        else:
            await talk.ask(
                case.name,
                "POST",
                "/v1/runs",
                case.request(token),
                token=token,
                judge=judge,
                one_run=True,
            )

    return job


async def execute(talk: Talk, chance: Random) -> None:
    token = talk.token()
    failing = chance.random() < 0.2
    code = f"print('{token}')" + ("; raise SystemExit(3)" if failing else "")

    def judge(answer: Any) -> str:
        expected = (not failing, 3 if failing else 0, f"{token}\n", "")
        found = tuple(answer[name] for name in ("success", "exit_code", "output", "error"))
        return "" if found == expected else "not what the code does"

    body = {"code": code, "timeout": 30}
    await talk.ask("execute", "POST", "/execute", body, token=token, judge=judge, one_run=True)


async def mistake(talk: Talk, chance: Random) -> None:
    wrong: tuple[dict[str, Any], ...] = (
        {"language": "cobol"},
        {"timeout_s": 100_000.0},
        {"engine": "paper"},
        {"network": ["elsewhere.example"]},
    )
    body = {"code": "print(1)", **chance.choice(wrong)}
    await talk.ask("mistake", "POST", "/v1/runs", body, expect=400, one_run=True)


async def leave(talk: Talk, chance: Random) -> None:
    """Hangs up at any moment, also while a large result is on its way into the trail."""
    token = talk.token()
    body = {"code": LARGE.format(token=token)}
    await talk.ask(
        "leave",
        "POST",
        "/v1/runs",
        body,
        token=token,
        judge=say(f"{token}\n"),
        one_run=True,
        leave_after_s=chance.uniform(0.005, 0.3),
    )


# -- the network -----------------------------------------------------------------------------------


def access(talk: Talk) -> dict[str, Any]:
    """To the one host there is, with this tenant's credential."""
    secret = {"value": talk.tenant.secret, "host": NAME}
    return {"network": list(talk.place.upstream.rule()), "secrets": {"API_KEY": secret}}


def secret_code(talk: Talk, token: str) -> str:
    url = talk.place.upstream.url(f"/echo/{token}", secure=True)
    return USE_SECRET.format(url=url, token=token)


def reached(token: str) -> Judge:
    """The host got the value, the code the placeholder; and the attempt is told."""

    def judge(result: Any) -> str:
        told = [one["verdict"] for one in result["egress"] if token in one["path"]]
        if told != ["allowed"]:
            return f"told of its way out: {told}"
        return say(f"{token} True\n")(result)

    return judge


async def egress(talk: Talk, chance: Random) -> None:
    token, kind = talk.token(), "egress"
    if chance.random() < 0.2:
        kind = "egress refused"
        code = REFUSED.format(url="http://elsewhere.example/", token=token)
        body = {"code": code, "network": list(talk.place.upstream.rule())}
        judge = say(f"{token} 403\n")
    else:
        body = {"code": secret_code(talk, token), **access(talk)}
        judge = reached(token)
    await talk.ask(kind, "POST", "/v1/runs", body, token=token, judge=judge, one_run=True)


async def fetch(talk: Talk, chance: Random) -> None:
    body = {"url": talk.place.upstream.url("/hello"), "network": list(talk.place.upstream.rule())}
    await talk.ask(
        "fetch",
        "POST",
        "/v1/fetch",
        body,
        judge=lambda page: "" if page["text"].strip() == "hello" else "not the page",
    )


async def kept_egress(talk: Talk, chance: Random) -> None:
    """Its network must be there again after the gateway was lost."""
    async with kept(talk, **access(talk)) as box:
        for _ in range(2):
            token = talk.token()
            body = {"code": secret_code(talk, token)}
            path = f"/v1/sandboxes/{box}/runs"
            await talk.ask("kept egress", "POST", path, body, token=token, judge=reached(token))


# -- kept sandboxes --------------------------------------------------------------------------------

living: dict[str, str] = {}
"""By tenant, the sandbox that was made last: for others to try."""


@asynccontextmanager
async def kept(talk: Talk, **options: Any) -> Any:
    talk.begin()
    made = await talk.ask(
        "open", "POST", "/v1/sandboxes", {"environment": "base", "idle_s": 120.0, **options}
    )
    living[talk.tenant.name] = made["id"]
    try:
        yield made["id"]
    finally:
        await end(talk, made["id"])


async def end(talk: Talk, box: str) -> None:
    try:
        await talk.ask("close", "DELETE", f"/v1/sandboxes/{box}")
    except Disturbed:
        pass  # recorded; a fault may have ended the sandbox before


async def state(talk: Talk, chance: Random) -> None:
    """Variables and files stay; branches are apart; going back is going back."""
    first, second = talk.token(), talk.token()
    async with kept(talk) as box:
        path = f"/v1/sandboxes/{box}"

        async def run(kind: str, code: str, expected: str, where: str = path) -> Any:
            judge = say(expected)
            return await talk.ask(kind, "POST", f"{where}/runs", {"code": code}, judge=judge)

        await run("step", f"x = '{first}'\nprint(x)", f"{first}\n")
        await talk.socket(
            "socket", box, {"code": "print(x)"}, token=talk.token(), judge=say(f"{first}\n")
        )
        forked = await talk.ask("fork", "POST", f"{path}/fork", {"count": 1})
        branch = forked["sandboxes"][0]["id"]
        try:
            code = f"print(x); x = '{second}'; print(x)"
            await run("branch", code, f"{first}\n{second}\n", f"/v1/sandboxes/{branch}")
        finally:
            await end(talk, branch)
        changed = await run("step", f"x = '{second}'\nprint(x)", f"{second}\n")
        await talk.ask("rollback", "POST", f"{path}/rollback", {"run_id": changed["run_id"]})
        await talk.stream(
            "stream step",
            f"{path}/runs",
            {"code": "print(x)"},
            token=talk.token(),
            judge=say(f"{first}\n"),
        )


async def files(talk: Talk, chance: Random) -> None:
    token = talk.token()
    content = token.encode() * chance.randrange(1, 20_000)
    async with kept(talk) as box:
        path = f"/v1/sandboxes/{box}"
        where = f"{path}/files/content?path={quote('/workspace/sent', safe='')}"
        await talk.ask("upload", "PUT", where, content)
        await talk.ask(
            "exec",
            "POST",
            f"{path}/exec",
            {"program": ["wc", "-c", "/workspace/sent"]},
            judge=say(f"{len(content)} /workspace/sent\n"),
        )
        await talk.ask(
            "download", "GET", where, judge=lambda got: "" if got == content else "other content"
        )


async def dataset(talk: Talk, chance: Random) -> None:
    token = talk.token()
    content = f"name,number\n{token},1\n".encode() * 50
    talk.begin()
    made = await talk.ask("dataset", "POST", f"/v1/datasets?name={token}.csv", content)
    path = f"/v1/datasets/{made['id']}"
    try:
        await talk.ask(
            "describe",
            "GET",
            f"{path}/description",
            judge=lambda told: "" if told["sample"][0][0] == token else "another's content",
        )
        async with kept(talk, inputs={"given.csv": {"dataset": made["id"]}}) as box:
            code = "print(open('/data/input/given.csv').read().split(',')[1].split()[1])"
            run = f"/v1/sandboxes/{box}/runs"
            await talk.ask("mounted", "POST", run, {"code": code}, judge=say(f"{token}\n"))
    finally:
        try:
            await talk.ask("remove", "DELETE", path)
        except Disturbed:
            pass  # recorded


# -- agents, and others' things --------------------------------------------------------------------


async def agent(talk: Talk, chance: Random) -> None:
    """MCP: a session, then one run, or a sandbox with state."""
    talk.begin()
    heard: dict[str, str] = {}
    params: dict[str, Any] = {
        "protocolVersion": "2025-06-18",
        "capabilities": {},
        "clientInfo": {"name": "soak", "version": "1"},
    }
    hello = {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": params}
    await talk.ask("mcp hello", "POST", "/mcp", hello, headers=AGENTS, heard=heard)
    headers = AGENTS | {"Mcp-Session-Id": heard["mcp-session-id"]}

    async def call(tool: str, expected: str, *, token: str = "", **arguments: Any) -> Any:
        def judge(answer: Any) -> str:
            text = "\n".join(block.get("text", "") for block in answer["result"]["content"])
            if answer["result"].get("isError"):
                talk.failed(bool(text))
                return "an error"
            return "" if expected in text else f"not {expected}"

        params = {"name": tool, "arguments": arguments}
        body = {"jsonrpc": "2.0", "id": 2, "method": "tools/call", "params": params}
        one_run = tool == "run_code"
        answer = await talk.ask(
            f"mcp {tool}", "POST", "/mcp", body,
            token=token, judge=judge, headers=headers, one_run=one_run,
        )  # fmt: skip
        return answer["result"]

    token = talk.token()
    if chance.random() < 0.5:
        await call("run_code", token, token=token, code=f"print('{token}')")
    else:
        opened = await call("open_sandbox", "")
        box = opened["structuredContent"]["sandbox_id"]
        await call("run_in_sandbox", "", sandbox_id=box, code=f"x = '{token}'")
        await call("run_in_sandbox", token, sandbox_id=box, code="print(x)")
    # With its session everything of it ends.
    await talk.ask("mcp goodbye", "DELETE", "/mcp", headers=headers)


async def trespass(talk: Talk, chance: Random) -> None:
    """Another tenant's sandbox is not there, and a key that is none opens nothing."""
    others = [box for tenant, box in living.items() if tenant != talk.tenant.name]
    if others:
        path = f"/v1/sandboxes/{chance.choice(others)}"
        await talk.ask("another's sandbox", "GET", path, expect=404)
    await talk.ask("no key", "GET", "/v1/usage", expect=401, key="blj_none")


def jobs(environments: frozenset[str]) -> Mapping[str, Job]:
    """Those that this machine can do."""
    cases = [case for case in CASES if case.needs in environments | {"base"}]
    return {
        "good": Job(30, chosen(cases, hostile=False)),
        "hostile": Job(10, chosen(cases, hostile=True)),
        "execute": Job(15, execute),
        "mistake": Job(2, mistake),
        "egress": Job(8, egress),
        "fetch": Job(1, fetch),
        "leave": Job(4, leave, once=False),
        "kept egress": Job(3, kept_egress, once=False),
        "state": Job(5, state, once=False),
        "files": Job(3, files, once=False),
        "dataset": Job(2, dataset, once=False),
        "agent": Job(4, agent, once=False),
        "trespass": Job(2, trespass, once=False),
    }
