"""The native core of sglang_umbp."""

from collections.abc import Callable, Sequence
import enum
from typing import Annotated

import numpy
from numpy.typing import NDArray


def build_info() -> dict:
    """Compiler, standard, assertions, sanitizer, and nanobind's version."""

def prf128(key: bytes, messages: Sequence) -> list:
    """
    SipHash-2-4-128 of each message (bytes) under a 16-byte key, as 16 bytes. A door for tests.
    """

def plan_runs(src: Annotated[NDArray[numpy.uint64], dict(shape=(None,), order='C', device='cpu', writable=False)], dst: Annotated[NDArray[numpy.uint64], dict(shape=(None,), order='C', device='cpu', writable=False)], nbytes: Annotated[NDArray[numpy.uint64], dict(shape=(None,), order='C', device='cpu', writable=False)], src_region: Annotated[NDArray[numpy.uint32], dict(shape=(None,), order='C', device='cpu', writable=False)], dst_region: Annotated[NDArray[numpy.uint32], dict(shape=(None,), order='C', device='cpu', writable=False)]) -> tuple[Annotated[NDArray[numpy.uint64], dict(shape=(None,))], Annotated[NDArray[numpy.uint64], dict(shape=(None,))], Annotated[NDArray[numpy.uint64], dict(shape=(None,))]]:
    """
    The runs (src, dst, nbytes) of the fragments of one batch, in their order: neighbouring fragments of the same
    regions joined. Arrays of uint64 (region ids: uint32) of one length; new arrays are returned and no memory is
    touched at the addresses. Raises InvalidBatch if lengths differ, a fragment is empty or ends beyond 2**64.
    """

class MemoryKind(enum.Enum):
    """What kind of memory a region is."""

    HOST = 0

    PINNED_HOST = 1

    DEVICE = 2

class RegionMode(enum.Enum):
    """What a region may be used for."""

    PINNED = 0

    LOCAL_COPY_ONLY = 1

class Region:
    """
    A registered buffer [base, base + nbytes); a copy, not tied to the table.
    """

    @property
    def base(self) -> int: ...

    @property
    def nbytes(self) -> int: ...

    @property
    def kind(self) -> MemoryKind: ...

    @property
    def device(self) -> int: ...

    @property
    def device_alias(self) -> int: ...

    @property
    def mode(self) -> RegionMode: ...

    @property
    def id(self) -> int: ...

class RegionTable:
    """
    Registered buffers sorted by base. Any number of threads may use one table.
    """

    def __init__(self) -> None: ...

    def add(self, base: int, nbytes: int, kind: MemoryKind = MemoryKind.HOST, device: int = -1, device_alias: int = 0, mode: RegionMode = RegionMode.PINNED, grow: bool = False) -> None:
        """
        Adds [base, base + nbytes). The same region twice is a no-op; grow: it is the same allocation, now larger.
        Raises RegionError: zero size, end beyond 2**64, overlap, same base with another size or attributes.
        """

    def remove(self, base: int) -> int:
        """Raises RegionError if no region starts at base."""

    def find(self, address: int, nbytes: int) -> Region | None:
        """
        The region that holds every byte of the range, else None (also for 0 bytes).
        """

    def regions(self) -> list[Region]:
        """All regions, ascending bases."""

    def __len__(self) -> int: ...

    @property
    def shared_acquisitions(self) -> int:
        """How often the shared lock was taken for a look-up (find: once a call)."""

def copy_isas() -> list[str]:
    """Instruction sets that can copy on this CPU, best first."""

class HostCopier:
    """Copies host memory in the calling thread. Immutable, thread-safe."""

    def __init__(self, nt_min_bytes: int, isa: str = 'auto') -> None:
        """
        Non-temporal stores for runs of nt_min_bytes and more. isa: auto, avx512, avx2, neon or plain; raises
        InvalidBatch if this CPU lacks it.
        """

    def copy(self, dst: Annotated[NDArray[numpy.uint64], dict(shape=(None,), order='C', device='cpu', writable=False)], src: Annotated[NDArray[numpy.uint64], dict(shape=(None,), order='C', device='cpu', writable=False)], sizes: Annotated[NDArray[numpy.uint64], dict(shape=(None,), order='C', device='cpu', writable=False)]) -> None:
        """
        Copies sizes[i] bytes from address src[i] to dst[i] for every i; blocks, without the GIL. A door for tests and
        benchmarks: addresses are trusted. Arrays of uint64 of one length, else InvalidBatch.
        """

    @property
    def isa(self) -> str: ...

    @property
    def nt_min_bytes(self) -> int: ...

class CopyPool:
    """
    Copies host memory with helper threads. Any number of threads may call it.
    """

    def __init__(self, copier: HostCopier, threads: int) -> None:
        """threads: how many may copy one call, its caller included."""

    def copy(self, dst: Annotated[NDArray[numpy.uint64], dict(shape=(None,), order='C', device='cpu', writable=False)], src: Annotated[NDArray[numpy.uint64], dict(shape=(None,), order='C', device='cpu', writable=False)], sizes: Annotated[NDArray[numpy.uint64], dict(shape=(None,), order='C', device='cpu', writable=False)]) -> None:
        """
        Copies sizes[i] bytes from address src[i] to dst[i] for every i; blocks, without the GIL. A door for tests and
        benchmarks: addresses are trusted. Arrays of uint64 of one length, else InvalidBatch.
        """

    def abandon(self) -> None:
        """For a forked child: forget the helpers, which do not exist there."""

    @property
    def threads(self) -> int: ...

class DeviceApi:
    """
    A device runtime, loaded at run time. Its calls are a door for tests: addresses and handles (integers) are
    trusted. Every one may raise DeviceError. Thread-safe.
    """

    @property
    def name(self) -> str:
        """'cuda' or 'hip'."""

    @property
    def version(self) -> str:
        """Of the driver or runtime: '12.8'."""

    @property
    def device_count(self) -> int: ...

    def properties(self, device: int) -> dict:
        """name, multiprocessors, major, minor, architecture and pci_bus_id."""

    def pointer(self, address: int) -> dict:
        """
        What the runtime knows of an address: kind ('host': nothing), device, device_alias, and the base and nbytes
        of the allocation that holds it (0: it cannot be told).
        """

    def register_host(self, device: int, base: int, nbytes: int, read_only: bool = False) -> int:
        """Pins host memory in one call; its address as devices see it."""

    def unregister_host(self, base: int) -> None: ...

    def allocate_device(self, device: int, nbytes: int) -> int: ...

    def free_device(self, device: int, address: int) -> None: ...

    def allocate_pinned(self, device: int, nbytes: int) -> tuple:
        """Its address, and the same as devices see it."""

    def free_pinned(self, address: int) -> None: ...

    def create_stream(self, device: int, high_priority: bool = False) -> int: ...

    def destroy_stream(self, device: int, stream: int) -> None: ...

    def synchronize_stream(self, device: int, stream: int) -> None: ...

    def is_stream_done(self, device: int, stream: int) -> bool: ...

    def create_event(self, device: int) -> int: ...

    def destroy_event(self, device: int, event: int) -> None: ...

    def record_event(self, device: int, event: int, stream: int) -> None: ...

    def wait_event(self, device: int, stream: int, event: int) -> None:
        """The stream waits, not the caller."""

    def is_event_done(self, device: int, event: int) -> bool: ...

    def synchronize_event(self, device: int, event: int) -> None: ...

    def copy_async(self, device: int, dst: int, src: int, nbytes: int, stream: int) -> None: ...

    @property
    def max_batch(self) -> int:
        """Copies in one batched call; 0: it has none."""

    def copy_batch_async(self, device: int, dst: Annotated[NDArray[numpy.uint64], dict(shape=(None,), order='C', device='cpu', writable=False)], src: Annotated[NDArray[numpy.uint64], dict(shape=(None,), order='C', device='cpu', writable=False)], sizes: Annotated[NDArray[numpy.uint64], dict(shape=(None,), order='C', device='cpu', writable=False)], to_device: bool, stream: int) -> None: ...

    def load_module(self, device: int, image: bytes) -> int: ...

    def unload_module(self, device: int, module: int) -> None: ...

    def find_function(self, module: int, name: str) -> int: ...

    def allow_shared_bytes(self, function: int, shared_bytes: int) -> None: ...

    def launch(self, device: int, function: int, grid: int, block: int, shared_bytes: int, parameters: Sequence[int], stream: int) -> None:
        """parameters: 64-bit integers, passed by value."""

class PinnedMemory:
    """
    Host memory that devices may address, registered in chunks and counted; a door for tests. Thread-safe.
    """

    def __init__(self, api: DeviceApi, device: int, chunk_bytes: int = 1073741824) -> None: ...

    def pin(self, base: int, nbytes: int, read_only: bool = False, page_bytes: int = 4096) -> None:
        """
        Pins the pages of a range; what is pinned already is counted once more. Raises DeviceError (nothing of this call
        stays pinned) or RegionError.
        """

    def unpin(self, base: int, nbytes: int) -> None:
        """
        Undoes one pin of the same range. Raises RegionError: it is not pinned.
        """

    def at(self, address: int) -> tuple:
        """
        (nbytes, alias): how much from `address` on is one piece, and where devices see it; (0, 0).
        """

    @property
    def pinned_bytes(self) -> int: ...

def load_cuda(path: str) -> DeviceApi:
    """
    The CUDA driver in the shared library `path`. Raises DeviceError: it is not there, lacks a symbol (named), or has no device.
    """

def load_hip(path: str) -> DeviceApi:
    """
    The HIP runtime in the shared library `path`, which hip-python resolves. Raises DeviceError as load_cuda.
    """

class CopyThresholds:
    """
    Where the copier changes its way, and blocks of its kernels by mean bytes of a run: below 4096, 16384,
    65536, and more. bulk: the bulk kernel instead of the plain one. d2h_grid_beside_h2d: blocks of copies to the host
    while there are copies to the device. launch_bytes: of one launch, about. Immutable.
    """

    def __init__(self, *, dma_from_bytes: int = 1048576, h2d_grids: Sequence[int] = [6, 6, 6, 6], d2h_grids: Sequence[int] = [3, 3, 2, 2], bulk_h2d_grids: Sequence[int] = [6, 4, 4, 4], bulk_d2h_grids: Sequence[int] = [8, 4, 3, 3], bulk: Sequence[bool] = [False, False, False, False], d2h_grid_beside_h2d: int = 1, launch_bytes: int = 75497472, grid_cap: int = 0) -> None: ...

    def as_dict(self) -> dict:
        """The arguments that make an equal one."""

class DeviceCopier:
    """
    Copies between pinned host memory and the memory of one device. Thread-safe.
    """

    def __init__(self, api: DeviceApi, device: int, kernels: bytes, thresholds: CopyThresholds, max_lanes: int = 8) -> None:
        """
        kernels: the compiled image of device/kernels.cu, empty: DMA serves everything. Raises DeviceError.
        """

    def copy(self, dst: Annotated[NDArray[numpy.uint64], dict(shape=(None,), order='C', device='cpu', writable=False)], src: Annotated[NDArray[numpy.uint64], dict(shape=(None,), order='C', device='cpu', writable=False)], sizes: Annotated[NDArray[numpy.uint64], dict(shape=(None,), order='C', device='cpu', writable=False)], direction: str, way: str = 'auto', stream: int = 0, event: int = 0, fragments: int | None = None, repeats: int = 1) -> int:
        """
        Copies sizes[i] bytes from address src[i] to dst[i] for every i, after what the stream holds and the event marks
        (handles, 0: none); returns when every byte is there, without the GIL meanwhile: the nanoseconds from the first look
        at the runs to that moment. A door for tests and benchmarks: addresses are trusted, and are as the device sees them.
        direction: to_device, to_host or within_device; way: auto, dma, kernel, bulk or dma_each. repeats: the copy so often, one
        after the other. Arrays of uint64 of one length, else InvalidBatch. Raises DeviceError.
        """

    def totals(self) -> dict:
        """Counters of all copies so far, as a dict; by_way counts copies."""

    def calibrate(self) -> CopyThresholds:
        """
        Thresholds measured in about 100 ms; the copier keeps its own. Nobody else may copy meanwhile. Raises DeviceError.
        """

    @property
    def thresholds(self) -> CopyThresholds: ...

    @thresholds.setter
    def thresholds(self, arg: CopyThresholds, /) -> None: ...

    @property
    def has_kernels(self) -> bool: ...

    @property
    def device(self) -> int: ...

def floor_copy(dst: Annotated[NDArray[numpy.uint64], dict(shape=(None,), order='C', device='cpu', writable=False)], src: Annotated[NDArray[numpy.uint64], dict(shape=(None,), order='C', device='cpu', writable=False)], sizes: Annotated[NDArray[numpy.uint64], dict(shape=(None,), order='C', device='cpu', writable=False)], mode: str, threads: int = 1) -> int:
    """
    Nanoseconds of a bare loop that copies sizes[i] bytes from address src[i] to dst[i], one fragment after the
    other. mode: 'memcpy' or 'nt' (non-temporal stores). threads: 1, or 2 that take half the list each; the second
    one is awake before the clock starts. Addresses are trusted. Blocks, without the GIL. Raises InvalidBatch if
    lengths differ or mode or threads is another.
    """

class IndexFloor:
    """
    Memory like that of an index, and the bare prefetched loop over a bucket's line and then an
    entry's line that look-ups are measured against.
    """

    def __init__(self, entry_count: int, seed: int = 1) -> None: ...

    @property
    def bucket_count(self) -> int: ...

    def run_ns(self, buckets: Annotated[NDArray[numpy.uint64], dict(shape=(None,), order='C', device='cpu', writable=False)]) -> int:
        """
        Nanoseconds of one pass over `buckets` (numbers, taken modulo bucket_count) and one entry of each.
        One thread at a time.
        """

class PageLayout:
    """
    Where the fragments of a component's pages lie in the caller's buffers.
    """

    def __init__(self, components: Components, part: int, rows: int, bases: object, strides: object, sizes: object, object_offsets: object) -> None:
        """
        Raises InvalidBatchError unless the fragments tile the object and never overlap.
        """

    @property
    def rows(self) -> int: ...

    @property
    def object_bytes(self) -> int: ...

    @property
    def fragments(self) -> int: ...

class PoolConfig:
    """Settings of a native pool; see PoolSettings for the meaning."""

    def __init__(self) -> None: ...

    @property
    def capacity_bytes(self) -> int: ...

    @capacity_bytes.setter
    def capacity_bytes(self, arg: int, /) -> None: ...

    @property
    def index_entries(self) -> int: ...

    @index_entries.setter
    def index_entries(self, arg: int, /) -> None: ...

    @property
    def memfd(self) -> bool: ...

    @memfd.setter
    def memfd(self, arg: bool, /) -> None: ...

    @property
    def hugepages(self) -> bool: ...

    @hugepages.setter
    def hugepages(self, arg: bool, /) -> None: ...

    @property
    def prefault(self) -> bool: ...

    @prefault.setter
    def prefault(self, arg: bool, /) -> None: ...

    @property
    def prefault_in_background(self) -> bool: ...

    @prefault_in_background.setter
    def prefault_in_background(self, arg: bool, /) -> None: ...

    @property
    def numa_node(self) -> int: ...

    @numa_node.setter
    def numa_node(self, arg: int, /) -> None: ...

    @property
    def policy(self) -> str: ...

    @policy.setter
    def policy(self, arg: str, /) -> None: ...

    @property
    def high_watermark(self) -> float: ...

    @high_watermark.setter
    def high_watermark(self, arg: float, /) -> None: ...

    @property
    def low_watermark(self) -> float: ...

    @low_watermark.setter
    def low_watermark(self, arg: float, /) -> None: ...

    @property
    def nt_copy_min_bytes(self) -> int: ...

    @nt_copy_min_bytes.setter
    def nt_copy_min_bytes(self, arg: int, /) -> None: ...

    @property
    def copy_threads(self) -> int: ...

    @copy_threads.setter
    def copy_threads(self, arg: int, /) -> None: ...

    @property
    def copy_isa(self) -> str: ...

    @copy_isa.setter
    def copy_isa(self, arg: str, /) -> None: ...

    @property
    def session_quota_bytes(self) -> int: ...

    @session_quota_bytes.setter
    def session_quota_bytes(self, arg: int, /) -> None: ...

    @property
    def deadline_s(self) -> float: ...

    @deadline_s.setter
    def deadline_s(self, arg: float, /) -> None: ...

    @property
    def strict_registration(self) -> bool: ...

    @strict_registration.setter
    def strict_registration(self, arg: bool, /) -> None: ...

    @property
    def exists_refreshes(self) -> bool: ...

    @exists_refreshes.setter
    def exists_refreshes(self, arg: bool, /) -> None: ...

    @property
    def call_debug(self) -> bool: ...

    @call_debug.setter
    def call_debug(self, arg: bool, /) -> None: ...

    @property
    def latency_histograms(self) -> bool: ...

    @latency_histograms.setter
    def latency_histograms(self, arg: bool, /) -> None: ...

    @property
    def staging_bytes(self) -> int: ...

    @staging_bytes.setter
    def staging_bytes(self, arg: int, /) -> None: ...

    @property
    def pin_chunk_bytes(self) -> int: ...

    @pin_chunk_bytes.setter
    def pin_chunk_bytes(self, arg: int, /) -> None: ...

class Components:
    """The components of a namespace, in order."""

    def __init__(self, pool: Pool, identities: Sequence) -> None: ...

    def __len__(self) -> int: ...

    def rebind(self, pool: Pool) -> None:
        """
        The same namespace in another pool; its layouts follow. The pool before must be closed or unmapped, and the
        new one not be used with this namespace yet. Raises InvalidBatchError.
        """

class Pool:
    """The native pool; sglang_umbp.Pool documents it."""

    def __init__(self, config: PoolConfig) -> None: ...

    @staticmethod
    def attach(config: PoolConfig, memory: Sequence, client: int) -> Pool:
        """A reader of another process's pool, from the descriptors of share()."""

    def close(self) -> None: ...

    @property
    def closed(self) -> bool: ...

    def lose(self) -> None:
        """
        The owner of an attached pool is gone: from now on nothing is found, and no call raises for that. Calls that
        run finish. Raises UmbpError in the owner itself.
        """

    def unmap(self) -> None:
        """
        Of a lost pool: waits for calls that ran at the loss, ends the sessions, gives the memory back. Calls go on
        finding nothing until ``close``.
        """

    @property
    def lost(self) -> bool: ...

    def hide(self, hidden: bool) -> None:
        """
        While hidden nothing is found that no session holds: look-ups, gets and pins are misses.
        """

    @property
    def hidden(self) -> bool: ...

    @property
    def populated(self) -> bool:
        """
        Whether every map has its pages: what ``prefault_in_background`` started is through.
        """

    def register_memory(self, address: int, nbytes: int, grow: bool = False) -> None: ...

    def unregister_memory(self, address: int) -> None: ...

    def get_pages(self, layout: PageLayout, hashes: object, rows: object, layers: object | None = None, *, status: bool = False, stream: object | None = None, event: object | None = None) -> list: ...

    def get_components(self, parts: Sequence, *, status: bool = False, stream: object | None = None, event: object | None = None) -> list: ...

    def put_pages(self, layout: PageLayout, hashes: object, rows: object, depth: int | None, status: bool, stream: object | None = None, event: object | None = None) -> list: ...

    def put_components(self, parts: Sequence, depth: int | None, status: bool, stream: object | None = None, event: object | None = None) -> list: ...

    def get_whole(self, components: Components, part: int, keys: object, addresses: object, sizes: object, status: bool, stream: object | None = None, event: object | None = None) -> list: ...

    def get_ranges(self, components: Components, part: int, keys: object, addresses: object, sizes: object, offsets: object, starts: object | None, status: bool, stream: object | None = None, event: object | None = None) -> list: ...

    def put_whole(self, components: Components, part: int, keys: object, addresses: object, sizes: object, status: bool, stream: object | None = None, event: object | None = None) -> list: ...

    def put_ranges(self, components: Components, part: int, keys: object, object_sizes: object, addresses: object, sizes: object, offsets: object, starts: object | None, status: bool, stream: object | None = None, event: object | None = None) -> list: ...

    def exists(self, components: Components, keys: object) -> list: ...

    def exists_prefix(self, components: Components, keys: object) -> int: ...

    def time_exists(self, components: Components, keys: object) -> int:
        """
        A door for benchmarks: nanoseconds of one look-up of all keys, their page hashes already digested.
        """

    def remove(self, components: Components, keys: object) -> list: ...

    def clear(self) -> None: ...

    def flush(self) -> None: ...

    def stats(self) -> dict: ...

    @property
    def troubles(self) -> int:
        """
        Changes when a put fails, and once when the index is full before the bytes are.
        """

    def named_bytes(self) -> list:
        """(pid, bytes) of each client whose slots or sessions name something."""

    def locate(self, components: Components, part: int, keys: object) -> list:
        """
        A door for benchmarks: (address, nbytes) of each object in the arena, (0, 0) if missing.
        """

    def share(self) -> dict:
        """A door for tests: descriptors of the memory and of a new client area."""

    def clients(self) -> list[dict[str, int]]:
        """
        Per client: client_id, pid, named_bytes (what its slots and sessions keep from being reused), session_bytes (the
        part that sessions name), and get_calls, gets, hits (keys), bytes_read, exists_keys, exists_found as it last
        reported them. The first is the pool itself.
        """

    def component_totals(self) -> list[tuple[bytes, int, int]]:
        """
        (identity, live objects, their bytes) of each component; of the owner only.
        """

    def report_reads(self) -> None:
        """
        Leaves what this process has read so far where the owner's ``clients`` finds it.
        """

    def bind_client(self, client_id: int, pid: int, pidfd: int = -1) -> None:
        """
        What the client named is free once this process has ended. pidfd: a descriptor of that process, duplicated; -1:
        it is found by its number.
        """

    def remove_client(self, client_id: int) -> None:
        """What the client named may be reused from now on."""

    def pin(self, keys: object, *, namespace: object | None = None, firm: bool = True) -> Session: ...

    def reserve(self, components: Components, part: int, keys: object, sizes: object, depth: int | None = None) -> RemoteBatch:
        """
        A put batch that another process will fill; see RemoteBatch. Only for the pool's owner. Nothing is reserved
        before its ``allocate``. Raises InvalidBatchError, UmbpError.
        """

    def reserve_packed(self, groups: Sequence, keys: bytes, key_sizes: bytes, sizes: bytes) -> RemoteBatch:
        """
        The same for keys of several components: each group is (components, part, number of keys, depth of the first);
        the keys one after the other, their sizes (uint32), the sizes of their objects (uint64).
        """

    def page_source(self, layout: PageLayout, rows: object) -> PutSource:
        """
        The rows (integers, one an object) of a layout as the source of a put. Raises InvalidBatchError.
        """

    def whole_source(self, addresses: object, sizes: object) -> PutSource:
        """
        Whole objects, one range each, as the source of a put; as ``put_whole`` takes them.
        """

    def range_source(self, object_sizes: object, addresses: object, sizes: object, offsets: object, starts: object | None) -> PutSource:
        """
        Ranges that tile objects as the source of a put; as ``put_ranges`` takes them.
        """

    def fill(self, source: PutSource, picks: object, offsets: object, stream: object | None = None, event: object | None = None) -> bool:
        """
        Copies item picks[i] of the source to offsets[i] in the arena; only for attached pools. stream, event: see
        ``Pool.put_pages``.

        True: every byte is there. False: the pool is lost, nothing was copied. Releases the GIL. Raises
        InvalidBatchError before a byte moves: a pick that is not in the source or whose status is not 0, an offset whose
        object is not in the arena, memory that is not registered.
        """

    def use_devices(self, api: DeviceApi, make_copier: Callable[[int], DeviceCopier], arena_wanted: Callable[[int, bool], None] | None = None) -> None:
        """
        Batches may name device memory from now on. Raises UmbpError if the pool has a runtime already.

        make_copier(device) is called when memory of that device first comes up. arena_wanted(device, writing), once each:
        it is time to call ``pin_arena`` with the same arguments, in another thread.
        """

    @property
    def has_devices(self) -> bool:
        """Whether it has a device runtime."""

    def pin_arena(self, device: int, writing: bool) -> int:
        """
        Pins the map of the arena that devices read, or the one that they write to; the bytes that this call pinned. Returns early
        when the pool closes or is lost. Raises DeviceError: what is not pinned by then goes through slabs.
        """

    def regions(self) -> list[Region]:
        """What is registered, ascending bases."""

class Session:
    """
    The pages that ``Pool.pin`` found, held until ``close``. A context manager.

    Eviction passes over what a session holds. Threads may read through one session at once. A droppable
    session may be let go of at the quota; reads then look the pages up anew. After ``close``, or that of
    the pool, reads raise.
    """

    def __len__(self) -> int: ...

    def __enter__(self) -> Session: ...

    def __exit__(self, *args: object) -> None: ...

    @property
    def namespace(self) -> object:
        """Whose pages they are."""

    @property
    def firm(self) -> bool:
        """Whether it keeps what it holds whatever the quota."""

    @property
    def hits(self) -> list[bool]:
        """
        Per page: whether it was held when the session began, all its components.
        """

    @property
    def prefix(self) -> int:
        """Length of the leading run of hits."""

    @property
    def nbytes(self) -> int:
        """Bytes of the objects it holds."""

    @property
    def closed(self) -> bool:
        """Whether it was closed, or dropped at the quota."""

    @property
    def dropped(self) -> bool:
        """Whether the pool let go of it at the quota (droppable sessions only)."""

    def close(self) -> None:
        """Waits for reads in progress, then lets the pages go. Twice is a no-op."""

    def get_pages(self, layout: object, rows: object, layers: object | None = None, *, first: int = 0, status: bool = False, stream: object | None = None, event: object | None = None) -> list:
        """
        Copies pages first .. first+len(rows) of the session into rows of the layout, without a look-up.

        rows: integers, one a page, all different. layers: half-open range of the layout's fragments (default all).
        Returns one answer a page: bools, or with status=True members of Status. Blocks until every byte is there;
        releases the GIL. stream, event: see ``Pool.get_pages``. Raises InvalidBatchError, PoolClosedError, ForkedPoolError before a byte moves.
        """

    def get_components(self, parts: Sequence, *, first: int = 0, status: bool = False, stream: object | None = None, event: object | None = None) -> list:
        """
        The same for several components as one batch; the answers of each part.

        parts: (layout, rows) or (layout, rows, layers) of each. As ``get_pages`` otherwise; no two parts may write the same
        bytes.
        """

    def get_ranges(self, addresses: object, sizes: object, offsets: object, *, starts: object | None = None, first: int = 0, component: object | None = None, status: bool = False, stream: object | None = None, event: object | None = None) -> list:
        """
        Copies raw ranges of the session's pages from ``first`` on; see ``Pool.get_ranges``.

        component: which object of the page; needed if the namespace has several.
        """

class RemoteBatch:
    """
    The owner's half of a put whose bytes another process copies; from ``Pool.reserve``.

    ``allocate``, then the client copies what is new, then ``commit``; while that says False, ``await_busy``, and
    while that says False, ``allocate`` again. A step out of turn, or after ``abandon``, raises InvalidBatchError.
    Nothing is visible before ``commit``. Deleting a batch that is not over abandons it. Releases the GIL; steps of
    one batch take turns.
    """

    def allocate(self, deadline_s: float) -> None:
        """
        Reserves room for the keys that are new; waits for room no longer than this. ``answers`` then says where.
        """

    def commit(self) -> bool:
        """
        Makes visible what was reserved, of which the client has copied every byte. Whether the batch is over.
        """

    def await_busy(self, deadline_s: float) -> bool:
        """
        Waits for other puts of the same keys. Whether the batch is over; else ``allocate`` comes next.
        """

    def abandon(self) -> None:
        """
        Frees what is reserved and not committed. From any thread; cuts a step that waits short; again is a no-op.

        Only once the client's process has ended, or by its own word that it does not copy any more: the memory is
        given to others.
        """

    def answers(self) -> tuple[bytes, bytes, bytes]:
        """
        Per key: phase (one byte, PHASE_*), status code (one byte, once PHASE_DONE), offset in the arena (eight
        bytes, as the machine orders them, while PHASE_NEW).
        """

    def start(self, deadline_s: float) -> tuple[bool, bytes, bytes, bytes]:
        """
        All steps up to where the client's part comes, or the end: (over, picks, offsets, statuses).

        Not over: picks (uint32) are keys to copy, offsets (uint64) where to; then ``proceed``. Over: a status code (one
        byte) a key. Waits no longer than this in all.
        """

    def proceed(self, deadline_s: float) -> tuple[bool, bytes, bytes, bytes]:
        """
        The same once the client has copied what was picked: makes it visible first.
        """

    def __len__(self) -> int: ...

    @property
    def over(self) -> bool:
        """Every key has its status; nothing is reserved."""

    @property
    def abandoned(self) -> bool: ...

    @property
    def nbytes_asked(self) -> int:
        """Bytes of all its objects but those that are larger than the pool."""

    @property
    def key_bytes(self) -> int:
        """Of all its keys."""

    @property
    def nbytes_reserved(self) -> int:
        """Bytes of the keys that are reserved and not committed."""

    @property
    def nbytes_held(self) -> int:
        """
        Those, and the objects found there, which eviction passes over until the batch is over.
        """

PHASE_PENDING: int = 0

PHASE_NEW: int = 1

PHASE_DUPLICATE: int = 2

PHASE_PRESENT: int = 3

PHASE_BUSY: int = 4

PHASE_DONE: int = 5

class PutSource:
    """
    Where a put of an attached pool copies from: checked and unchanging. The memory itself is the caller's.
    """

    def __len__(self) -> int: ...

    @property
    def statuses(self) -> bytes:
        """
        Per item a status code (one byte): 0, or why it cannot be put (BAD_RANGE, NOT_TILED).
        """

    @property
    def sizes(self) -> bytes:
        """Per item the object's bytes (eight bytes, as the machine orders them)."""

class ClientPut:
    """
    One put call of an attached pool: keys of one or more components, their sources, their answers, and the part of it
    that the message under way carries. For one thread.
    """

    def __init__(self, pool: Pool, parts: Sequence, depth: int) -> None:
        """
        parts: a list of (components, part, keys, PutSource), which must not change. depth: of each part's first key. Raises
        InvalidBatchError, TypeError.
        """

    def answer_present(self) -> bool:
        """
        Whether all objects are there with the same sizes, and the put is over by that: asks nobody. Eviction sees that
        they were used.
        """

    def cut(self, max_objects: int, max_bytes: int, max_key_bytes: int) -> bool:
        """
        Takes the next keys that one message may carry, at least one; False: there are none left.
        """

    def message(self, numbers: Sequence[int]) -> tuple[bytes, bytes, bytes, bytes]:
        """
        groups, keys, key_sizes and sizes of Allocate for what was cut. numbers: of each part's namespace.
        """

    def fill(self, pool: Pool, picks: bytes, offsets: bytes, stream: int | None, event: int | None) -> bool | None:
        """
        Copies pick i (uint32) of what was cut to offset i (uint64). None: they do not fit it. False: the pool is lost.
        stream, event: of the device runtime, whose work comes first. Raises as ``Pool.fill``.
        """

    def settle(self, codes: bytes) -> bool:
        """Status codes (one byte) of what was cut. False: they do not fit it."""

    def settle_all(self, code: int) -> None:
        """One status code for all of what was cut."""

    def answers(self, status: bool) -> list[list]:
        """
        Per part and key: a bool, or a Status. What nobody answered is NO_SERVER.
        """

    @property
    def totals(self) -> tuple[list[tuple[int, int]], int]:
        """
        (status code, number of keys) of the answers there are, and the bytes that were stored.
        """
