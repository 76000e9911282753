"""Where a node server listens: one a path, mode 0600 whatever the umask; only its own stale socket is replaced."""

from __future__ import annotations

import os
import socket
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest
from node_rig import short_directory

from sglang_umbp import SettingsError
from sglang_umbp.node.address import (
    MAX_PATH_BYTES,
    chosen_address,
    default_address,
    parse_address,
    prepare_directory,
)
from sglang_umbp.node.listening import AddressInUseError, ListeningSocket, PathLock


@pytest.fixture
def path() -> Iterator[Path]:
    with short_directory() as directory:
        yield directory / "node.sock"


def connects(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        return probe.connect_ex(os.fspath(path)) == 0


def leave_stale(path: Path) -> None:
    """What a killed server leaves: a socket that nobody listens at, and a lock that nobody has."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as sock:
        sock.bind(os.fspath(path))
    path.with_name(path.name + ".lock").touch()


def opened(path: Path) -> ListeningSocket:
    listening = ListeningSocket(path)
    listening.reserve()
    listening.open()
    return listening


@pytest.mark.parametrize("umask", [0o000, 0o022, 0o777])
def test_socket_and_lock_are_the_owners_only_whatever_the_umask(path, umask):
    before = os.umask(umask)
    try:
        listening = opened(path)
    finally:
        os.umask(before)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.with_name("node.sock.lock").stat().st_mode) & 0o077 == 0
    assert connects(path)
    listening.close()
    assert os.listdir(path.parent) == []


def test_a_second_server_is_refused_and_the_first_goes_on(path):
    first = opened(path)
    with pytest.raises(AddressInUseError, match="one server an address"):
        ListeningSocket(path).reserve()
    assert connects(path)
    first.close()
    opened(path).close()


def test_a_stale_socket_is_replaced(path):
    leave_stale(path)
    assert not connects(path)
    listening = opened(path)
    assert connects(path)
    listening.close()


def test_a_listener_that_does_not_know_of_the_lock_is_not_pushed_aside(path):
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as other:
        other.bind(os.fspath(path))
        other.listen(1)
        listening = ListeningSocket(path)
        listening.reserve()
        with pytest.raises(AddressInUseError, match="without holding its lock"):
            listening.open()
        listening.close()
        assert connects(path)


def test_a_file_that_is_no_socket_stays(path):
    path.write_text("precious")
    listening = ListeningSocket(path)
    listening.reserve()
    with pytest.raises(SettingsError, match="no socket of this user"):
        listening.open()
    listening.close()
    assert path.read_text() == "precious"


def test_closing_leaves_a_socket_that_somebody_else_put_there(path):
    listening = opened(path)
    path.unlink()
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as other:
        other.bind(os.fspath(path))
        listening.close()
        assert path.exists()


def test_the_lock_is_not_taken_through_a_link(path):
    target = path.with_name("target")
    target.write_text("precious")
    path.with_name("node.sock.lock").symlink_to(target)
    with pytest.raises(OSError, match="symbolic links"):
        ListeningSocket(path).reserve()
    assert target.read_text() == "precious"


def test_a_lock_whose_file_was_removed_meanwhile_is_taken_anew(path, monkeypatch):
    """Between opening the file and locking it, its last holder removed it: two would hold two files of one name."""
    first, second = PathLock(path), PathLock(path)
    first.take()
    real_open, times = os.open, []

    def open_then_release(*arguments: object, **options: object) -> int:
        descriptor = real_open(*arguments, **options)  # type: ignore[arg-type]
        if not times:
            first.release()
        times.append(descriptor)
        return descriptor

    monkeypatch.setattr(os, "open", open_then_release)
    second.take()
    monkeypatch.undo()
    assert len(times) == 2
    with pytest.raises(AddressInUseError):
        PathLock(path).take()
    second.release()


def test_the_directory_is_made_private_and_one_that_others_may_write_is_refused(path):
    inner = path.parent / "inner" / "node.sock"
    prepare_directory(inner)
    assert stat.S_IMODE(inner.parent.stat().st_mode) == 0o700
    inner.parent.chmod(0o777)
    with pytest.raises(SettingsError, match="may be written by others"):
        prepare_directory(inner)
    inner.parent.chmod(0o1777)
    prepare_directory(inner)


@pytest.mark.skipif(os.getuid() != 0, reason="only root can give a directory away")
def test_a_directory_of_another_user_is_refused(path):
    os.chown(path.parent, 65534, 65534)
    with pytest.raises(SettingsError, match="belongs to uid 65534"):
        prepare_directory(path)


def test_addresses():
    assert parse_address("unix:/run/x.sock") == Path("/run/x.sock")
    assert parse_address("unix:x.sock") == Path.cwd() / "x.sock"
    for wrong in ("", "unix:", "tcp:1", "/run/x.sock", "localhost:50051", "unix:a\0b", f"unix:/{'x' * MAX_PATH_BYTES}"):
        with pytest.raises(SettingsError, match="allowed: unix:PATH"):
            parse_address(wrong)


def own_address(uid: int) -> str:
    return f"unix:{Path('/tmp') / f'sglang_umbp-{uid}' / 'node.sock'}"


OWN = own_address(os.getuid())


def test_a_user_without_an_address_has_one_in_the_runtime_directory_or_under_tmp(path, caplog):
    environ = {"XDG_RUNTIME_DIR": str(path.parent)}
    assert chosen_address(environ) == default_address(environ) == f"unix:{path.parent}/sglang_umbp/node.sock"
    for environ in ({"XDG_RUNTIME_DIR": "relative"}, {}):
        assert chosen_address(environ) == OWN
    assert default_address({}, uid=7) == own_address(7)
    assert not caplog.records


def test_a_runtime_directory_that_cannot_be_used_is_said_once_and_not_used(path, monkeypatch, caplog):
    def said(base: object) -> str:
        caplog.clear()
        assert chosen_address({"XDG_RUNTIME_DIR": str(base)}) == OWN
        assert len(caplog.records) == 1
        return caplog.text

    assert "No such file or directory" in said(path.parent / "missing")
    path.touch()
    assert "is not a directory" in said(path)
    long = path.parent / ("x" * MAX_PATH_BYTES)
    long.mkdir()
    assert "too long" in said(long)
    monkeypatch.setattr(os, "access", lambda *_: False)
    assert "cannot be written" in said(path.parent)
    monkeypatch.undo()
    assert default_address({"XDG_RUNTIME_DIR": str(path.parent)}, uid=7) == own_address(7)


def test_a_directory_that_cannot_be_made_is_refused_with_its_name(path):
    with pytest.raises(SettingsError, match=r"missing cannot be made or used \(No such file.*give another address"):
        prepare_directory(path.parent / "missing" / "missing" / "node.sock")


def test_a_link_to_a_directory_is_taken_only_from_those_who_may_own_the_directory(path, monkeypatch):
    real, link = path.parent / "real", path.parent / "link"
    real.mkdir(mode=0o700)
    link.symlink_to(real)
    prepare_directory(link / "node.sock")
    os.lchown(link, 65534, 65534) if os.getuid() == 0 else monkeypatch.setattr(os, "getuid", lambda: 7)
    with pytest.raises(SettingsError, match=r"the link .* belongs to uid"):
        prepare_directory(link / "node.sock")
    monkeypatch.undo()
    dangling = path.parent / "dangling"
    dangling.symlink_to(path.parent / "nowhere")
    with pytest.raises(SettingsError, match="dangling cannot be made or used"):
        prepare_directory(dangling / "node.sock")
