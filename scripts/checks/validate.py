"""Run the tests under Khronos validation with synchronization validation: `make validate`.

First a hazard is planted on every Vulkan device, so that silence afterwards means something. Then
every test but those of the set-up runs, and not one message may come.

The layer opens its log anew for each Vulkan instance, which would empty a file; it writes into a
named pipe instead, read here, out of reach of pytest's capture.
"""

from __future__ import annotations

import json
import os
import re
import select
import subprocess
import sys
import threading
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "setup"))
from setup_vulkan import validation_layer

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "build" / "validation"
HAZARD = "SYNC-HAZARD-READ-AFTER-WRITE"
SHADER_ACCESSES = "syncval_shader_accesses_heuristic"
"""Without it newer layers do not look at what shaders read and write in storage buffers."""
TEST_LIMIT_S = 1200
PARALLEL = ("-n", "2", "--dist", "worksteal")
DRAWS = 10
"""Calls drawn of each op: the layer makes every one slow."""
# Two dispatches of the copy kernel, the second reads what the first writes, no barrier between.
PLANT = """
import struct, sys
from vksched.runtime.vulkan import context
from vksched.runtime.vulkan.shaders import load_shader
index = int(sys.argv[1])
context = context.Context(index, f"vulkan:{index}")
shader = load_shader("copy")
first, second, third = (context.storage(64) for _ in range(3))
push, constants = shader.pack_push((0, 0), {"count": 64}), shader.specialize({})
size = len(push)
a = context.pipeline(shader.spirv, [first, second], constants, size)
b = context.pipeline(shader.spirv, [second, third], constants, size)
recording = context.recording()
recording.begin()
recording.dispatch(a, (1, 1, 1), push)
recording.dispatch(b, (1, 1, 1), push)
recording.end()
recording.submit()
recording.wait(60.0)
context.close()
"""
BARE = "bench/test_benchmarks.py::test_overhead_compares_each_device_with_bare_commands"
COUNT = "from vksched.runtime.vulkan import binding; print(len(binding.describe_devices()))"


class Messages:
    """Collects what the layer writes into the named pipe, as text."""

    def __init__(self, pipe: Path):
        pipe.unlink(missing_ok=True)
        os.mkfifo(pipe)
        # Opened for writing too: the pipe then never ends when one process closes it.
        self._descriptor = os.open(pipe, os.O_RDWR | os.O_NONBLOCK)
        self._wake_in, self._wake_out = os.pipe()
        self._data = bytearray()
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def _read(self) -> None:
        while True:
            ready, _, _ = select.select([self._descriptor, self._wake_in], [], [])
            if self._descriptor in ready:
                self._data += os.read(self._descriptor, 1 << 16)
            elif ready:
                return

    def close(self) -> str:
        """Return everything written so far and stop."""
        os.write(self._wake_out, b"x")
        self._thread.join()
        for descriptor in (self._descriptor, self._wake_in, self._wake_out):
            os.close(descriptor)
        return self._data.decode(errors="replace")


def layer_environment(manifest: Path, pipe: Path) -> dict[str, str]:
    """Write the layer's settings file and return the variables that switch the layer on."""
    text = manifest.read_text()
    version = json.loads(text)["layer"]["api_version"]
    settings = [
        "debug_action = VK_DBG_LAYER_ACTION_LOG_MSG",
        "report_flags = error,warn",
        f"log_filename = {pipe}",
        "enable_message_limit = false",
    ]
    if tuple(int(part) for part in version.split(".")) < (1, 3, 275):
        settings += ["enables = VK_VALIDATION_FEATURE_ENABLE_SYNCHRONIZATION_VALIDATION_EXT"]
    else:  # the name above warns of its own age in newer layers
        settings += ["validate_sync = true"]
    if json.dumps(SHADER_ACCESSES) in text:  # the manifest lists the settings that a layer knows
        settings += [f"{SHADER_ACCESSES} = true"]
    lines = "".join(f"khronos_validation.{line}\n" for line in settings)
    (FOLDER / "vk_layer_settings.txt").write_text(lines)
    return {
        **os.environ,
        "VK_INSTANCE_LAYERS": "VK_LAYER_KHRONOS_validation",
        "VK_LAYER_SETTINGS_PATH": str(FOLDER / "vk_layer_settings.txt"),
        "VKSCHED_DRAWS": str(DRAWS),
        "VKSCHED_TESTS": os.environ.get("VKSCHED_TESTS") or "all",
        "VKSCHED_DISABLE_ALIASING": "1",  # the layer sees whole buffers: one value in each
    }


def summarize(text: str) -> dict[str, int]:
    """Count the messages by their identifier; text without one counts as "other"."""
    names = re.findall(r"\[ ([A-Za-z0-9_-]+) \]", text)
    if text.strip() and not names:
        names = ["other"]
    return {name: names.count(name) for name in sorted(set(names))}


def run_under_layer(command: list[str], pipe: Path, environ: dict[str, str]) -> tuple[int, str]:
    """Run a command with the layer on; return its exit code and the layer's messages."""
    messages = Messages(pipe)
    try:
        code = subprocess.run(command, cwd=ROOT, env=environ).returncode
    finally:
        text = messages.close()
        pipe.unlink()
    return code, text


def plant(pipe: Path, environ: dict[str, str]) -> bool:
    """Plant a hazard on every device; False, with the reason printed, when one goes unseen."""
    answer = subprocess.run([sys.executable, "-c", COUNT], cwd=ROOT, stdout=subprocess.PIPE)
    count = int(answer.stdout or b"0")
    if not count:
        print("[validate] expected a Vulkan device, got none; try `make setup`", file=sys.stderr)
        return False
    for index in range(count):
        command = [sys.executable, "-c", PLANT, str(index)]
        code, text = run_under_layer(command, pipe, environ)
        if code or HAZARD not in text:
            print(
                f"[validate] expected {HAZARD} for the hazard planted on vulkan:{index}, got "
                f"{summarize(text) or 'no message'} (exit code {code}); the layer is not active "
                "or does not see it, so its silence would mean nothing",
                file=sys.stderr,
            )
            return False
    print(f"planted hazard seen on {count} device(s); running the tests under the layer")
    return True


def main(pytest_args: list[str]) -> int:
    manifest = validation_layer()
    if manifest is None:
        print("[validate] expected the validation layer; try `make validate`", file=sys.stderr)
        return 1
    FOLDER.mkdir(parents=True, exist_ok=True)
    pipe = FOLDER / "messages.pipe"
    environ = layer_environment(manifest, pipe)
    if not plant(pipe, environ):
        return 1
    pytest = [sys.executable, "-m", "pytest", f"--timeout={TEST_LIMIT_S}", *PARALLEL]
    # child runs, which have no Vulkan or take no layers, and files that are only read
    left_out = ("test_elsewhere", "test_setup", "test_setup_steps", "test_shader_stats")
    left_out += ("test_gemv_mixed_stats",)
    left_out += ("test_validate", "test_onnx_fuzz", "test_onnx_loader")
    # many plans and schedules, for which nothing is opened
    left_out += ("test_promises", "test_planning_steps", "test_dynamic", "test_plan_levels")
    left_out += ("test_scale", "test_optimum", "test_schedules", "test_models_by_cost")
    pytest += [f"--ignore-glob=tests/*/{name}.py" for name in left_out]
    # Kompute alone, which has no barrier between dispatches to give: hazards by design
    pytest += [f"--deselect=tests/{BARE}"]
    code, text = run_under_layer([*pytest, *pytest_args], pipe, environ)
    (FOLDER / "messages.log").write_text(text)
    if text:
        print(text[:8000])
        print(f"validation messages: {summarize(text)}; all of them: build/validation/messages.log")
        return 1
    print("no validation message")
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
