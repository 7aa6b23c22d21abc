"""Compiles shaders/*/*.comp to vksched/spirv/ with glslangValidator and writes the manifest.

Each folder of shaders/ holds one family: its sources, the includes that only it uses, and a
variants.toml, which names the SPIR-V modules. shaders/include/ holds what several families share;
an include is looked up beside the file that asks for it, then there.

    [reduce.reduce_i] T = "int"            one variant of reduce.comp, with T defined
    [unary.each] names = ["SQRT_FLOAT32"]  unary_sqrt_float32: one variant for each name, which is
                                           defined, and FUNCTION as the same in small letters
    words_64 = true, in [unary.each]       each once more with WORDS_64: unary_sqrt_float32_64
    eye.comp, not in variants.toml         one variant, by its own name

Only what changed is compiled, and a build that was interrupted goes on: the key is a hash of the
source, its includes, its defines and the tools. The manifest tells the runtime what a shader binds,
its push block and its constants; it is read from the source by a strict parser. Usage: python
build_shaders.py [--check] [--force]

`--stats [SHADER...]` builds, then shows what AMD's compiler makes of the variants: registers,
shared memory, occupancy, time; see scripts/shader_stats.py.
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
        sys.exit("build_shaders.py needs tomli on Python 3.10: pip install tomli")

ROOT = Path(__file__).resolve().parent
SOURCES = ROOT / "shaders"
OUTPUT = ROOT / "vksched" / "spirv"
TARGET = "vulkan1.1"

INCLUDE = re.compile(r'^\s*#include\s+"([^"]+)"', re.M)
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
    """Returns every variant of every shader, in order of name."""
    out = [v for family in sorted(SOURCES.iterdir()) for v in find_variants_of(family)]
    names = [v.name for v in out]
    if len(set(names)) != len(names):
        raise BuildError("two variants share a name")
    return sorted(out, key=lambda v: v.name)


def find_variants_of(family: Path) -> list[Variant]:
    """Returns the variants of the shaders in one folder."""
    table: dict[str, dict[str, dict[str, Any]]] = {}
    listing = family / "variants.toml"
    if listing.exists():
        table = tomllib.loads(listing.read_text())
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
                if defines.get("words_64"):
                    out += [
                        Variant(f"{stem}_{lower[n]}_64", path, {**d, "WORDS_64": "1"})
                        for n, d in made.items()
                    ]
            else:
                out.append(Variant(name, path, {k: str(v) for k, v in defines.items()}))
    return out


def read_source(path: Path, seen: tuple[Path, ...] = ()) -> str:
    """Returns the source with its includes written out."""
    if path in seen:
        raise BuildError(f"{path.name} includes itself")
    try:
        text = path.read_text()
    except OSError as error:
        raise BuildError(f"cannot read {path}: {error}") from None
    places = (path.parent, SOURCES / "include")

    def include(match: re.Match[str]) -> str:
        found = [place / match[1] for place in places if (place / match[1]).exists()]
        return read_source((found or [places[-1] / match[1]])[0], (*seen, path))

    return INCLUDE.sub(include, text)


def describe(source: str, name: str) -> dict[str, Any]:
    """Returns bindings, push fields and specialisation constants of a shader, from its text."""
    text = re.sub(r"//[^\n]*|/\*.*?\*/", "", source, flags=re.S)
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


def run(command: list[str]) -> str:
    """Runs a tool and returns what it printed; raises BuildError with that when it fails."""
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise BuildError(f"{' '.join(command)}\n{done.stdout}{done.stderr}".rstrip())
    return done.stdout


def compile_variant(variant: Variant, compiler: str, validator: str | None) -> None:
    """Compiles one variant, and validates the result when there is a validator."""
    target = OUTPUT / f"{variant.name}.spv"
    made = target.with_suffix(".tmp")
    defines = [f"-D{k}={v}" for k, v in variant.defines.items()]
    include = f"-I{SOURCES / 'include'}"
    run(
        [compiler, "--quiet", "-V", "--target-env", TARGET, include, *defines]
        + [str(variant.source), "-o", str(made)]
    )
    if validator:
        run([validator, "--target-env", TARGET, str(made)])
    os.replace(made, target)


def build(force: bool, check: bool, jobs: int) -> int:
    """Builds what is stale; returns the exit code."""
    start = time.perf_counter()
    compiler = shutil.which("glslangValidator")
    if compiler is None:
        raise BuildError("glslangValidator is not installed; try `apt-get install glslang-tools`")
    validator = shutil.which("spirv-val")
    # Without a validator the key is another one: what it has not seen is compiled again with it.
    tools = [run([tool, "--version"]) for tool in (compiler, validator) if tool]
    old: dict[str, Any] = {}
    manifest_path, begun_path = OUTPUT / "manifest.json", OUTPUT / "begun.json"
    known = () if force else (manifest_path,) if check else (manifest_path, begun_path)
    for path in known:
        with contextlib.suppress(OSError, ValueError, KeyError):
            old.update(json.loads(path.read_text())["variants"])
    manifest: dict[str, Any] = {}
    stale: list[Variant] = []
    for variant in find_variants():
        source = read_source(variant.source)
        key = json.dumps([source, variant.defines, tools, TARGET])
        digest = hashlib.sha256(key.encode()).hexdigest()
        entry = {
            "file": f"{variant.name}.spv",
            "source": variant.source.relative_to(SOURCES).as_posix(),
            "defines": variant.defines,
            "sha256": digest,
            **describe(source, variant.name),
        }
        manifest[variant.name] = entry
        current = old.get(variant.name, {}).get("sha256") == digest
        if not current or not (OUTPUT / entry["file"]).exists():
            stale.append(variant)
    gone = [p for p in OUTPUT.glob("*.spv") if p.stem not in manifest]
    if check:
        for variant in stale:
            print(f"stale: {variant.name}")
        return 1 if stale or gone else 0
    OUTPUT.mkdir(parents=True, exist_ok=True)
    for variant in stale:  # after a failed build an old or newer one must not pass for current
        (OUTPUT / f"{variant.name}.spv").unlink(missing_ok=True)
    text = json.dumps({"target": TARGET, "variants": manifest}, indent=1) + "\n"
    begun_path.write_text(text)  # what is compiled from here on counts, even if this build ends
    with ThreadPoolExecutor(jobs) as pool:
        list(pool.map(lambda v: compile_variant(v, compiler, validator), stale))
    for path in gone:
        path.unlink()
    if manifest_path.exists() and manifest_path.read_text() == text:
        begun_path.unlink()
    else:
        os.replace(begun_path, manifest_path)
    seconds = time.perf_counter() - start
    print(f"shaders: {len(stale)} of {len(manifest)} variants compiled in {seconds:.1f} s")
    if validator is None:
        print("shaders: NOT VALIDATED, spirv-val is missing; try `apt-get install spirv-tools`")
    return 0


def main() -> int:
    """Parses the command line and builds."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("--check", action="store_true", help="only tell what is stale, exit 1")
    parser.add_argument("--force", action="store_true", help="compile everything again")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    stats = parser.add_argument_group("with --stats")
    stats.add_argument("--stats", action="store_true", help="what AMD's compiler makes of them")
    stats.add_argument("--json", action="store_true", help="everything, as JSON")
    stats.add_argument("--families", default="", help="vega10,navi10,navi21,gfx1100: some of them")
    stats.add_argument("--write", type=Path, metavar="PAGE", help="into docs/shaders.md")
    stats.add_argument("shaders", nargs="*", metavar="SHADER", help="variants, all their constants")
    arguments = parser.parse_args()
    of_stats = (arguments.json, arguments.families, arguments.write, arguments.shaders)
    if any(of_stats) and not arguments.stats:
        parser.error("--json, --families, --write and names of shaders go with --stats")
    try:
        if arguments.stats:
            sys.path.insert(0, str(ROOT / "scripts"))
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
