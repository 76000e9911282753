"""A stand-in of an SGLang server's HTTP side: caches that are lists of prompts, and faults that tests switch on."""

import hashlib
import json
import threading
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

PAGE_SIZE = 16


class FakeSglangServer:
    """What the server holds and answers. Attributes without an underscore are switches; set them before requests.

    spoil_storage, spoil_cold: what to do to the events of an answer from the storage, or of a computed one. A prompt
    is cached whole or not at all.
    """

    def __init__(self, device_tokens: int = 4096, hicache_ratio: float = 2.0) -> None:
        self.device_tokens = device_tokens
        self.hicache_ratio = hicache_ratio
        self.storage_backend: str | None = "umbp"
        self.stores = True
        self.busy_flushes = 0
        self.spoil_storage = lambda events: events
        self.spoil_cold = lambda events: events
        self.keys: dict[str, str] = {}  # of a path, where it needs one
        self.refusal: str | None = None
        self.requests: list[dict] = []
        self.meeting: threading.Barrier | None = None  # so many requests must be here before one is answered
        self._lock = threading.Lock()
        self._memory: OrderedDict[tuple[int, ...], int] = OrderedDict()
        self._storage: set[tuple[int, ...]] = set()

    def info(self) -> dict:
        return {
            "version": "0.5.23",
            "served_model_name": "fake",
            "page_size": PAGE_SIZE,
            "hicache_storage_backend": self.storage_backend,
            "enable_hierarchical_cache": True,
            "hicache_ratio": self.hicache_ratio,
            "hicache_size": 0,
            "max_total_num_tokens": self.device_tokens,
            "max_req_input_len": 2048,
            "dp_size": 1,
        }

    def flush(self) -> int:
        with self._lock:
            if self.busy_flushes:
                self.busy_flushes -= 1
                return 400
            self._memory.clear()
            return 200

    def generate(self, request: dict) -> list[dict]:
        """The events of one answer, the last with everything generated."""
        prompt = tuple(request["input_ids"])
        if self.meeting is not None:
            self.meeting.wait()
        with self._lock:
            self.requests.append(request)
            source = "device" if prompt in self._memory else "storage" if prompt in self._storage else None
            self._remember(prompt)
        hit = (len(prompt) - 1) // PAGE_SIZE * PAGE_SIZE if source else 0
        details = {"device": 0, "host": 0, "storage": 0, "storage_backend": "UmbpStore"}
        events = self._events(prompt, request["sampling_params"]["max_new_tokens"], hit, details, source)
        return {"storage": self.spoil_storage, None: self.spoil_cold}.get(source, lambda same: same)(events)

    def store_what_is_in_memory(self) -> None:
        """Ends the backups that `stores` = False has kept from coming."""
        self._storage.update(self._memory)

    def _remember(self, prompt: tuple[int, ...]) -> None:
        self._memory[prompt] = len(prompt)
        self._memory.move_to_end(prompt)
        while sum(self._memory.values()) > self.device_tokens * (1 + self.hicache_ratio):
            self._memory.popitem(last=False)
        if self.stores:
            self._storage.add(prompt)

    @staticmethod
    def _events(prompt, new_tokens, hit, details, source) -> list[dict]:
        seed = hashlib.sha256(repr(prompt).encode()).digest()
        tokens = [[-1.0 - seed[index % 32] / 256, seed[index % 32], None] for index in range(new_tokens)]
        details = None if source is None else details | {source: hit}
        return [
            {
                "output_ids": [entry[1] for entry in tokens[:count]],
                "meta_info": {
                    "cached_tokens": hit,
                    "cached_tokens_details": details,
                    "completion_tokens": count,
                    "output_token_logprobs": [list(entry) for entry in tokens[:count]],
                },
            }
            for count in range(1, new_tokens + 1)
        ]

    @contextmanager
    def serving(self) -> Iterator[str]:
        """Serves on a free port of the loopback; gives the URL."""
        fake = self

        class Handler(BaseHTTPRequestHandler):
            def log_message(self, format: str, *args: object) -> None:
                pass

            def do_GET(self) -> None:
                self._answer(200 if self.path == "/server_info" else 404, json.dumps(fake.info()).encode())

            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                if self.headers["Authorization"] != fake.keys.get(self.path, self.headers["Authorization"]):
                    self._answer(401, b"wrong key")
                elif self.path == "/flush_cache":
                    self._answer(fake.flush(), b"busy or flushed")
                elif fake.refusal is not None:
                    self._answer(400, fake.refusal.encode())
                else:
                    events = fake.generate(body)
                    lines = [b"data: " + json.dumps(event).encode() + b"\n\n" for event in events]
                    self._answer(200, b"".join(lines) + b"data: [DONE]\n\n" * bool(events))

            def _answer(self, status: int, body: bytes) -> None:
                self.send_response(status)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

        class Server(ThreadingHTTPServer):
            request_queue_size = 128  # a refused connection is tried again after a second

        server = Server(("127.0.0.1", 0), Handler)
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}"
        finally:
            server.shutdown()
            thread.join()
            server.server_close()
