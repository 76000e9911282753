"""The three places where SGLang knows storage backends by name only, and the hooks that teach it one more.

Everything a hook relies on is looked up and compared before one is registered, so that another SGLang is noticed when
it starts and not when a request is served. SGLang's HookRegistry applies them, in every process that loads plugins.
"""

import inspect
import pkgutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

BACKEND_NAME = "umbp"
STORE_MODULE = "sglang_umbp.hicache.store"
STORE_CLASS = "UmbpStore"
FACTORY_MODULE = "sglang.srt.mem_cache.storage.backend_factory"
CONTROLLER_MODULE = "sglang.srt.managers.cache_controller"
HYBRID_CONTROLLER_MODULE = "sglang.srt.mem_cache.hybrid_cache.hybrid_cache_controller"


@dataclass(frozen=True)
class Relied:
    """A function of SGLang, with what it must have: leading parameters (others need a default), names its code uses."""

    module: str
    name: str
    parameters: tuple[str, ...]
    uses: tuple[str, ...] = ()

    @property
    def target(self) -> str:
        return f"{self.module}.{self.name}"

    def differences(self) -> Iterator[str]:
        try:
            function = inspect.getattr_static(pkgutil.resolve_name(self._owner), self.name.rpartition(".")[2])
        except (ImportError, AttributeError):
            yield f"{self.target} is not there"
            return
        function = inspect.unwrap(getattr(function, "__func__", function))
        found = list(inspect.signature(function).parameters.values())
        head, beside = found[: len(self.parameters)], found[len(self.parameters) :]
        if tuple(p.name for p in head) != self.parameters or any(_must_be_given(p) for p in beside):
            yield f"{self.target} takes ({', '.join(p.name for p in found)}), not ({', '.join(self.parameters)})"
        for name in sorted(set(self.uses) - set(function.__code__.co_names)):
            yield f"{self.target} does not use {name}"

    @property
    def _owner(self) -> str:
        return f"{self.module}:{self.name.rpartition('.')[0]}"


CREATE_BACKEND = Relied(
    FACTORY_MODULE,
    "StorageBackendFactory._create_builtin_backend",
    ("cls", "backend_name", "backend_class", "storage_config", "mem_pool_host"),
)
ATTACH_BACKEND = Relied(
    CONTROLLER_MODULE,
    "HiCacheController.attach_storage_backend",
    ("self", "storage_backend", "prefetch_threshold", "model_name", "storage_backend_extra_config"),
    uses=("page_get_func", "page_set_func"),
)
TAKES_ENVELOPES = Relied(
    HYBRID_CONTROLLER_MODULE, "HybridCacheController.supports_page_envelope_host", ("storage_backend",)
)
RELIED = (
    CREATE_BACKEND,
    ATTACH_BACKEND,
    TAKES_ENVELOPES,
    Relied(FACTORY_MODULE, "StorageBackendFactory.register_backend", ("cls", "name", "module_path", "class_name")),
    Relied(
        CONTROLLER_MODULE,
        "HiCacheController._page_get_zero_copy",
        ("self", "operation", "hash_values", "host_indices", "extra_info"),
    ),
    Relied(
        CONTROLLER_MODULE,
        "HiCacheController._page_set_zero_copy",
        ("self", "hash_values", "host_indices", "extra_info"),
    ),
)


def differences() -> list[str]:
    """What this SGLang has otherwise than the tested versions, a phrase each; empty if the hooks fit."""
    return [difference for relied in RELIED for difference in relied.differences()]


def install_hooks() -> None:
    """Registers the backend with SGLang's factory and the hooks with its HookRegistry."""
    from sglang.srt.mem_cache.storage.backend_factory import StorageBackendFactory
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    StorageBackendFactory.register_backend(BACKEND_NAME, STORE_MODULE, STORE_CLASS)
    HookRegistry.register(CREATE_BACKEND.target, create_backend, HookType.AROUND)
    HookRegistry.register(ATTACH_BACKEND.target, attach_backend, HookType.AROUND)
    HookRegistry.register(TAKES_ENVELOPES.target, takes_envelopes, HookType.AROUND)


def create_backend(
    original: Callable[..., Any],
    cls: type,
    backend_name: str,
    backend_class: Callable[..., Any],
    storage_config: object,
    mem_pool_host: object,
) -> Any:
    """Around the factory's list of constructors, which ends with an error for a name it does not know."""
    if backend_name == BACKEND_NAME:
        return backend_class(storage_config, mem_pool_host)
    return original(cls, backend_name, backend_class, storage_config, mem_pool_host)


def attach_backend(
    original: Callable[..., Any], controller: Any, storage_backend: str, *args: Any, **kwargs: Any
) -> Any:
    """Around the attachment, at start and at run time: pages go without a copy, as for the names SGLang lists there.

    No storage operation can come before: they are queued by the thread that attaches.
    """
    if storage_backend != BACKEND_NAME:
        return original(controller, storage_backend, *args, **kwargs)
    refuse_decode_context_parallelism()
    result = original(controller, storage_backend, *args, **kwargs)
    controller.page_get_func = controller._page_get_zero_copy
    controller.page_set_func = controller._page_set_zero_copy
    return result


def takes_envelopes(original: Callable[..., Any], storage_backend: str | None) -> Any:
    """Around the question whether a backend stores the page envelopes of --enable-unified-memory.

    It does: a page of such a host pool is one object with every byte of its envelope, moved under SGLang's lease.
    """
    return storage_backend == BACKEND_NAME or original(storage_backend)


def refuse_decode_context_parallelism() -> None:
    """Raises NotImplementedError if ranks share the tokens of a page. SGLang refuses as well, without naming us."""
    from sglang.srt.runtime_context import get_parallel

    size = get_parallel().attn_dcp_size
    if size > 1:
        raise NotImplementedError(
            f"--hicache-storage-backend {BACKEND_NAME} does not support decode context parallelism "
            f"(--dcp-size {size}): start with --dcp-size 1, or with the backend file or mooncake"
        )


def _must_be_given(parameter: inspect.Parameter) -> bool:
    variadic = parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
    return parameter.default is parameter.empty and not variadic
