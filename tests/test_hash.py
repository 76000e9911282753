"""The keyed hash against its published vectors and a plain-Python twin."""

import random

import numpy as np

from sglang_umbp import Pool, _native

MASK = (1 << 64) - 1


def rotate(word: int, bits: int) -> int:
    return (word << bits | word >> (64 - bits)) & MASK


def siphash128(key: bytes, message: bytes) -> bytes:
    """SipHash-2-4 with 128-bit output, written after its specification."""
    k0, k1 = (int.from_bytes(key[i : i + 8], "little") for i in (0, 8))
    v = [
        0x736F6D6570736575 ^ k0,
        0x646F72616E646F6D ^ k1 ^ 0xEE,
        0x6C7967656E657261 ^ k0,
        0x7465646279746573 ^ k1,
    ]

    def rounds(count: int) -> None:
        for _ in range(count):
            v[0] = (v[0] + v[1]) & MASK
            v[1] = rotate(v[1], 13) ^ v[0]
            v[0] = rotate(v[0], 32)
            v[2] = (v[2] + v[3]) & MASK
            v[3] = rotate(v[3], 16) ^ v[2]
            v[0] = (v[0] + v[3]) & MASK
            v[3] = rotate(v[3], 21) ^ v[0]
            v[2] = (v[2] + v[1]) & MASK
            v[1] = rotate(v[1], 17) ^ v[2]
            v[2] = rotate(v[2], 32)

    padded = message + bytes(7 - len(message) % 8) + bytes([len(message) & 0xFF])
    for at in range(0, len(padded), 8):
        word = int.from_bytes(padded[at : at + 8], "little")
        v[3] ^= word
        rounds(2)
        v[0] ^= word
    v[2] ^= 0xEE
    rounds(4)
    low = v[0] ^ v[1] ^ v[2] ^ v[3]
    v[1] ^= 0xDD
    rounds(4)
    return low.to_bytes(8, "little") + (v[0] ^ v[1] ^ v[2] ^ v[3]).to_bytes(8, "little")


def test_published_vectors_of_siphash_128_hold() -> None:
    key = bytes(range(16))
    digests = _native.prf128(key, [b"", b"\x00"])
    assert digests[0].hex() == "a3817f04ba25a8e66df67214c7550293"
    assert digests[1].hex() == "da87c1d86b99af44347659119b22fc45"


def test_every_length_and_position_in_a_batch_agrees_with_the_twin() -> None:
    rng = random.Random(5)
    key = rng.randbytes(16)
    mixed = [rng.randbytes(length) for length in range(0, 130)]
    equal = [rng.randbytes(64) for _ in range(37)]
    for messages in (mixed, equal, equal + mixed + equal):
        assert _native.prf128(key, messages) == [siphash128(key, m) for m in messages]


def test_another_key_gives_another_hash() -> None:
    first, second = (_native.prf128(bytes([k]) * 16, [b"x"] * 9) for k in (1, 2))
    assert len(set(first)) == 1
    assert first != second


def test_a_page_hash_has_one_key_however_many_are_hashed_at_once() -> None:
    hashes = [f"{page:064x}" for page in range(61)]  # 16, 8 and 1 at a time
    memory = np.zeros(64, dtype=np.uint8)
    with Pool(capacity_bytes=1 << 16) as pool:
        pool.register_array(memory)
        space = pool.namespace("model", ["kv"])
        stored = pool.put(hashes, [memory.ctypes.data] * 61, [64] * 61, namespace=space.component("kv"))
        assert stored == [True] * 61
        assert [pool.exists_prefix([each], namespace=space) for each in hashes] == [1] * 61
        for count in (7, 8, 9, 15, 16, 17, 24, 40):
            assert pool.exists_prefix(hashes[:count], namespace=space) == count
