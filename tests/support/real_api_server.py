"""A real API server and its etcd as processes, if their binaries are installed."""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import json
import os
import shutil
import ssl
import subprocess
import time
from collections.abc import Generator, Mapping
from pathlib import Path
from typing import Any

import trustme

from kvatlas.fleet.kubernetes.client.access import Access
from kvatlas.sim.held_port import HeldPort

Json = dict[str, Any]

BINARY = os.environ.get("KVATLAS_APISERVER", "")
"""Path of kube-apiserver; etcd is found on PATH. Empty if there is none."""

START_S = 60.0
TOKEN = "of-the-tests"  # noqa: S105 - for a server that only the tests reach


class RealApiServer:
    """A kube-apiserver over etcd, on loopback; it ends with `running`.

    Args:
        folder: folder for their data and certificates.
        watch_cache: whether watches come from its cache, as usual, or from etcd, so that compaction applies at once.
    """

    def __init__(self, folder: Path, *, watch_cache: bool) -> None:
        self._folder, self._watch_cache = folder, watch_cache
        self._held = [HeldPort() for _ in range(3)]
        self._etcd_port, self._peer_port, self.port = (port.number for port in self._held)
        self.ca = trustme.CA()
        self._tls = ssl.create_default_context(cadata=self.ca.cert_pem.bytes().decode())
        self._etcd: subprocess.Popen[bytes] | None = None
        self._server: subprocess.Popen[bytes] | None = None
        self._connection: http.client.HTTPSConnection | None = None

    @contextlib.contextmanager
    def running(self) -> Generator[RealApiServer]:
        """Run both within the block."""
        certificate = self.ca.issue_cert("127.0.0.1", "localhost")
        certificate.private_key_pem.write_to_path(self._folder / "tls.key")
        certificate.cert_chain_pems[0].write_to_path(self._folder / "tls.crt")
        (self._folder / "tokens.csv").write_text(f'{TOKEN},tests,tests,"system:masters"\n')
        try:
            self._etcd = self._run(
                shutil.which("etcd") or "etcd", "etcd",
                data_dir=self._folder / "etcd", listen_peer_urls=f"http://127.0.0.1:{self._peer_port}",
                listen_client_urls=self._etcd_url, advertise_client_urls=self._etcd_url,
            )  # fmt: skip
            self.start()
            yield self
        finally:
            if self._connection is not None:
                self._connection.close()
            for process in (self._server, self._etcd):
                if process is not None:
                    process.kill()
                    process.wait()

    def start(self) -> None:
        """Start the API server, and wait until it is ready."""
        self._server = self._run(
            BINARY, "kube-apiserver",
            etcd_servers=self._etcd_url, bind_address="127.0.0.1", secure_port=self.port,
            tls_cert_file=self._folder / "tls.crt", tls_private_key_file=self._folder / "tls.key",
            authorization_mode="RBAC", token_auth_file=self._folder / "tokens.csv",
            service_account_issuer="https://tests", service_account_key_file=self._folder / "tls.key",
            service_account_signing_key_file=self._folder / "tls.key", service_cluster_ip_range="10.96.0.0/24",
            disable_admission_plugins="ServiceAccount", watch_cache=str(self._watch_cache).lower(),
        )  # fmt: skip
        deadline = time.monotonic() + START_S
        while not self._is_ready():
            assert self._server.poll() is None, (self._folder / "kube-apiserver.log").read_text()[-4000:]
            assert time.monotonic() < deadline, "the API server does not become ready"
            time.sleep(0.2)

    def kill(self) -> None:
        """Kill the API server; its state is in etcd."""
        assert self._server is not None
        self._server.kill()
        self._server.wait()

    @property
    def minor(self) -> int:
        """Return its minor version, 29 for 1.29."""
        return int(self.request("GET", "/version")["minor"].rstrip("+"))

    def request(self, method: str, path: str, body: Json | None = None) -> Json:
        """Send a request, and return the body of a successful response; repeat it while storage initializes."""
        status, answer = self.ask(method, path, body)
        deadline = time.monotonic() + START_S
        while status == 429 and "initializing" in str(answer.get("message")) and time.monotonic() < deadline:
            time.sleep(0.2)  # after `/readyz` too, since 1.37
            status, answer = self.ask(method, path, body)
        assert status < 300, f"{method} {path}: {answer.get('message', answer)}"
        return answer

    def ask(
        self, method: str, path: str, body: Json | None = None, *, token: str = TOKEN
    ) -> tuple[int, Json]:
        """Send a request, and return status and body."""
        if self._connection is None:
            self._connection = http.client.HTTPSConnection("127.0.0.1", self.port, context=self._tls)
        headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
        try:
            self._connection.request(method, path, json.dumps(body) if body is not None else None, headers)
            answer = self._connection.getresponse()
            text = answer.read()
        except (OSError, http.client.HTTPException):
            self._connection.close()
            self._connection = None
            raise
        return answer.status, json.loads(text) if text.startswith(b"{") else {"message": text.decode()}

    def compact(self) -> None:
        """Compact the history of etcd."""
        revision = self._ask_etcd("range", {"key": "AA=="})["header"]["revision"]
        self._ask_etcd("compaction", {"revision": revision, "physical": True})

    def _ask_etcd(self, call: str, body: Json) -> Json:
        with contextlib.closing(http.client.HTTPConnection("127.0.0.1", self._etcd_port)) as connection:
            connection.request("POST", f"/v3/kv/{call}", json.dumps(body))
            answer: Json = json.loads(connection.getresponse().read())
        return answer

    @property
    def _etcd_url(self) -> str:
        return f"http://127.0.0.1:{self._etcd_port}"

    def _is_ready(self) -> bool:
        try:
            return self.ask("GET", "/readyz")[0] == 200
        except (OSError, http.client.HTTPException):
            return False

    def _run(self, binary: str, name: str, **flags: object) -> subprocess.Popen[bytes]:
        given = [f"--{flag.replace('_', '-')}={value}" for flag, value in flags.items()]
        with (self._folder / f"{name}.log").open("ab") as log:
            return subprocess.Popen([binary, *given], stdout=log, stderr=log)


class Cable:
    """Relay to a real server that can cut connections; state machines use it as the server.

    Args:
        server: a running server.
        token: bearer token of the clients.
    """

    def __init__(self, server: RealApiServer, token: str) -> None:
        self._server, self._token = server, token
        self._held = HeldPort()
        self._port = self._held.number
        self._listener: asyncio.Server | None = None
        self._ends: set[asyncio.StreamWriter] = set()
        self._stalled: set[asyncio.StreamWriter] = set()
        self._carrying: set[asyncio.Task[None]] = set()

    @property
    def access(self) -> Access:
        ca = self._server.ca.cert_pem.bytes().decode()
        return Access(f"https://127.0.0.1:{self._port}", ca=ca, token=self._token)

    async def start(self) -> None:
        self._listener = await asyncio.start_server(self._accepted, "127.0.0.1", self._port)

    async def stop(self) -> None:
        listener, self._listener = self._listener, None
        if listener is not None:
            listener.close()
            self.cut()
            await asyncio.gather(*self._carrying)
            await listener.wait_closed()

    def cut(self) -> None:
        """Reset every connection."""
        for end in self._ends:
            end.transport.abort()

    def stall(self) -> None:
        """Make open connections silent, as behind a load balancer that lost its state; new ones work."""
        self._stalled |= self._ends

    def heal(self) -> None:
        """Reset stalled connections."""
        for end in self._stalled:
            end.transport.abort()

    def put(self, collection: str, name: str, body: Json) -> object:
        """Create or replace an object; a pod that is being deleted is created again, since nothing restores it."""
        meta = dict(body.get("metadata", {}))
        is_ending = meta.pop("deletionTimestamp", None) is not None
        found = self.objects(collection).get(name)
        if found is not None and "deletionTimestamp" in found["metadata"]:
            self.delete(collection, name)
            found = None
        made = self._written(collection, name, body | {"metadata": meta}, found)
        if is_ending:
            self._server.request("DELETE", f"{collection}/{name}?gracePeriodSeconds=300")
        return made

    def delete(self, collection: str, name: str) -> None:
        self._server.request("DELETE", f"{collection}/{name}?gracePeriodSeconds=0")

    def objects(self, collection: str) -> Mapping[str, Json]:
        items = self._server.request("GET", collection)["items"]
        return {each["metadata"]["name"]: each for each in items}

    def _written(self, collection: str, name: str, body: Json, found: Json | None) -> Json:
        server, kind = self._server, collection.rpartition("/")[2]
        status = body.get("status")
        if kind == "pods":
            container = {"name": "modelserver", "image": "none"}
            spec = found["spec"] if found else {"containers": [container], "nodeName": "none"}
            body = body | {"spec": spec}
        if kind == "leases":
            body = body | {"spec": {"holderIdentity": name}}
        body["metadata"] |= {"name": name}
        if found is None:
            api = collection.partition("/namespaces/")[0].removeprefix("/apis/").removeprefix("/api/")
            kinds = {
                "pods": "Pod", "inferencepools": "InferencePool", "inferenceobjectives": "InferenceObjective",
                "leases": "Lease",
            }  # fmt: skip
            made = server.request("POST", collection, body | {"apiVersion": api, "kind": kinds[kind]})
        else:
            same = {key: found["metadata"][key] for key in ("resourceVersion", "uid")}
            made = server.request(
                "PUT", f"{collection}/{name}", found | body | {"metadata": body["metadata"] | same}
            )
        if status is not None and kind == "pods":
            ips = {"podIPs": [{"ip": status["podIP"]}]} if status.get("podIP") else {}
            made = server.request("PUT", f"{collection}/{name}/status", made | {"status": status | ips})
        return made

    def _accepted(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.get_running_loop().create_task(self._carry(reader, writer))
        self._carrying.add(task)
        task.add_done_callback(self._carrying.discard)

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            there = await asyncio.open_connection("127.0.0.1", self._server.port)
        except OSError:
            writer.transport.abort()
            return
        ends = {writer, there[1]}
        self._ends |= ends
        if self._listener is None:  # the connection was cut meanwhile
            self.cut()
        await asyncio.gather(self._pump(reader, there[1]), self._pump(there[0], writer))
        self._ends -= ends
        self._stalled -= ends

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while piece := await reader.read(65536):
                if writer not in self._stalled:
                    writer.write(piece)
                    await writer.drain()
        writer.transport.abort()
