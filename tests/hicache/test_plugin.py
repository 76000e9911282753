"""The plugin of SGLang: what it adds, and that another SGLang is noticed with one line instead of a swallowed error."""

import logging
from importlib.metadata import entry_points

import pytest
from context import published
from sglang.srt.managers.cache_controller import HiCacheController
from sglang.srt.mem_cache.storage.backend_factory import StorageBackendFactory
from sglang.srt.plugins import hook_registry
from sglang.srt.server_args import prepare_server_args

from sglang_umbp.hicache import hooks, plugin


@pytest.fixture
def fresh_process(monkeypatch):
    """What register() changes, as in a process where it was not called; back at the end."""
    registry = hook_registry.HookRegistry
    monkeypatch.setattr(plugin, "_registered", False)
    monkeypatch.setattr(registry, "_hooks", type(registry._hooks)(list))
    known = {name: entry for name, entry in StorageBackendFactory._registry.items() if name != "umbp"}
    monkeypatch.setattr(StorageBackendFactory, "_registry", known)
    choices = plugin.storage_backend_choices()
    before = list(choices)
    choices[:] = [word for word in choices if word != "umbp"]
    yield
    choices[:] = before


@pytest.fixture
def logging_as_it_was():
    """SGLang's command line sets up the root logger, with a stream that ends with the test."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)


def added() -> list[str]:
    """What a registration leaves behind."""
    word = ["word"] if "umbp" in plugin.storage_backend_choices() else []
    backend = ["backend"] if "umbp" in StorageBackendFactory._registry else []
    return word + backend + [f"hook on {target}" for target in hook_registry.HookRegistry._hooks]


def refused(capsys) -> str:
    """The line of a registration that added nothing and raised nothing."""
    plugin.register()
    assert added() == []
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert error.endswith("\n")
    return error


def test_entry_point_names_the_plugin():
    (found,) = [point for point in entry_points(group="sglang.srt.plugins") if point.name == "umbp"]
    assert found.load() is plugin.register


def test_registration_adds_the_word_the_backend_and_three_hooks_once(fresh_process, capsys):
    plugin.register()
    plugin.register()
    targets = [relied.target for relied in (hooks.CREATE_BACKEND, hooks.ATTACH_BACKEND, hooks.TAKES_ENVELOPES)]
    assert added() == ["word", "backend", *(f"hook on {target}" for target in targets)]
    assert plugin.storage_backend_choices().count("umbp") == 1
    assert [len(hook_registry.HookRegistry._hooks[target]) for target in targets] == [1, 1, 1]
    assert capsys.readouterr().err == ""


def test_command_line_knows_the_word(fresh_process, logging_as_it_was, capsys):
    command = ["--model-path", "m", "--enable-hierarchical-cache", "--hicache-storage-backend", "umbp"]
    with pytest.raises(SystemExit):
        prepare_server_args(command)
    assert "invalid choice: 'umbp'" in capsys.readouterr().err
    plugin.register()
    assert prepare_server_args(command).hicache_storage_backend == "umbp"


def test_installed_sglang_is_as_tested():
    assert hooks.differences() == []


def test_missing_target_is_one_line_that_names_it_and_the_tested_versions(fresh_process, monkeypatch, capsys):
    monkeypatch.delattr(StorageBackendFactory, "_create_builtin_backend")
    line = refused(capsys)
    assert "StorageBackendFactory._create_builtin_backend is not there" in line
    assert all(version in line for version in plugin.TESTED_SGLANG)


def test_changed_parameters_are_one_line_that_shows_both(fresh_process, monkeypatch, capsys):
    def attach_storage_backend(self, config, storage_backend): ...

    monkeypatch.setattr(HiCacheController, "attach_storage_backend", attach_storage_backend)
    line = refused(capsys)
    assert "attach_storage_backend takes (self, config, storage_backend), not (self, storage_backend, " in line


def test_parameter_that_must_be_given_is_a_change_and_one_with_a_default_is_none(monkeypatch):
    def zero_copy(self, hash_values, host_indices, extra_info, more): ...

    def with_default(self, hash_values, host_indices, extra_info, more=None): ...

    monkeypatch.setattr(HiCacheController, "_page_set_zero_copy", zero_copy)
    assert any("_page_set_zero_copy" in difference for difference in hooks.differences())
    monkeypatch.setattr(HiCacheController, "_page_set_zero_copy", with_default)
    assert hooks.differences() == []


def test_attachment_that_no_longer_chooses_the_page_functions_is_a_change(fresh_process, monkeypatch, capsys):
    def attach_storage_backend(
        self, storage_backend, prefetch_threshold=1, model_name=None, storage_backend_extra_config=None
    ):
        self.page_get_func = None

    monkeypatch.setattr(HiCacheController, "attach_storage_backend", attach_storage_backend)
    assert "does not use page_set_func" in refused(capsys)


def test_missing_module_is_one_line(fresh_process, monkeypatch, capsys):
    elsewhere = hooks.Relied("sglang.srt.not_there", "Factory.create", ())
    monkeypatch.setattr(hooks, "RELIED", (*hooks.RELIED, elsewhere))
    assert "sglang.srt.not_there.Factory.create is not there" in refused(capsys)


def test_flag_without_choices_is_one_line(fresh_process, monkeypatch, capsys):
    choices = plugin.storage_backend_choices()
    with monkeypatch.context() as patch:
        patch.setattr(plugin, "storage_backend_choices", lambda: None)
        plugin.register()
    assert "choices of --hicache-storage-backend" in capsys.readouterr().err
    assert "umbp" not in choices


def test_unforeseen_error_is_one_line(fresh_process, monkeypatch, capsys):
    def fail():
        raise RuntimeError("two\nlines")

    monkeypatch.setattr(plugin, "storage_backend_choices", fail)
    plugin.register()
    assert capsys.readouterr().err.count("\n") == 1


class Controller:
    """As much of HiCacheController as the hook touches."""

    def __init__(self):
        self.page_get_func = self.page_set_func = "generic"
        self._page_get_zero_copy = self._page_set_zero_copy = "without a copy"


def attach(controller, backend):
    with published():
        return hooks.attach_backend(
            lambda self, *given, **named: (given, named), controller, backend, 16, model_name="m"
        )


def test_attachment_of_umbp_uses_the_calls_without_a_copy_and_others_are_as_before():
    controller = Controller()
    assert attach(controller, "file") == (("file", 16), {"model_name": "m"})
    assert (controller.page_get_func, controller.page_set_func) == ("generic", "generic")
    assert attach(controller, "umbp") == (("umbp", 16), {"model_name": "m"})
    assert (controller.page_get_func, controller.page_set_func) == ("without a copy", "without a copy")


def test_decode_context_parallelism_is_refused_with_its_size():
    from sglang.srt.runtime_context import get_parallel

    controller = Controller()
    with published(tp_size=2, dcp_size=2), get_parallel().override(attn_dcp_size=2):
        with pytest.raises(NotImplementedError, match=r"umbp does not support .*--dcp-size 2"):
            hooks.attach_backend(lambda *_: None, controller, "umbp")
        hooks.attach_backend(lambda *_: None, controller, "mooncake")
    assert controller.page_get_func == "generic"


def test_factory_builds_other_backends_as_before():
    def original(cls, *arguments):
        return cls, *arguments

    def build(name):
        return hooks.create_backend(original, StorageBackendFactory, name, lambda *given: given, "config", "pool")

    assert build("umbp") == ("config", "pool")
    assert build("file")[:2] == (StorageBackendFactory, "file")
