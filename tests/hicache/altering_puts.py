"""A plugin of SGLang for tests: while a file exists, pages are stored with other bytes than they have.

The file is named by the environment variable below. Every byte of a page is turned around for the time of the put and
put back afterwards, so that device and host keep the right bytes and only the storage has wrong ones.
"""

import ctypes
import os

SWITCH_VARIABLE = "UMBP_TEST_ALTER_PUTS"
SIGN_BIT = 0x80


def install() -> None:
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    target = "sglang.srt.managers.cache_controller.HiCacheController._page_set_zero_copy"
    HookRegistry.register(target, put_altered, HookType.AROUND)


def put_altered(original, controller, hash_values, host_indices, *more, **named):
    if not os.path.exists(os.environ.get(SWITCH_VARIABLE, "")):
        return original(controller, hash_values, host_indices, *more, **named)
    places = list(zip(*controller.storage_host_pool.get_page_buffer_meta(host_indices), strict=True))
    flip_signs(places)
    try:
        return original(controller, hash_values, host_indices, *more, **named)
    finally:
        flip_signs(places)


def flip_signs(places: list[tuple[int, int]]) -> None:
    """Turns the sign of every bfloat16 in these (address, nbytes): finite numbers stay finite."""
    for address, nbytes in places:
        data = (ctypes.c_uint8 * nbytes).from_address(address)
        for high_byte in range(1, nbytes, 2):
            data[high_byte] ^= SIGN_BIT
