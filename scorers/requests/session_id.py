"""`session-id-producer`: the session of a request, from a header or a cookie, for plugins that name the producer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

from msgspec import Meta, field

from ..core.params import BuildContext, PluginParams, RequestAttribute
from ..core.registry import Registry
from ..errors import ParametersError

PLUGIN_TYPE = "session-id-producer"


class SessionIdProducerParams(PluginParams, frozen=True):
    """Parameters of `session-id-producer`; exactly one of both names."""

    header_name: str = ""
    """Request header that carries the session id."""
    cookie_name: str = ""
    """Cookie that carries the session id."""
    lru_size: Annotated[int, Meta(ge=0)] = field(default=0, name="lruSize")
    """Accepted without effect: plugins that use the session remember its endpoint themselves."""
    ttl: Annotated[str, Meta(pattern=r"^$|^(?=.*[1-9])([0-9]+(\.[0-9]+)?(ns|us|µs|ms|s|m|h))+$")] = ""
    """Accepted without effect, as `lruSize`."""

    def attribute(self, headers: Mapping[str, str]) -> str:
        """Return the session id, empty if there is none; see `RequestAttribute`."""
        if name := self.header_name.strip().lower():
            return headers.get(name, "").strip()
        return _cookie(headers.get("cookie", ""), self.cookie_name.strip()) if self.cookie_name else ""


def _cookie(cookies: str, wanted: str) -> str:
    """Return the value of the first cookie of that name, empty if there is none."""
    for pair in cookies.split(";"):
        name, equals, value = pair.strip().partition("=")
        if equals and name == wanted:
            return value.strip()
    return ""


def register(registry: Registry) -> None:
    """Register `session-id-producer`."""
    registry.attributes.add(PLUGIN_TYPE, SessionIdProducerParams, _make)


def _make(params: SessionIdProducerParams, _: BuildContext) -> RequestAttribute:
    header, cookie = params.header_name.strip(), params.cookie_name.strip()
    if bool(header) == bool(cookie):
        found = "both" if header else "neither"
        raise ParametersError(f"found {found} of headerName and cookieName, expected exactly one")
    return params
