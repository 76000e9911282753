"""The real SGLang server on a CPU with `--hicache-storage-backend umbp`: what it restores is what it had.

The answer from storage is compared with the answer of the device hit: a cold prompt is computed in other shapes.
"""

import json
import random
import urllib.error

import arena_from_outside
import pytest
from sglang_server import (
    EXTRA_CONFIG,
    PAGE_TOKENS,
    UMBP_ARGUMENTS,
    Answer,
    engine_keywords,
    run_engine_program,
    running_server,
)

pytestmark = pytest.mark.timeout(600)
DYNAMIC = EXTRA_CONFIG | {
    "backend_name": "umbp",
    "module_path": "sglang_umbp.hicache.store",
    "class_name": "UmbpStore",
    "interface_v1": 1,
}


def new_prompt(tokens: int, seed: int) -> list[int]:
    return random.Random(seed).choices(range(3, 500), k=tokens)


def cacheable(tokens: int) -> int:
    """Tokens of a prompt that a cache can serve: whole pages, and at least one token is left to compute."""
    return (tokens - 1) // PAGE_TOKENS * PAGE_TOKENS


def device_hit(server, prompt) -> Answer:
    """The answer with the prompt in the device cache, which the first of the two calls put there."""
    server.generate(prompt)
    answer = server.generate(prompt)
    assert (answer.from_device, answer.from_storage) == (cacheable(len(prompt)), 0)
    return answer


def storage_hit(server, prompt) -> Answer:
    answer = server.generate_when_backed_up(prompt, cacheable(len(prompt)))
    assert (answer.from_device, answer.from_storage) == (0, cacheable(len(prompt)))
    return answer


@pytest.fixture
def altered_puts(umbp_server):
    """What the server stores during the test has other bytes."""
    switch = umbp_server.log_path.with_name("switch")
    switch.touch()
    yield
    switch.unlink()
    umbp_server.clear_storage()


@pytest.mark.parametrize("tokens", [PAGE_TOKENS + 1, 96, 1000])
def test_prompt_from_storage_has_ids_and_logprobs_of_the_device_hit(umbp_server, tokens):
    prompt = new_prompt(tokens, seed=tokens)
    assert device_hit(umbp_server, prompt).says() == storage_hit(umbp_server, prompt).says()


def test_every_prompt_comes_from_storage_with_its_own_answer(umbp_server):
    prompts = [new_prompt(200, seed) for seed in range(20, 24)]
    expected = [device_hit(umbp_server, prompt) for prompt in prompts]
    assert len({answer.says() for answer in expected}) == len(prompts)
    assert [storage_hit(umbp_server, prompt).says() for prompt in prompts] == [answer.says() for answer in expected]


def test_bytes_altered_when_they_are_stored_change_the_answer(umbp_server, altered_puts):
    prompt = new_prompt(96, seed=31)
    assert device_hit(umbp_server, prompt).says() != storage_hit(umbp_server, prompt).says()


def test_bytes_altered_in_the_arena_from_outside_change_the_answer(umbp_server):
    prompt = new_prompt(96, seed=32)
    right = device_hit(umbp_server, prompt)
    assert storage_hit(umbp_server, prompt).says() == right.says()
    (pid,) = umbp_server.scheduler_pids()
    arena = arena_from_outside.arena_of(pid)
    assert arena_from_outside.flip_signs(pid, arena) > 0
    assert storage_hit(umbp_server, prompt).says() != right.says()
    assert arena_from_outside.flip_signs(pid, arena) > 0
    assert storage_hit(umbp_server, prompt).says() == right.says()


def test_cleared_storage_has_nothing(umbp_server):
    prompt = new_prompt(96, seed=33)
    expected = device_hit(umbp_server, prompt)
    storage_hit(umbp_server, prompt)
    umbp_server.flush()
    umbp_server.clear_storage()
    answer = umbp_server.generate(prompt)
    assert (answer.cached_tokens, answer.ids) == (0, expected.ids)


@pytest.mark.parametrize(("backend", "extra_config"), [("dynamic", DYNAMIC), ("umbp", EXTRA_CONFIG)])
def test_attachment_at_run_time_serves_from_storage(umbp_server, backend, extra_config):
    prompt = new_prompt(96, seed=34)
    umbp_server.detach()
    try:
        expected = device_hit(umbp_server, prompt)
        umbp_server.flush()
        assert umbp_server.generate(prompt).from_storage == 0
        umbp_server.flush()
        umbp_server.attach(backend, extra_config)
        assert umbp_server.attached_backend() == backend
        assert device_hit(umbp_server, prompt).says() == expected.says()
        assert storage_hit(umbp_server, prompt).says() == expected.says()
    finally:
        if umbp_server.attached_backend() != "umbp":
            umbp_server.detach()
            umbp_server.attach("umbp", EXTRA_CONFIG)


def test_unknown_setting_is_refused_at_run_time_with_the_known_ones(umbp_server):
    umbp_server.detach()
    try:
        with pytest.raises(urllib.error.HTTPError) as refusal:
            umbp_server.attach("umbp", EXTRA_CONFIG | {"dram_capacity": 1})
        message = refusal.value.read().decode()
        assert "dram_capacity" in message
        assert "dram_capacity_bytes" in message
    finally:
        umbp_server.attach("umbp", EXTRA_CONFIG)


def test_one_line_says_what_was_opened_and_one_what_was_done(umbp_server):
    def lines(word: str) -> list[str]:
        return [line for line in umbp_server.log().splitlines() if f"umbp store {word}: " in line]

    storage_hit(umbp_server, new_prompt(96, seed=35))
    before = lines("opened"), lines("closed")
    umbp_server.detach()
    (closed,) = lines("closed")[len(before[1]) :]
    assert "failures: none" in closed
    umbp_server.attach("umbp", EXTRA_CONFIG)
    (opened,) = lines("opened")[len(before[0]) :]
    assert "capacity 64.0 MiB" in opened
    assert "page_first_direct" in opened
    assert "identity" in opened


def test_engine_in_a_program_restores_from_storage(tmp_path, tiny_model):
    keywords = engine_keywords(tiny_model, UMBP_ARGUMENTS)
    prompt = new_prompt(96, seed=51)
    _, device, storage = run_engine_program(tmp_path, keywords, prompt)
    assert (device["device"], storage["storage"]) == (cacheable(len(prompt)), cacheable(len(prompt)))
    assert device["says"] == storage["says"]


@pytest.fixture(scope="module")
def two_rank_server(tmp_path_factory, tiny_model):
    """Two ranks, each with half of the heads and a pool of its own, started by `sglang serve`."""
    embedded = json.dumps(EXTRA_CONFIG | {"mode": "embedded"})
    with running_server(
        tmp_path_factory.mktemp("two_ranks"),
        tiny_model,
        arguments=UMBP_ARGUMENTS | {"--tp-size": "2", "--hicache-storage-backend-extra-config": embedded},
        environment={"SGLANG_CPU_OMP_THREADS_BIND": "0|1"},
        launcher=("-c", "import sys; from sglang.cli.main import main; sys.exit(main())", "serve"),
    ) as server:
        yield server


def test_two_ranks_restore_their_halves(two_rank_server):
    assert len(two_rank_server.scheduler_pids()) == 2
    prompt = new_prompt(200, seed=41)
    right = device_hit(two_rank_server, prompt)
    assert storage_hit(two_rank_server, prompt).says() == right.says()


def test_bytes_altered_in_one_rank_change_the_answer_of_both(two_rank_server):
    prompt = new_prompt(200, seed=42)
    right = device_hit(two_rank_server, prompt)
    storage_hit(two_rank_server, prompt)
    for pid in two_rank_server.scheduler_pids():
        arena = arena_from_outside.arena_of(pid)
        assert arena_from_outside.flip_signs(pid, arena) > 0
        assert storage_hit(two_rank_server, prompt).says() != right.says()
        assert arena_from_outside.flip_signs(pid, arena) > 0
    assert storage_hit(two_rank_server, prompt).says() == right.says()
