"""The copier of device memory and its kernels' source, without a device: programs, and mistakes they must find."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
from native_programs import (
    COMMON_FLAGS,
    CORE,
    FLAGS,
    PROGRAMS,
    ROOT,
    SANITIZER_OPTIONS,
    counts_in,
    program,
    program_with,
    run_program,
)

PLANS = 30
"""Random plans of a run; ten times as many under --soak."""
KERNELS = ROOT / "sglang_umbp" / "device" / "kernels.cu"

COPIER_PLANTS = {
    "nobody waits for a copy": ("device_copier.cpp", "    lane->wait();\n", ""),
    "a ticket goes without a wait": ("device_copier.cpp", "end_quietly([this] { wait(); });", ""),
    "a copy before the caller's work": ("device_copier.cpp", "lane->order_after(after);", "(void)after;"),
    "a failed copy is left under way": (
        "device_copier.cpp",
        "    lane->drain();\n    lane.reset();\n",
        "    lane.reset();\n",
    ),
    "one plan for all launches": (
        "device_lane.cpp",
        "used_ = std::min(kBlockBytes, (used_ + nbytes + kPlanUnit - 1) / kPlanUnit * kPlanUnit);",
        "static_cast<void>(nbytes);",
    ),
    "one block for all plans": ("device_lane.cpp", "    ++block_;\n", ""),
    "a unit that not all addresses have": ("device_even.cpp", "differing_ |= address ^ first_;", "differing_ = 0;"),
    "an even plan of two sizes": ("device_even.cpp", "    odd |= run.nbytes ^ even.nbytes;\n", ""),
    "an even plan that reaches too far": ("device_even.cpp", "    odd |= distance ^ ", "    odd |= 0 & "),
    "pieces that were not all even": (
        "device_submission.cpp",
        "!fill_even(runs, even, static_cast<EvenCopyPiece*>(room.memory))",
        "(fill_even(runs, even, static_cast<EvenCopyPiece*>(room.memory)), false)",
    ),
    "an argument of more sizes than it holds": (
        "device_small_plan.cpp",
        "|| plan.segments == kSmallSegments",
        "|| plan.segments == kSmallSegments + 1",
    ),
    "stretches that begin at the same part": (
        "device_small_plan.cpp",
        "first_piece, plan.parts, cut",
        "first_piece, 0, cut",
    ),
    "a stretch of two sizes": ("device_small_plan.cpp", "run.nbytes != runs.front().nbytes", "run.nbytes == 0"),
    "blocks that copies to the device need": (
        "device_copier.cpp",
        "inward.lately()) keep_way_free",
        "false) keep_way_free",
    ),
    "blocks that are kept for nobody": (
        "device_copier.cpp",
        "(Clock::now() + expected + kLately)",
        "(Clock::now() + expected + kLately * 9)",
    ),
    "a batch beyond the runtime's limit": (
        "device_submission.cpp",
        "std::min(api_.max_batch(), kMostDescriptors)",
        "kMostDescriptors",
    ),
    "a bulk kernel with the plain one's parts": (
        "device_submission.cpp",
        "bulk ? kBulkPartBytes : kPlainPartBytes",
        "kPlainPartBytes * 2",
    ),
    "windows by the first runs' alignment": (
        "device_submission.cpp",
        "const bool bulk = choice.way == CopyWay::kBulkKernel;",
        "const bool bulk = way == CopyWay::kBulkKernel;",
    ),
    "a window cut as the first runs": (
        "device_submission.cpp",
        "const PlanShape shape = shape_of(runs);",
        "const PlanShape shape = shape_of(runs_.first(1));",
    ),
    "a stream that is not waited for": (
        "device_lane.cpp",
        "    api_.wait_event(device_, active_, before_.get());\n",
        "",
    ),
    "an event that is not waited for": (
        "device_lane.cpp",
        "    api_.wait_event(device_, active_, order.event);\n",
        "",
    ),
    "an end that is not waited for": ("device_lane.cpp", "  api_.synchronize_event(device_, end_.get());\n", ""),
    "a long copy whose end is not marked": (
        "device_lane.cpp",
        "  if (end_is_marked_) api_.record_event(device_, end_.get(), active_);\n",
        "",
    ),
    "bulk copies of what is not aligned": ("device_chooser.cpp", "&& shape.aligned)", "&& (shape.aligned || true))"),
    "pieces longer than their parts": ("device_chooser.cpp", "parts * part_bytes};", "(parts + 1) * part_bytes};"),
    "parts that are too large": (
        "device_chooser.cpp",
        "(longest + largest_part - 1) / largest_part",
        "longest / largest_part + 1",
    ),
}
"""What is altered, and into what."""

KERNEL_PLANTS = {
    "a last word": ("(part.nbytes - head) / sizeof(Word)", "(part.nbytes - head - 1) / sizeof(Word)"),
    "words that are not aligned": ("(apart & 7) == 0", "(apart & 3) == 0"),
    "a head that is longer than the part": ("below < part.nbytes ? below : part.nbytes", "below"),
    "a part beyond its piece": ("rest < part_bytes ?", "rest < part_bytes / 2 ?"),
    "a part that is left out": ("first += stride;", "first += stride + 1;"),
    "the next share's bytes": ("const Share<Plan> share = next;", "const Share<Plan>& share = next;"),
    "a share beyond the plan": ("total - first < plan.share() ? total - first : plan.share()", "plan.share()"),
    "the wrong unit of a side": ("<< even.dst_shift)", "<< even.src_shift)"),
    "the first part of a stretch": ("plan->segment[s + 1].first_part <= w", "plan->segment[s + 1].first_part < w"),
    "places below the middle": ("static_cast<long long>(at.src)", "static_cast<u32>(at.src)"),
}


@pytest.mark.soak
@pytest.mark.parametrize("variant", ["address", "thread"])
def test_bytes_order_failures_lanes_and_choices_of_the_copier(variant, soak_scale, soak_report):
    found = counts_in(run_program(program("device_copier_checks", variant), PLANS * soak_scale, 1))
    soak_report(f"device copier under the {variant} sanitizer", **found)
    assert found["failures"] > 0


@pytest.mark.parametrize("plant", COPIER_PLANTS)
def test_a_mistake_in_the_copier_is_caught(plant: str, tmp_path: Path):
    file, sound, altered = COPIER_PLANTS[plant]
    source = (CORE / file).read_text()
    assert sound in source, f"{file} has changed: plant the mistake anew"
    binary = program_with("device_copier_checks", {file: source.replace(sound, altered)}, tmp_path)
    done = subprocess.run([binary, str(PLANS), "1"], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode != 0, f"not caught: {done.stdout}"


@pytest.mark.soak
def test_the_kernels_copy_every_alignment_and_random_plans(soak_scale, soak_report):
    found = counts_in(run_program(program("device_kernels_checks", "address"), PLANS * soak_scale, 1))
    soak_report("copy kernels, compiled for the host", **found)
    assert found["plans"] == PLANS * soak_scale


@pytest.mark.parametrize("plant", KERNEL_PLANTS)
def test_a_mistake_in_the_kernels_is_caught(plant: str, tmp_path: Path):
    sound, altered = KERNEL_PLANTS[plant]
    source = KERNELS.read_text()
    assert source.count(sound) == 1, "kernels.cu has changed: plant the mistake anew"
    (tmp_path / "kernels.cu").write_text(source.replace(sound, altered))
    binary = _kernel_checks_with(tmp_path)
    environ = {**os.environ, **SANITIZER_OPTIONS}
    done = subprocess.run([binary, str(PLANS), "1"], capture_output=True, timeout=120, check=False, env=environ)
    assert done.returncode != 0, "not caught"


def _kernel_checks_with(folder: Path) -> Path:
    """device_kernels_checks with the kernels.cu of a folder."""
    program("device_kernels_checks", "address")  # skips where there is no compiler
    included = '"../../sglang_umbp/device/kernels.cu"'
    text = (PROGRAMS / "device_kernels_checks.cpp").read_text()
    assert included in text
    source = folder / "device_kernels_checks.cpp"
    source.write_text(text.replace(included, '"kernels.cu"'))
    binary = folder / "device_kernels_checks"
    command = ["g++", *COMMON_FLAGS, *FLAGS["address"], f"-I{CORE}", str(source), "-o", str(binary)]
    subprocess.run(command, check=True, timeout=240, capture_output=True)
    return binary
