"""A running SGLang server over HTTP, with the standard library only."""

from __future__ import annotations

import http.client
import json
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from .answers import Answer, parse_answer
from .errors import ServerAnswerError, ServerUnusableError

Clock = Callable[[], float]
FLUSH_RETRY_S = 0.2
_FAULTS = (OSError, http.client.HTTPException)  # OSError: urllib's own errors, refused connections, time-outs


@dataclass(frozen=True)
class ServerInfo:
    """What the probe needs to know of a server. Capacities are tokens of a replica, 0 where the server does not say."""

    version: str
    model: str
    page_size: int
    storage_backend: str | None
    max_prompt_tokens: int
    device_tokens: int
    host_tokens: int
    replicas: int = 1

    def prompt_length(self, tokens: int) -> int:
        """`tokens`, or half a page more where they are whole pages.

        The last page of a prompt of whole pages is computed anew by every hit, and SGLang then goes on with the copy
        that its tree already has, from another computation: logprobs would differ with any storage.
        """
        return tokens + self.page_size // 2 if tokens % self.page_size == 0 else tokens

    def longest_hit(self, tokens: int) -> int:
        """Tokens of a prompt of `tokens` that a cache can have: whole pages, and never the last token."""
        return (tokens - 1) // self.page_size * self.page_size


class SglangServer:
    """Requests to one server. Every request is bounded by `timeout_s`; threads may share one.

    Replicas of data parallelism have caches of their own: once ``info`` has told of several, all requests go to the
    first of them.
    api_key and admin_api_key are those that the server was started with; the latter is for flushing its caches.
    """

    def __init__(
        self,
        url: str,
        timeout_s: float,
        api_key: str | None = None,
        admin_api_key: str | None = None,
        clock: Clock = time.monotonic,
    ) -> None:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.netloc:
            raise ServerUnusableError(f"--url {url!r} is not allowed: expected http://HOST:PORT")
        self._url = url.rstrip("/")
        self._timeout_s = timeout_s
        self._api_key = api_key
        self._admin_api_key = admin_api_key or api_key
        self._clock = clock
        self._routing: dict[str, int] = {}
        # No proxy: the figures are those of the server, and one on this machine is not reachable through any.
        self._opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))

    def info(self) -> ServerInfo:
        """What the server says of itself. Raises ServerUnusableError: nothing answers, or not SGLang."""
        try:
            with self._open("/server_info") as response:
                info = _parse_info(json.load(response))
        except (*_FAULTS, ValueError, KeyError, TypeError) as error:
            raise ServerUnusableError(f"{self._url}/server_info gives no answer of SGLang: {_words(error)}") from error
        self._routing = {"routed_dp_rank": 0} if info.replicas > 1 else {}
        return info

    def generate(self, prompt: Sequence[int], new_tokens: int) -> Answer:
        """Generates greedily, with logprobs; times are from sending the request. Raises ServerAnswerError."""
        request = {
            "input_ids": list(prompt),
            "sampling_params": {"max_new_tokens": new_tokens, "temperature": 0, "ignore_eos": True},
            "return_logprob": True,
            "stream": True,
            **self._routing,
        }
        first_s, last = None, None
        begin = self._clock()
        try:
            with self._open("/generate", request) as response:
                for event in stream_events(response):
                    first_s = self._clock() - begin if first_s is None else first_s
                    last = event
        except (*_FAULTS, ValueError) as error:
            raise ServerAnswerError(f"a request of {len(prompt)} tokens failed: {_words(error)}") from error
        if last is None or first_s is None or "error" in last:
            raise ServerAnswerError(f"a request of {len(prompt)} tokens failed: {last or 'the stream was empty'}")
        return parse_answer(last, first_s, self._clock() - begin)

    def flush_cache(self, deadline_s: float) -> None:
        """Empties device and host caches; a busy server is asked again until the deadline. Raises ServerAnswerError."""
        end = self._clock() + deadline_s
        while True:
            try:
                with self._open("/flush_cache", {}, self._admin_api_key):
                    return
            except _FAULTS as error:
                if not isinstance(error, urllib.error.HTTPError) or error.code != 400 or self._clock() >= end:
                    raise ServerAnswerError(f"/flush_cache failed: {_words(error)}") from error
            time.sleep(FLUSH_RETRY_S)

    def _open(self, path: str, body: dict[str, Any] | None = None, key: str | None = None) -> http.client.HTTPResponse:
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self._url + path, data=data, headers={"Content-Type": "application/json"})
        if key or self._api_key:
            request.add_header("Authorization", f"Bearer {key or self._api_key}")
        response: http.client.HTTPResponse = self._opener.open(request, timeout=self._timeout_s)
        return response


def stream_events(lines: Any) -> Iterator[dict[str, Any]]:
    """The JSON objects of a stream of server-sent events, up to `[DONE]`. Raises ValueError: one is not JSON, or
    the stream ends before that.
    """
    for line in lines:
        text = line.decode().strip()
        if text == "data: [DONE]":
            return
        if text.startswith("data:"):
            yield json.loads(text.removeprefix("data:"))
    raise ValueError("the stream ended early")


def _words(error: BaseException) -> str:
    if isinstance(error, urllib.error.HTTPError):
        with error:
            return f"HTTP {error.code}: {error.read(500).decode(errors='replace').strip()}"
    return str(error) or type(error).__name__


def _parse_info(info: dict[str, Any]) -> ServerInfo:
    device = int(info["max_total_num_tokens"])
    return ServerInfo(
        version=str(info.get("version", "unknown")),
        model=str(info.get("served_model_name") or info["model_path"]),
        page_size=int(info["page_size"]),
        storage_backend=info.get("hicache_storage_backend"),
        max_prompt_tokens=int(info.get("max_req_input_len") or 0),
        device_tokens=device,
        host_tokens=_host_tokens(info, device),
        replicas=int(info.get("dp_size") or 1),
    )


def _host_tokens(info: dict[str, Any], device_tokens: int) -> int:
    """Tokens of the host cache: a multiple of the device's, or so many GB of them."""
    if not info.get("enable_hierarchical_cache"):
        return 0
    gigabytes = float(info.get("hicache_size") or 0)
    if not gigabytes:
        return int(device_tokens * float(info.get("hicache_ratio") or 0))
    usage = (info.get("internal_states") or [{}])[0].get("memory_usage") or {}
    device_gigabytes = float(usage.get("kvcache") or 0)
    return int(device_tokens * gigabytes / device_gigabytes) if device_gigabytes else 0
