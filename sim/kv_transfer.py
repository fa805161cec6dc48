"""`kv_transfer_params` of requests and responses, as vLLM's NixlConnector reads and writes them."""

from __future__ import annotations

import msgspec

from .kv_exchange import KvConnector
from .request import RemoteKv, Request


class KvTransferParams(msgspec.Struct, frozen=True):
    """The fields that a simulated server reads; others are ignored."""

    do_remote_decode: bool | None = False
    do_remote_prefill: bool | None = False
    remote_engine_id: str | None = None
    remote_request_id: str | None = None
    remote_block_ids: tuple[int, ...] | None = None

    @property
    def remote(self) -> RemoteKv | None:
        """KV state that another server keeps for this request; None if the prompt is computed here."""
        if not self.do_remote_prefill or not self.remote_block_ids:
            return None
        return RemoteKv(self.remote_engine_id or "", self.remote_request_id or "", len(self.remote_block_ids))


def kept_params(request: Request, connector: KvConnector | None) -> dict[str, object] | None:
    """Return the field of the response to a request whose blocks are kept for a pull; None for another request."""
    if connector is None or not request.kept_blocks:
        return None
    host, port = connector.address
    return {
        "do_remote_prefill": True,
        "do_remote_decode": False,
        "remote_block_ids": list(request.kept_blocks),
        "remote_engine_id": connector.engine_id,
        "remote_request_id": request.request_id,
        "remote_host": host,
        "remote_port": port,
        "tp_size": 1,
    }
