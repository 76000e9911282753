"""The pool against its twin, with the memory that calls name on two emulated devices and the host."""

from __future__ import annotations

import random
from contextlib import ExitStack
from typing import Any

import pytest
from device_rig import DeviceArray, DeviceMemory, device_rig
from hypothesis import strategies as st
from hypothesis.stateful import initialize, invariant
from patterns import Memory
from test_pool_stateful import KIB, ExactMachine, run_machine, seeds

from sglang_umbp import Pool

HOST = -1
PLACES = (HOST, 0, 1)
"""Where the memory of a call lies: the host's, or that of the device with this number."""


class DeviceMachine(ExactMachine):
    """Each call names memory in one place, the next call mostly in another one. Every byte there is compared."""

    runtime = "cuda"

    @initialize(pinned=st.booleans(), registered=st.booleans(), seed=seeds)
    def open(self, pinned: bool, registered: bool, seed: int) -> None:
        """pinned: devices reach the arena themselves. registered: else the pool has to find out what memory is."""
        self.ending = ExitStack()
        self.rig = self.ending.enter_context(device_rig(self.runtime))
        self.registered = registered
        self.generator = random.Random(seed)
        self.sets: dict[int, dict[str, Any]] = {}
        super().open()
        self.pinned = pinned and self.pool.native.pin_arena(0, False) > 0
        assert self.pinned == pinned

    def make_pool(self, **settings: Any) -> Pool:
        devices = {"device": self.runtime, "pin_arena": False, "staging_bytes": 64 * KIB}
        pool = super().make_pool(strict_registration=self.registered, **devices, **settings)
        self.ending.callback(pool.close)
        return pool

    def make_memories(self) -> None:
        for self.place in PLACES:
            super().make_memories()
            names = ("source", "destination", "pages", "layouts")
            self.sets[self.place] = {name: getattr(self, name) for name in names}

    def new_memory(self, nbytes: int) -> Memory:
        memory = Memory(nbytes) if self.place == HOST else self.memory_of_device(nbytes)
        if self.registered:
            self.pool.register_memory(memory.address, nbytes)
        return memory

    def memory_of_device(self, nbytes: int) -> DeviceMemory:
        return DeviceMemory(DeviceArray(self.rig.fake, self.rig.api, self.place, nbytes))

    def drop_memory(self, memory: Memory) -> None:
        if self.registered:
            self.pool.unregister_memory(memory.address)
        if isinstance(memory, DeviceMemory):
            memory.on_device.free()

    @invariant()
    def the_next_call_is_elsewhere(self) -> None:
        self.place = self.generator.choice(PLACES)
        vars(self).update(self.sets[self.place])

    @invariant()
    def bytes_go_the_way_that_is_there(self) -> None:
        devices = self.pool.stats().devices
        assert devices.staged_bytes == (0 if self.pinned else devices.bytes)
        assert self.rig.fake.count("refused") == 0, self.rig.fake.last_refusal()

    def teardown(self) -> None:
        if not hasattr(self, "ending"):
            return
        with self.ending:
            try:
                super().teardown()
            finally:
                self.free_memories()

    def free_memories(self) -> None:
        for names in self.sets.values():
            for memory in names.values():
                if isinstance(memory, DeviceMemory):
                    memory.on_device.free()


class HipMachine(DeviceMachine):
    runtime = "hip"


@pytest.mark.soak
@pytest.mark.timeout(900)  # a failure is made small for up to five minutes
@pytest.mark.parametrize("machine", [DeviceMachine, HipMachine], ids=["cuda", "hip"])
def test_a_pool_with_the_memory_of_devices_answers_as_its_twin(machine: type[DeviceMachine], soak_scale: int) -> None:
    run_machine(machine, examples=200 * soak_scale, steps=50)
