"""The copy kernels, compiled for the device at hand at first use and kept on disk."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from functools import cache
from importlib.resources import files

from .cache import Cache, key_of
from .compiler_library import KINDS, CompileError, CompilerLibrary, load_compiler

logger = logging.getLogger(__name__)

SOURCE_NAME = "kernels.cu"
OPTIONS = ("-std=c++17",)


def compiled_kernels(runtime: str, architecture: str, environ: Mapping[str, str] | None = None) -> bytes:
    """The image of kernels.cu for an architecture ("sm_90", "gfx942"); empty, with one line in the log, without a
    compiler or if it refuses: DMA then serves every copy.

    ``runtime``: "cuda" or "hip". Blocks for a second or so when nothing is in the cache. ``environ``: os.environ.
    """
    environ = os.environ if environ is None else environ
    kind = KINDS[runtime]
    compiler = load_compiler(kind, environ)
    if compiler is None:
        logger.warning(
            "%s was not found beside torch, in a toolkit or on the loader's path: small fragments are copied by DMA, "
            "at a fraction of the link's rate",
            kind.files[0],
        )
        return b""
    try:
        return _from_cache_or_compiler(compiler, architecture, Cache.of_user(environ))
    except CompileError as error:
        logger.warning("the copy kernels did not compile for %s, DMA serves: %s", architecture, error)
        return b""


def _from_cache_or_compiler(compiler: CompilerLibrary, architecture: str, kept: Cache) -> bytes:
    source = kernel_source()
    name = key_of(source, architecture, compiler.kind.prefix, compiler.version(), *OPTIONS) + ".image"
    image = kept.read(name)
    if image is None:
        image = compiler.compile(source, SOURCE_NAME, architecture, OPTIONS)
        kept.write(name, image)
        logger.info("compiled the copy kernels for %s with %s %s", architecture, compiler.name, compiler.version())
    return image


@cache
def kernel_source() -> bytes:
    return files(__package__).joinpath(SOURCE_NAME).read_bytes()
