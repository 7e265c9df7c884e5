"""The server's settings: flags, environment (BELLJAR_SERVER_…), a TOML file, defaults."""

from __future__ import annotations

import dataclasses
import ipaddress
import os
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, TypeAdapter, ValidationError
from pydantic_settings import (
    BaseSettings,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
    TomlConfigSettingsSource,
)

from belljar.errors import InvalidRequest
from belljar.model import GIB, MIB
from belljar.server.tenants import Quotas
from belljar.settings import Settings, default_home

PREFIX = "BELLJAR_SERVER_"
FILE_VARIABLE = "BELLJAR_SERVER_FILE"
FILE_NAME = "server.toml"
"""Below BELLJAR_HOME; read if it is there."""

MOST_OUTPUT_BYTES, MOST_RESULT_BYTES = 8 * MIB, 64 * MIB
"""Maxima of a server whose operator sets no others: each run's are held in its memory, for many
callers at once."""

Seconds = Annotated[float, Field(gt=0, le=86_400)]


class ServerSettings(BaseSettings):
    model_config = SettingsConfigDict(
        env_prefix=PREFIX, env_nested_delimiter="__", extra="forbid", frozen=True
    )
    file: ClassVar[Path | None] = None

    host: str = "127.0.0.1"
    """The address to listen on. Any but loopback needs keys."""
    port: Annotated[int, Field(ge=0, le=65_535)] = 8321
    """0: any that is free."""
    allowed_hosts: tuple[str, ...] = ()
    """Names that clients may call this server by, beside localhost and addresses in figures."""
    allowed_origins: tuple[str, ...] = ()
    """Web pages that may use it, as https://name; its own always may."""
    state: str = ""
    """Database of keys and quotas; empty: SQLite in BELLJAR_HOME/server."""
    trail: str = ""
    """Database of the trail; empty: that of BELLJAR_TRAIL, else SQLite in BELLJAR_HOME/trail."""
    quotas: Quotas = Field(default_factory=Quotas)
    """For tenants whose own quotas do not say otherwise."""
    warm: tuple[str, ...] = ("base",)
    """Environments of which a sandbox waits when the server is ready, and soon a pool of them."""
    queue_wait_s: Seconds = 60.0
    """The longest that a run waits for its turn; then 429."""
    drain_s: Annotated[float, Field(ge=0, le=86_400)] = 30.0
    """After SIGTERM, the time for runs under way to end; then they are killed."""
    body_bytes: Annotated[int, Field(ge=1024)] = 16 * MIB
    """The largest request body, but for uploads of files."""
    bodies_bytes: Annotated[int, Field(ge=1024)] = 256 * MIB
    """What all requests under way have brought; of one tenant a quarter where there are several."""
    held_bytes: Annotated[int, Field(ge=0)] = 0
    """What runs and programs may print and leave, by their limits, of all tenants; further runs
    wait, and programs are refused. 0: a quarter of the machine's memory."""
    header_timeout_s: Seconds = 10.0
    """The longest that a request's headers may take to arrive."""
    body_timeout_s: Seconds = 30.0
    """The same for its body."""
    send_timeout_s: Seconds = 30.0
    """How long a client may leave what is sent to it unread; then its connection is closed."""
    sandboxes_at_once: Annotated[int, Field(ge=0)] = 200
    """Kept sandboxes of all tenants; then 503."""
    sandbox_idle_s: Seconds = 3600.0
    """The longest idle time that a kept sandbox may ask for."""
    sandbox_lifetime_s: Seconds = 86_400.0
    """The same for its life time."""
    dataset_bytes: Annotated[int, Field(ge=1)] = GIB
    """The largest dataset."""
    keep_alive_s: Seconds = 30.0
    """How long an idle connection stays open."""
    connections: Annotated[int, Field(ge=1)] = 1000
    """Open connections; then the one that was idle longest is closed."""
    log_format: Literal["json", "text"] = "json"
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    access_log: bool = True
    """A line for every request."""
    sandboxes: Mapping[str, Any] = Field(default_factory=dict)
    """Anything of `belljar.Settings`: engine, maxima, pool_size, concurrency …"""

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        file = TomlConfigSettingsSource(settings_cls, toml_file=cls.file)
        return (init_settings, env_settings, file)

    @cached_property
    def jar(self) -> Settings:
        """How the server's own Belljar is set up. It always has a trail."""
        from belljar.trail.store import default_url

        chosen = _jar(self.sandboxes)
        trail = self.trail or chosen.trail or default_url(chosen.home)
        return dataclasses.replace(chosen, trail=trail)

    @property
    def loopback(self) -> bool:
        if self.host == "localhost":
            return True
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return False

    @property
    def state_url(self) -> str:
        return self.state or f"sqlite:///{self.jar.home / 'server' / 'state.db'}"


def load(*, file: str | None = None, **flags: Any) -> ServerSettings:
    """All sources together; `file` must be there if it is named, by flag or by variable."""
    named = file or os.environ.get(FILE_VARIABLE)
    path = Path(named) if named else default_home() / FILE_NAME
    if named and not path.is_file():
        raise InvalidRequest(f"settings: {str(path)!r} is no file")
    if not named and not path.is_file():
        path = None  # type: ignore[assignment]
    source = type("ServerSettings", (ServerSettings,), {"file": path})
    try:
        settings: ServerSettings = source(**flags)
        settings.jar  # noqa: B018  (looked at now, so that a mistake shows before the start)
    except ValidationError as error:
        raise InvalidRequest(_explain(error, "settings")) from error
    except ValueError as error:  # TOML that is none; a variable that is no JSON
        raise InvalidRequest(f"settings: {error}") from error
    return settings


def _jar(given: Mapping[str, Any]) -> Settings:
    usual = Settings()
    usual = dataclasses.replace(
        usual,
        maxima=dataclasses.replace(
            usual.maxima, output_bytes=MOST_OUTPUT_BYTES, result_bytes=MOST_RESULT_BYTES
        ),
    )
    values = {"maxima": {}, "network_allowed": (), **given}
    for name in ("defaults", "maxima"):
        # A table of limits changes those that it names, and leaves the others.
        if isinstance(values.get(name), Mapping):
            values[name] = dataclasses.asdict(getattr(usual, name)) | dict(values[name])
    known = {field.name for field in dataclasses.fields(Settings)}
    if unknown := sorted(set(values) - known):
        raise InvalidRequest(
            f"settings.sandboxes: {unknown[0]!r} is unknown",
            hint=f"known: {', '.join(sorted(known))}",
        )
    try:
        return TypeAdapter(Settings).validate_python(values)
    except ValidationError as error:
        raise InvalidRequest(_explain(error, "settings.sandboxes")) from error


def _explain(error: ValidationError, where: str) -> str:
    first = error.errors(include_url=False)[0]
    return f"{'.'.join([where, *map(str, first['loc'])])}: {first['msg']}"
