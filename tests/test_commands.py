"""The commands settings, doctor and clean, run for real in processes of their own."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import sglang_umbp
from sglang_umbp import PoolSettings
from sglang_umbp.doctor.report import problems

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture
def run(tmp_path):
    def command(*arguments: str, **environ: str) -> subprocess.CompletedProcess[str]:
        inherited = {name: value for name, value in os.environ.items() if not name.startswith(("UMBP_", "XDG_"))}
        return subprocess.run(
            [sys.executable, "-m", "sglang_umbp", *arguments],
            capture_output=True,
            text=True,
            check=False,
            env={**inherited, "PYTHONPATH": str(ROOT), "HOME": str(tmp_path), **environ},
        )

    return command


def test_settings_prints_every_setting_its_value_and_where_it_came_from(run):
    done = run("settings", "deadline_s=2", UMBP_DRAM_CAPACITY="64MiB", UMBP_DRAM_USE_HUGEPAGES="off")
    assert (done.returncode, done.stderr) == (0, "")
    rows = {line.split()[0]: " ".join(line.split()[1:]) for line in done.stdout.splitlines()[1:]}
    assert set(rows) == set(PoolSettings.__dataclass_fields__)
    assert rows["dram_capacity_bytes"] == "67108864 bytes environment UMBP_DRAM_CAPACITY"
    assert rows["hugepages"] == "false environment UMBP_DRAM_USE_HUGEPAGES"
    assert rows["deadline_s"] == "2.0 seconds argument deadline_s"
    assert rows["index_entries"] == "auto: 65536 objects default"


def test_settings_as_json_have_everything_that_is_known(run):
    report = json.loads(run("settings", "--json", UMBP_DRAM_CAPACITY="1GiB").stdout)
    assert set(report) == set(PoolSettings.__dataclass_fields__)
    capacity = report["dram_capacity_bytes"]
    assert (capacity["value"], capacity["effective"], capacity["unit"]) == (1 << 30, 1 << 30, "bytes")
    assert (capacity["source"], capacity["source_name"]) == ("environment", "UMBP_DRAM_CAPACITY")
    assert (capacity["default"], capacity["aliases"]) == ("auto", ["capacity_bytes"])
    assert report["index_entries"]["effective"] == 65_536


def test_settings_explain_has_meaning_and_range(run):
    explained = run("settings", "--explain", UMBP_DRAM_CAPACITY="1GiB").stdout
    for name in PoolSettings.__dataclass_fields__:
        assert PoolSettings.about(name).meaning in explained
        assert PoolSettings.about(name).kind.allowed in explained


@pytest.mark.parametrize(
    ("arguments", "environ", "told"),
    [
        ((), {"UMBP_DRAM_COPY_THREADS": "many"}, "UMBP_DRAM_COPY_THREADS='many'; allowed: 1 to 64"),
        (("copy_threads",), {}, "'copy_threads' is not an assignment"),
        (("threads=1",), {}, "unknown setting 'threads'"),
        (("numa_node=1023",), {}, "numa_node=1023; allowed: -1, or a node of this machine"),
        (("capacity_bytes=64TiB",), {}, "MemAvailable"),
    ],
    ids=str,
)
def test_settings_refuses_what_a_pool_would_refuse(run, arguments, environ, told):
    done = run("settings", *arguments, **environ)
    assert done.returncode == 2
    assert told in done.stderr


def test_doctor_reports_what_a_bug_report_needs(run):
    done = run("doctor", "--json", UMBP_DRAM_CAPACITY="64MiB")
    assert (done.returncode, done.stderr) == (0, "")
    report = json.loads(done.stdout)
    assert report["versions"]["sglang_umbp"] == sglang_umbp.__version__
    assert report["versions"]["numpy"]
    assert report["versions"]["native"]["nanobind"]
    assert report["versions"]["native"]["compiler"]
    assert "plain" in report["cpu"]["copy_isas"]
    assert report["memory"]["available_bytes"] > 0
    assert set(report["limits"]) == {"memlock_bytes", "open_files", "address_space_bytes"}
    assert isinstance(report["memory"]["numa_nodes"], list)
    for probe in report["probe"].values():
        assert probe["ok"]
        assert probe["bytes_equal"]
        assert probe["resident_bytes"] >= 64 << 20
    assert {"sglang", "torch"} <= set(report["packages"])
    assert {"cuda", "hip", "nvrtc"} <= set(report["libraries"])
    assert report["settings"]["dram_capacity_bytes"]["source"] == "environment"


def test_doctor_speaks_to_people_too(run):
    done = run("doctor", UMBP_DRAM_CAPACITY="64MiB")
    assert done.returncode == 0
    for section in ("versions:", "memory:", "limits:", "probe:", "libraries:", "problems:"):
        assert section in done.stdout
    assert "dram_capacity_bytes: 67108864 (environment UMBP_DRAM_CAPACITY)" in done.stdout


def test_doctor_ends_with_one_when_a_pool_would_not_open(run):
    done = run("doctor", "--json", UMBP_DRAM_CAPACITY="64TiB")
    assert done.returncode == 1
    assert "64.0 TiB" in json.loads(done.stdout)["problems"][0]


def test_doctor_imports_no_framework():
    probe = "import sys, sglang_umbp.doctor.command as c; c.examine(); print([m for m in sys.modules if m in {names}])"
    script = probe.replace("{names}", "('torch', 'sglang', 'hip', 'triton')")
    environ = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, env=environ)
    assert done.stdout.strip() == "[]"


def test_the_doctor_names_the_entry_a_problem_comes_from():
    report = {
        "settings": {},
        "limits": {"open_files": {"soft": 256, "hard": None}},
        "probe": {
            "anonymous": {"ok": True, "bytes_equal": True, "huge_bytes": 0},
            "memfd": {"ok": False, "reason": "memfd_create: not permitted"},
        },
    }
    assert [text.split(":")[0] for text in problems(report)] == ["probe.anonymous", "probe.memfd", "limits.open_files"]


def test_clean_finds_nothing_where_nothing_was_left(run, tmp_path):
    run("settings")
    done = run("clean")
    assert done.returncode == 0
    assert done.stdout == f"nothing to remove; looked for {tmp_path / '.cache' / 'sglang_umbp'}\n"


def test_clean_removes_the_cache_directory_and_nothing_beside_it(run, tmp_path):
    ours = tmp_path / "cache" / "sglang_umbp"
    (ours / "kernels").mkdir(parents=True)
    (ours / "kernels" / "a.bin").write_bytes(b"x")
    beside = tmp_path / "cache" / "other"
    beside.mkdir()
    environ = {"XDG_CACHE_HOME": str(tmp_path / "cache")}
    assert run("clean", "--dry-run", **environ).stdout == f"would remove {ours}\n"
    assert ours.exists()
    assert run("clean", **environ).stdout == f"removed {ours}\n"
    assert not ours.exists()
    assert beside.exists()
    assert "nothing to remove" in run("clean", **environ).stdout


def test_clean_removes_a_link_and_not_what_it_leads_to(run, tmp_path):
    target = tmp_path / "precious"
    target.mkdir()
    (tmp_path / ".cache").mkdir()
    (tmp_path / ".cache" / "sglang_umbp").symlink_to(target)
    assert run("clean").returncode == 0
    assert target.exists()
    assert not (tmp_path / ".cache" / "sglang_umbp").is_symlink()


def test_nothing_is_left_in_the_home_of_who_used_a_pool(tmp_path):
    script = (
        "from sglang_umbp import Pool\nwith Pool(capacity_bytes='1MiB', memory='memfd') as pool: pool.exists(['a'])"
    )
    environ = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), "PYTHONPATH": str(ROOT), "TMPDIR": str(tmp_path)}
    subprocess.run([sys.executable, "-B", "-c", script], check=True, env=environ, cwd=tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_version(run):
    assert run("--version").stdout == f"sglang-umbp {sglang_umbp.__version__}\n"
