"""What each tool takes. Models read the descriptions; nothing is converted, nothing is ignored."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from belljar.settings import Settings

MOST_FILES = 100
MOST_PACKAGES = 50
MOST_BRANCHES = 8
READ_BYTES = 30_000
MOST_OFFSET = 64_000_000
"""What is skipped is read, too: a sparse file may claim terabytes."""
MOST_WRITTEN = 8_000_000


class Arguments(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)

    @model_validator(mode="before")
    @classmethod
    def _few(cls, given: Any) -> Any:
        """An error for each of a hundred thousand wrong entries would take seconds to write."""
        for part in (given, *given.values()) if isinstance(given, dict) else ():
            if isinstance(part, (dict, list)) and len(part) > MOST_FILES:
                raise ValueError(f"no argument has more than {MOST_FILES} entries")
        return given


Code = Annotated[str, Field(description="The code.")]
Language = Annotated[
    str,
    Field(max_length=64, description="python, javascript, typescript, bash, go."),
]
Timeout = Annotated[
    float | None,
    Field(description="Seconds, then it is stopped. {usual_s:g} if left out, {most_s:g} at most."),
]
Packages = Annotated[
    list[Annotated[str, Field(max_length=200)]],
    Field(
        max_length=MOST_PACKAGES,
        description='Python packages to have beyond the usual ones, such as "humanize" or '
        '"rich>=13". numpy, pandas, matplotlib, scipy and scikit-learn are there.',
    ),
]
Texts = Annotated[
    dict[str, str],
    Field(
        max_length=MOST_FILES,
        description='Text files for /workspace, by relative name: {{"data.csv": "a,b"}}.',
    ),
]
Network = Annotated[
    list[Annotated[str, Field(max_length=300)]],
    Field(
        max_length=100,
        description='Hosts that the code may reach, such as "api.example.com"; without it nothing. '
        "{hosts}",
    ),
]
SandboxId = Annotated[
    str, Field(max_length=64, description="As open_sandbox or fork_sandbox returned it.")
]
Path = Annotated[
    str,
    Field(
        max_length=4096,
        description="Below /workspace, /data/output, /tmp or /data/input (read-only); relative "
        "paths are below /workspace.",
    ),
]


class RunCode(Arguments):
    code: Code
    language: Language = "python"
    timeout_s: Timeout = None
    packages: Packages = Field(default_factory=list)
    files: Texts = Field(default_factory=dict)
    network: Network = Field(default_factory=list)


class OpenSandbox(Arguments):
    language: Annotated[
        str, Field(max_length=64, description="python, javascript, typescript, bash.")
    ] = "python"
    environment: Annotated[
        str,
        Field(
            max_length=64,
            description="auto, or by name: base is bare Python, data has numpy, pandas, "
            "matplotlib, scipy, scikit-learn. auto is data for Python.",
        ),
    ] = "auto"
    packages: Packages = Field(default_factory=list)
    files: Texts = Field(default_factory=dict)
    network: Network = Field(default_factory=list)
    max_runs: Annotated[
        int, Field(ge=1, le=1000, description="How many runs it will be good for.")
    ] = 20


class RunInSandbox(Arguments):
    sandbox_id: SandboxId
    code: Code
    timeout_s: Timeout = None


class CloseSandbox(Arguments):
    sandbox_id: SandboxId


class ListFiles(Arguments):
    sandbox_id: SandboxId
    path: Path = "/workspace"
    depth: Annotated[
        int, Field(ge=1, le=16, description="2 and more list the folders in it, too.")
    ] = 1


class ReadFile(Arguments):
    sandbox_id: SandboxId
    path: Path
    offset: Annotated[
        int,
        Field(ge=0, le=MOST_OFFSET, description="Bytes to skip. Beyond 64 MB look with code."),
    ] = 0


class WriteFile(Arguments):
    sandbox_id: SandboxId
    path: Path
    content: Annotated[
        str,
        Field(max_length=MOST_WRITTEN, description="The whole file; what was there is replaced."),
    ]
    encoding: Annotated[
        Literal["text", "base64"], Field(description="base64 for what is not text.")
    ] = "text"


class ForkSandbox(Arguments):
    sandbox_id: SandboxId
    count: Annotated[int, Field(ge=1, le=MOST_BRANCHES, description="How many copies.")] = 1
    before_run: Annotated[
        int | None,
        Field(
            ge=1, le=1 << 31, description="Copy the state before this run instead of the present."
        ),
    ] = None


class RollbackSandbox(Arguments):
    sandbox_id: SandboxId
    run_id: Annotated[
        int, Field(ge=1, le=1 << 31, description="The state before this run comes back.")
    ]


class InstallPackages(Arguments):
    sandbox_id: SandboxId
    packages: Annotated[
        list[Annotated[str, Field(max_length=200)]],
        Field(
            min_length=1, max_length=MOST_PACKAGES, description='Such as "humanize" or "rich>=13".'
        ),
    ]


class FetchPage(Arguments):
    url: Annotated[
        str, Field(max_length=4000, description="Such as https://example.com/page. {hosts}")
    ]
    network: Network = Field(default_factory=list)
    most_characters: Annotated[
        int, Field(ge=1, le=100_000, description="Of its text, from the beginning.")
    ] = 20_000


def schema(model: type[Arguments], settings: Settings) -> dict[str, Any]:
    """For models: no titles, no null, the operator's numbers."""
    made = model.model_json_schema()
    usual_s = min(settings.defaults.timeout_s, settings.maxima.timeout_s)
    allowed = settings.network_allowed
    hosts = "" if allowed == "any" else f"Possible here: {', '.join(allowed[:30])}."
    properties = {
        name: _simple(part, usual_s=usual_s, most_s=settings.maxima.timeout_s, hosts=hosts)
        for name, part in made["properties"].items()
        if name != "network" or allowed  # what is never granted is not offered
    }
    found: dict[str, Any] = {
        "type": "object",
        "properties": properties,
        "additionalProperties": False,
    }
    if "required" in made:
        found["required"] = made["required"]
    return found


def _simple(part: dict[str, Any], **words: object) -> dict[str, Any]:
    part = {name: value for name, value in part.items() if name != "title"}
    if "anyOf" in part:
        first, *_ = part.pop("anyOf")
        part |= first
    if part.get("default") in (None, [], {}):
        part.pop("default", None)
    part["description"] = part["description"].format(**words).strip()
    return part


def explain(error: ValidationError) -> str:
    """Which argument is wrong and why; what was given is not repeated."""
    lines = []
    for one in error.errors(include_url=False, include_input=False, include_context=False)[:5]:
        place = ".".join(str(part)[:64] for part in one["loc"]) or "arguments"
        message = "is no argument of this tool" if one["type"] == "extra_forbidden" else one["msg"]
        lines.append(f"{place}: {message}")
    return "\n".join(lines)
