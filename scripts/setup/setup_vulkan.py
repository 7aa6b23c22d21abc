"""Which Vulkan devices the machine has, and two software ones where it has none."""

from __future__ import annotations

import json
import shutil
import subprocess
import tarfile
import tempfile
from pathlib import Path

from setup_base import LEFT_OUT, Outcome, Setup, SetupError, hash_of, list_folder
from setup_system import apt_command, install_packages, known_to_apt, update_lists

ICD_FOLDERS = ("/usr/share/vulkan/icd.d", "/usr/local/share/vulkan/icd.d", "/etc/vulkan/icd.d")
LAYER_FOLDERS = tuple(f.replace("icd.d", "explicit_layer.d") for f in ICD_FOLDERS)
SWIFTSHADER_PACKAGE = "chromium-common"
SWIFTSHADER_FILES = ("libvk_swiftshader.so", "vk_swiftshader_icd.json")
SOFTWARE = "VKSCHED_SETUP_SOFTWARE"
# What the drivers open: of AMD, Intel and most others, of NVIDIA, of Windows below WSL.
DEVICE_NODES = ("dri", "nvidia", "dxg", "kfd", "mali", "kgsl")
DRIVER_VARIABLES = ("VK_DRIVER_FILES", "VK_ICD_FILENAMES", "VK_ADD_DRIVER_FILES")
DESCRIBE_DEVICES = (
    "import json; from vksched.runtime.vulkan import device_probe;"
    "print(json.dumps([(d.label, d.type) for d in device_probe.list_devices() if d.name != 'cpu']))"
)


def key_of_topology() -> str:
    """A digest of what decides which Vulkan devices the loader can find."""
    names = [f"{folder}/{name}" for folder in ICD_FOLDERS for name in list_folder(folder)]
    nodes = list_folder("/dev/dri") + [n for n in list_folder("/dev") if n.startswith("nvidia")]
    return hash_of(names, nodes)


def key_of_drivers(setup: Setup) -> str:
    """The same with the drivers of vksched's own."""
    return hash_of(key_of_topology(), list_folder(str(setup.driver_folder)))


def find_devices(setup: Setup) -> list[tuple[str, str]] | None:
    """(name, type) of each Vulkan device, or None when asking failed; never dies with a driver."""
    hidden = (*DRIVER_VARIABLES, "VKSCHED_NO_VULKAN")  # what is there at all?
    try:
        answer = subprocess.run(
            [str(setup.venv_python), "-c", DESCRIBE_DEVICES],
            cwd=str(setup.root),
            env={k: v for k, v in setup.environ.items() if k not in hidden},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=setup.log or subprocess.DEVNULL,
            timeout=300,
        )
        return [(name, kind) for name, kind in json.loads(answer.stdout.decode().splitlines()[-1])]
    except (OSError, ValueError, IndexError, subprocess.SubprocessError) as error:
        setup.note(f"asking for Vulkan devices failed: {error!r}")
        return None


def answer_file(setup: Setup) -> Path:
    """Holds "hardware" or "software": what this machine has. Not there: it could not be asked."""
    return setup.venv / "share" / "vksched" / "devices"


def may_have_hardware() -> bool:
    """False where the kernel shows no graphics device: then no driver can find one."""
    return any(name.startswith(DEVICE_NODES) for name in list_folder("/dev"))


def wants_software(setup: Setup) -> bool:
    return setup.environ.get(SOFTWARE, "") not in ("", "0")


def get_software_drivers(setup: Setup) -> Outcome:
    """Get llvmpipe and SwiftShader, each if it can be had."""
    got = (get_llvmpipe(setup), get_swiftshader(setup))
    remark = "; ".join(outcome.remark for outcome in got if outcome.remark)
    return Outcome(remark, all(outcome.whole for outcome in got))


def get_drivers_early(setup: Setup) -> Outcome:
    """Get the software drivers while the rest is built, where there can be no other devices."""
    if not setup.native:
        return LEFT_OUT
    if may_have_hardware() and not wants_software(setup):
        return Outcome("not before the drivers that are there were asked for hardware")
    return get_software_drivers(setup)


def get_devices(setup: Setup) -> Outcome:
    """Look for hardware Vulkan devices; get llvmpipe and SwiftShader where there are none."""
    if not setup.native:
        return LEFT_OUT
    got = Outcome()
    devices = find_devices(setup)
    hardware = [name for name, kind in devices or [] if kind != "cpu"]
    if not hardware or wants_software(setup):
        before = key_of_drivers(setup)
        got = get_software_drivers(setup)
        if key_of_drivers(setup) != before:
            devices = find_devices(setup)
    # `make demo` asks for software devices where this says so: nothing else uses them unasked.
    marker = answer_file(setup)
    marker.parent.mkdir(parents=True, exist_ok=True)
    marker.unlink(missing_ok=True)
    if devices is None:
        found = "could not ask the drivers, see the log; all runs on numpy"
    else:
        marker.write_text("hardware\n" if hardware else "software\n")
        found = ", ".join(name for name, _ in devices) or "none: all runs on numpy"
    remark = "; ".join(part for part in (found, got.remark) if part)
    return Outcome(remark, devices is not None and got.whole)


def get_llvmpipe(setup: Setup) -> Outcome:
    """Install Mesa's software driver; the remark says so when that is not possible."""
    if any(name.startswith("lvp_icd") for folder in ICD_FOLDERS for name in list_folder(folder)):
        return Outcome()
    if not shutil.which("apt-get"):
        return Outcome("no llvmpipe (Fedora: mesa-vulkan-drivers, Arch: vulkan-swrast)")
    try:
        install_packages(setup, ["mesa-vulkan-drivers"])
    except SetupError as error:
        setup.note(error.what)
        command = apt_command(["mesa-vulkan-drivers"])
        return Outcome(f"no llvmpipe, to get it: {command}", whole=False)
    return Outcome()


def get_swiftshader(setup: Setup) -> Outcome:
    """Unpack SwiftShader from Debian's chromium-common; the remark says so when it has none."""
    if all((setup.driver_folder / name).exists() for name in SWIFTSHADER_FILES):
        return Outcome()
    if not shutil.which("apt-get") or not shutil.which("dpkg-deb"):
        return Outcome("no SwiftShader (it comes from a Debian package)")
    lists_whole = update_lists(setup)
    if lists_whole and not known_to_apt(SWIFTSHADER_PACKAGE):
        return Outcome(
            "no SwiftShader (this distribution has it in no package); llvmpipe serves alone"
        )
    with tempfile.TemporaryDirectory() as folder:
        try:
            setup.call(["apt-get", "download", SWIFTSHADER_PACKAGE], "", cwd=Path(folder))
            (package,) = Path(folder).glob("*.deb")
            unpack_swiftshader(package, setup.driver_folder)
        except (SetupError, OSError, ValueError, tarfile.TarError) as error:
            setup.note(f"SwiftShader: {error}")
            return Outcome("no SwiftShader (not downloaded, see the log)", whole=False)
    return Outcome()


def unpack_swiftshader(package: Path, folder: Path) -> None:
    """Take the driver and its manifest, nothing else, out of a .deb; ValueError if not inside."""
    folder.mkdir(parents=True, exist_ok=True)
    found = set()
    command = ["dpkg-deb", "--fsys-tarfile", str(package)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        with tarfile.open(fileobj=process.stdout, mode="r|") as archive:
            for member in archive:
                name = member.name.rsplit("/", 1)[-1]
                if name in SWIFTSHADER_FILES and member.isfile():
                    source = archive.extractfile(member)
                    assert source is not None
                    (folder / name).write_bytes(source.read())
                    found.add(name)
    if len(found) < len(SWIFTSHADER_FILES):
        raise ValueError(f"{package.name} holds only {sorted(found)}")


def validation_layer() -> Path | None:
    """The manifest of the Khronos validation layer, when it is installed."""
    paths = (Path(folder) / "VkLayer_khronos_validation.json" for folder in LAYER_FOLDERS)
    return next((path for path in paths if path.exists()), None)


def get_validation(setup: Setup) -> Outcome:
    if validation_layer():
        return Outcome("all there")
    install_packages(setup, ["vulkan-validationlayers"])
    return Outcome("installed vulkan-validationlayers")
