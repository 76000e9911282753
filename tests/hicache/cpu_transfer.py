"""What SGLang's cache lacks on a CPU: device-to-host page copies, and host pools that do not ask for pinned memory."""

import importlib
import inspect
import pkgutil
from collections.abc import Callable, Iterator

# The copies below are those of `--hicache-io-backend direct`; indices count tokens and cover whole pages.
POOL_MODULES = ("pool_host.mha", "pool_host.mla", "pool_host.dsa", "pool_host.mamba", "memory_pool_host")


def install() -> None:
    """Puts the stand-ins in place, for this process. A second call changes nothing."""
    unpin_host_pools()
    for name in POOL_MODULES:
        module = importlib.import_module(f"sglang.srt.mem_cache.{name}")
        for copy in (transfer_kv_direct, transfer_kv_all_layer_direct_lf_pf, transfer_kv_per_layer_direct_pf_lf):
            setattr(module, copy.__name__, copy)


def transfer_kv_direct(src_layers, dst_layers, src_indices, dst_indices, page_size):
    """Layer buffers to layer buffers, both by token."""
    for source, target in zip(src_layers, dst_layers, strict=True):
        target[dst_indices] = source[src_indices]


def transfer_kv_all_layer_direct_lf_pf(src_ptrs, dst_ptrs, src_indices, dst_indices, page_size):
    """Layer buffers, all of a component after the other, to one host buffer a component: (page, layer, token, ...)."""
    layers = len(src_ptrs) // len(dst_ptrs)
    pages = page_rows(dst_indices, page_size)
    for component, target in enumerate(dst_ptrs):
        for layer in range(layers):
            tokens = src_ptrs[component * layers + layer][src_indices]
            target[pages, layer] = tokens.reshape(len(pages), page_size, *tokens.shape[1:])


def transfer_kv_per_layer_direct_pf_lf(src_ptrs, dst_ptrs, src_indices, dst_indices, layer_id, page_size):
    """One layer of page-first host buffers to that layer's device buffers, by token."""
    pages = page_rows(src_indices, page_size)
    for source, target in zip(src_ptrs, dst_ptrs, strict=True):
        target[dst_indices] = source[pages, layer_id].reshape(len(dst_indices), *target.shape[1:])


def page_rows(indices, page_size: int):
    """The page of each run of page_size token indices."""
    return indices.view(-1, page_size)[:, 0] // page_size


def unpin_host_pools() -> None:
    """Turns the default pin_memory=True of whatever makes a host pool into False: a CPU torch cannot pin."""
    for pool in host_pool_classes():
        for attribute in vars(pool).values():
            function = getattr(attribute, "__func__", attribute)
            if inspect.isfunction(function):
                default_to_unpinned(function)


def host_pool_classes() -> Iterator[type]:
    import sglang.srt.mem_cache.memory_pool_host as old_module
    import sglang.srt.mem_cache.pool_host as package

    names = [m.name for m in pkgutil.iter_modules(package.__path__) if not m.name.startswith("npu")]
    for module in [old_module, *(importlib.import_module(f"{package.__name__}.{name}") for name in names)]:
        yield from filter(inspect.isclass, vars(module).values())


def default_to_unpinned(function: Callable[..., object]) -> None:
    parameters = inspect.signature(function).parameters
    if "pin_memory" not in parameters or parameters["pin_memory"].default is not True:
        return
    keyword_defaults = function.__kwdefaults__ or {}
    if "pin_memory" in keyword_defaults:
        function.__kwdefaults__ = keyword_defaults | {"pin_memory": False}
        return
    positional = [p for p in parameters.values() if p.kind is p.POSITIONAL_OR_KEYWORD and p.default is not p.empty]
    function.__defaults__ = tuple(False if p.name == "pin_memory" else p.default for p in positional)
