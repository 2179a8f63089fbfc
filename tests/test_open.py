"""Traces served to the page of Perfetto: one file, to this machine, once."""

from __future__ import annotations

import http.client
import os
import re
import socket
import struct
import subprocess
import sys
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest
from command import traceq

from traceq.annotate.serving import PAGE, Served, server

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

CONTENT = b'{"traceEvents": []}' * 50_000


@pytest.fixture
def served(tmp_path: Path) -> Served:
    file = tmp_path / "a trace?.json"
    file.write_bytes(CONTENT)
    return Served(file)


@contextmanager
def _running(served: Served) -> Iterator[tuple[str, int]]:
    with server(served, 0) as serving:
        thread = threading.Thread(target=serving.serve_forever)
        thread.start()
        yield serving.server_address[0], serving.server_address[1]  # type: ignore[misc]  # of an internet socket
        serving.shutdown()
        thread.join()


def _asked(
    served: Served,
    path: str | None = None,
    method: str = "GET",
    headers: dict[str, str] | None = None,
) -> tuple[http.client.HTTPResponse, bytes]:
    with _running(served) as (host, port):
        connection = http.client.HTTPConnection(host, port, timeout=10)
        asked = {"Origin": PAGE} if headers is None else headers
        connection.request(method, path or served.place, headers=asked)
        response = connection.getresponse()
        content = response.read()
        connection.close()
    return response, content


def test_perfetto_gets_the_file(served: Served) -> None:
    response, content = _asked(served, headers={"Origin": PAGE})
    assert (response.status, content) == (200, CONTENT)
    assert response.headers["Access-Control-Allow-Origin"] == PAGE
    assert served.fetched.is_set()


def test_it_is_served_on_the_loopback(served: Served) -> None:
    with _running(served) as (host, _):
        assert host == "127.0.0.1"


def test_the_address_is_as_perfetto_documents(served: Served) -> None:
    assert served.link(9001) == (
        "https://ui.perfetto.dev/#!/?url=http://127.0.0.1:9001/"
        f"{served.secret}/a%20trace%3F.json"
    )


def test_the_address_cannot_be_guessed(served: Served) -> None:
    other = Served(served.file)
    assert len(served.secret) >= 20
    assert served.place != other.place
    assert _asked(served, other.place)[0].status == 404


@pytest.mark.slow
def test_it_is_served_once(served: Served) -> None:
    assert _asked(served)[0].status == 200
    response, content = _asked(served)
    assert response.status == 410
    assert CONTENT not in content


def test_a_page_that_did_not_get_all_of_it_may_ask_again(served: Served) -> None:
    # More than the buffers of both sockets take: a smaller file is sent before the end.
    os.truncate(served.file, 64 << 20)
    with _running(served) as (host, port):
        connection = http.client.HTTPConnection(host, port, timeout=10)
        connection.request("GET", served.place, headers={"Origin": PAGE})
        reset = struct.pack("ii", 1, 0)
        connection.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, reset)
        connection.sock.close()
        connection.close()
        # Until the server notices, it is being sent.
        while not served.sending.acquire(timeout=0.1) and not served.fetched.is_set():
            pass
        assert not served.fetched.is_set()
        served.sending.release()
    assert _asked(served)[0].status == 200


def test_only_the_page_counts_as_having_fetched_it(served: Served) -> None:
    response, content = _asked(served, headers={})
    assert response.status == 403
    assert CONTENT not in content
    assert not served.fetched.is_set()


def test_the_command_fails_if_the_page_does_not_fetch_it(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("traceq.cli.open._PATIENCE_S", 0.3)
    monkeypatch.setattr("traceq.annotate.serving.PORT", 0)
    monkeypatch.setattr(server, "__defaults__", (0,))
    answer = traceq("open", "--as-is", "--no-browser", served.file)
    assert answer.status == 2
    assert "did not fetch the trace" in answer.err
    assert "Perfetto has it" not in answer.out


def test_a_browser_may_ask_first(served: Served) -> None:
    asks = {"Origin": PAGE, "Access-Control-Request-Private-Network": "true"}
    response, _ = _asked(served, method="OPTIONS", headers=asks)
    assert response.status == 204
    assert response.headers["Access-Control-Allow-Private-Network"] == "true"
    assert not served.fetched.is_set()


@pytest.mark.parametrize(
    "path",
    [
        "/",
        "/../a%20trace%3F.json",
        "/a%20trace%3F.json",
        "/SECRET/a%20trace%3F.json?x",
        "/SECRET/secret.json",
        "/SECRET/",
    ],
)
@pytest.mark.slow
def test_nothing_else_is_served(path: str, served: Served) -> None:
    (served.file.parent / "secret.json").write_text("no")
    response, content = _asked(served, path.replace("SECRET", served.secret))
    assert response.status == 404
    assert content != b"no"
    assert not served.fetched.is_set()


def test_other_pages_do_not_get_it(served: Served) -> None:
    response, _ = _asked(served, headers={"Origin": "https://example.com"})
    assert response.status == 403
    assert "Access-Control-Allow-Origin" not in response.headers


def test_another_name_of_this_machine_does_not_get_it(served: Served) -> None:
    """So a stranger's page reaches the loopback, whose name it has made its own."""
    response, _ = _asked(served, headers={"Origin": PAGE, "Host": "example.com:9001"})
    assert response.status == 404


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "HEAD"])
@pytest.mark.slow
def test_nothing_but_get_is_answered(method: str, served: Served) -> None:
    assert _asked(served, method=method)[0].status == 501


@pytest.mark.real
@pytest.mark.slow
def test_the_command_ends_once_the_trace_was_fetched(tmp_path: Path) -> None:
    file = tmp_path / "trace.json"
    file.write_bytes(CONTENT)
    command = (sys.executable, "-m", "traceq", "open", "--as-is", "--no-browser", file)
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        lines = [process.stdout.readline(), process.stdout.readline()]
        address = re.search(
            r"url=http://(127\.0\.0\.1):(9001)(/[\w-]{22}/trace\.json)", lines[1]
        )
        assert address, lines
        again = subprocess.run(command, capture_output=True, text=True, check=False)
        assert again.returncode == 2
        assert "port 9001 cannot be used" in again.stderr
        connection = http.client.HTTPConnection(address[1], int(address[2]))
        connection.request("GET", address[3], headers={"Origin": PAGE})
        assert connection.getresponse().read() == CONTENT
        connection.close()
        assert "Perfetto has it" in process.stdout.read()
        assert process.wait(20) == 0
