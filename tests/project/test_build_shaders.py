"""The shader build: what its parser understands and refuses, variants, and what counts as stale."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest
from conftest import needs_posix

ROOT = Path(__file__).parent.parent.parent
sys.path.insert(0, str(ROOT))

import build_shaders  # noqa: E402

SOURCE = """#version 450
layout(local_size_x = 64) in;
layout(local_size_x_id = 0, local_size_y_id = 1, local_size_z_id = 2) in;
layout(constant_id = 3) const uint WIDTH = 7;
layout(set = 0, binding = 0) readonly buffer X { uint x[]; };
layout(set = 0, binding = 1) writeonly buffer Result { uint result[]; };
layout(push_constant) uniform Push { uint x_offset; uint result_offset; int sizes[3]; float eps; };
void main() { result[result_offset] = x[x_offset] + WIDTH; } // layout(constant_id = 9)
"""

COMPILERS = [tool for tool in ("glslc", "glslangValidator") if shutil.which(tool)]

needs_compiler = pytest.mark.skipif(not COMPILERS, reason="no compiler is installed")


def test_bindings_push_and_constants_are_read() -> None:
    assert build_shaders.describe(SOURCE, "one") == {
        "bindings": ["x", "result"],
        "access": ["read", "write"],
        "push": [
            ("x_offset", "uint", 1),
            ("result_offset", "uint", 1),
            ("sizes", "int", 3),
            ("eps", "float", 1),
        ],
        "constants": [("LOCAL_X", 0, 64), ("LOCAL_Y", 1, 1), ("LOCAL_Z", 2, 1), ("WIDTH", 3, 7)],
    }


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("binding = 1", "binding = 2", "expected bindings 0..n-1"),
        ("uint x_offset; uint result_offset;", "uint result_offset;", "to start with x_offset"),
        ("int sizes[3]", "vec3 sizes", "push field not understood: 'vec3 sizes'"),
        ("int sizes[3]", "int sizes[40]", "takes 172 bytes"),
        ("constant_id = 3", "constant_id = 4", "expected constant ids 0..n-1"),
    ],
)
def test_what_is_not_understood_is_refused(old: str, new: str, message: str) -> None:
    assert old in SOURCE
    with pytest.raises(build_shaders.BuildError, match=message):
        build_shaders.describe(SOURCE.replace(old, new), "one")


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty shader folder in place of the project's."""
    (tmp_path / "shaders" / "include").mkdir(parents=True)
    (tmp_path / "shaders" / "family").mkdir()
    monkeypatch.setattr(build_shaders, "SOURCES", tmp_path / "shaders")
    monkeypatch.setattr(build_shaders, "OUTPUT", tmp_path / "spirv")
    (tmp_path / "shaders" / "family" / "one.comp").write_text(SOURCE)
    return tmp_path


def names() -> list[str]:
    return [variant.name for variant in build_shaders.find_variants()]


def test_variants_are_named_by_the_table(project: Path) -> None:
    assert names() == ["one"]
    table = project / "shaders" / "family" / "variants.toml"
    table.write_text('[one.each]\nnames = ["ADD", "SUB"]\n[one.one_wide]\nWIDTH = 9\n')
    assert names() == ["one_add", "one_sub", "one_wide"]
    assert build_shaders.find_variants()[0].defines == {"ADD": "1", "FUNCTION": "add"}
    table.write_text('[one.each]\nnames = ["ADD"]\nalso = { wide = "WIDE" }\n')
    assert names() == ["one_add", "one_add_wide"]
    assert build_shaders.find_variants()[1].defines == {"ADD": "1", "FUNCTION": "add", "WIDE": "1"}
    table.write_text("[two.two]\nA = 1\n")
    message = "family/variants.toml names shaders that are not there: two"
    with pytest.raises(build_shaders.BuildError, match=message):
        build_shaders.find_variants()
    (project / "shaders" / "family" / "two.comp").write_text(SOURCE)
    table.write_text("[one.same]\nA = 1\n[two.same]\nA = 1\n")
    with pytest.raises(build_shaders.BuildError, match="share a name"):
        build_shaders.find_variants()


def build(**changes: Any) -> int:
    return build_shaders.build(**{"force": False, "check": False, "jobs": 2, **changes})


def test_each_family_has_a_table_and_includes_of_its_own(project: Path) -> None:
    shaders = project / "shaders"
    (shaders / "other").mkdir()
    (shaders / "other" / "one.comp").write_text('#include "more.glsl"\n')
    (shaders / "other" / "variants.toml").write_text("[one.one_more]\nA = 1\n")
    assert names() == ["one", "one_more"]
    (shaders / "family" / "more.glsl").write_text("of the family")
    with pytest.raises(build_shaders.BuildError, match="cannot read .*include.more.glsl"):
        build_shaders.read_source(shaders / "other" / "one.comp")
    (shaders / "include" / "more.glsl").write_text("of all")
    text = build_shaders.read_source(shaders / "other" / "one.comp")
    assert text == '#line 1 "include/more.glsl"\nof all\n#line 2 "other/one.comp"\n'
    (shaders / "other" / "more.glsl").write_text("of the other")
    assert "\nof the other\n" in build_shaders.read_source(shaders / "other" / "one.comp")


@needs_compiler
def test_only_what_changed_is_compiled(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    include = project / "shaders" / "include" / "more.glsl"
    include.write_text("const uint MORE = 1u;\n")
    head, body = SOURCE.split("layout(local_size_x = 64)", 1)
    extension = "#extension GL_GOOGLE_include_directive : require\n"
    text = f'{head}{extension}#include "more.glsl"\nlayout(local_size_x = 64){body}'
    (project / "shaders" / "family" / "two.comp").write_text(text)
    assert build(check=True) == 1
    assert build() == 0
    message = capsys.readouterr().out.splitlines()
    assert message[-2] == "shaders: 2 of 2" and "2 of 2 variants" in message[-1]
    assert build(check=True) == 0
    assert build() == 0 and "0 of 2 variants" in capsys.readouterr().out
    include.write_text("const uint MORE = 2u;\n")
    assert build(check=True) == 1 and "stale: two" in capsys.readouterr().out
    assert build() == 0 and "1 of 2 variants" in capsys.readouterr().out
    (project / "spirv" / "one.spv").unlink()
    assert build() == 0 and "1 of 2 variants" in capsys.readouterr().out
    (project / "shaders" / "family" / "two.comp").unlink()
    assert build(check=True) == 1
    assert build() == 0 and not (project / "spirv" / "two.spv").exists()
    manifest = json.loads((project / "spirv" / "manifest.json").read_text())
    assert list(manifest["variants"]) == ["one"]
    assert build(force=True) == 0 and "1 of 1 variants" in capsys.readouterr().out


@needs_compiler
def test_an_interrupted_build_goes_on(
    project: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("two", "three"):
        (project / "shaders" / "family" / f"{name}.comp").write_text(SOURCE)
    assert build(jobs=1) == 0
    compile_batch = build_shaders.compile_batch
    monkeypatch.setattr(build_shaders, "BATCH", 1)

    def one_then_stop(batch: list[Any], tools: build_shaders.Tools) -> None:
        if (project / "spirv" / "one.spv").exists():
            raise KeyboardInterrupt
        compile_batch(batch, tools)

    def change(*shaders: str) -> None:
        for name in shaders:
            path = project / "shaders" / "family" / f"{name}.comp"
            path.write_text(path.read_text() + "// changed\n")

    change("one", "three")
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(build_shaders, "compile_batch", one_then_stop)
        build(jobs=1)
    assert build(check=True) == 1
    capsys.readouterr()
    assert build() == 0 and "1 of 3 variants" in capsys.readouterr().out
    assert build(check=True) == 0
    assert sorted(p.name for p in (project / "spirv").glob("*.json")) == ["manifest.json"]
    change("one", "three")
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(build_shaders, "compile_batch", one_then_stop)
        build(jobs=1)
    change("one")  # what was compiled midway is no longer right
    capsys.readouterr()
    assert build() == 0 and "2 of 3 variants" in capsys.readouterr().out


NEEDS_NEWER = f"""#extension {build_shaders.NEWER} : require
#extension GL_KHR_memory_scope_semantics : require
shared float all[64];
"""


@needs_compiler
@pytest.mark.parametrize("known", [False, True])
def test_what_no_compiler_knows_is_left_out(
    known: bool,
    project: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    usual = build_shaders.find_tools()
    if known and build_shaders.find_newer(usual) is None:
        pytest.skip(f"no compiler here knows {build_shaders.NEWER}")
    if not known:
        monkeypatch.setattr(build_shaders, "knows_newer", lambda tools: False)
    text = SOURCE.replace("#version 450\n", f"#version 450\n{NEEDS_NEWER}")
    (project / "shaders" / "family" / "two.comp").write_text(text)
    assert build() == 0
    message = capsys.readouterr().out
    manifest = json.loads((project / "spirv" / "manifest.json").read_text())
    assert manifest["left_out"] == ([] if known else ["two"])
    assert ("1 LEFT OUT" in message) is not known
    assert (project / "spirv" / "two.spv").exists() is known
    assert build(check=True) == 0
    assert build() == 0 and "0 of" in capsys.readouterr().out


def test_a_compiler_that_fails_knows_nothing_newer() -> None:
    assert not build_shaders.knows_newer(build_shaders.Tools("/nonexistent/glslc", None))


@pytest.fixture(params=COMPILERS)
def tools(request: pytest.FixtureRequest, project: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of all tools that are found: one compiler and no validator."""
    folder = project / "tools"
    folder.mkdir()
    (folder / request.param).symlink_to(str(shutil.which(request.param)))
    monkeypatch.setenv("PATH", str(folder))
    monkeypatch.delenv("VULKAN_SDK", raising=False)
    return folder


MORE = """#extension GL_GOOGLE_include_directive : require
#include "more.glsl"
#ifndef SCALE
#error no SCALE
#endif
"""


def test_each_compiler_makes_the_same_of_a_batch(project: Path, tools: Path) -> None:
    family = project / "shaders" / "family"
    (family / "more.glsl").write_text("const uint MORE = 1u;\n")
    head, rest = SOURCE.split("\n", 1)
    (family / "two.comp").write_text(f"{head}\n{MORE}{rest.replace('WIDTH;', 'SCALE * MORE;')}")
    (family / "variants.toml").write_text("[two.two_5]\nSCALE = 5\n[two.two_6]\nSCALE = 6\n")
    assert build(jobs=1) == 0
    modules = {p.stem: p.read_bytes() for p in (project / "spirv").glob("*.spv")}
    assert sorted(modules) == ["one", "two_5", "two_6"]
    assert len(set(modules.values())) == 3
    for scale in (5, 6):
        assert scale.to_bytes(4, "little") in modules[f"two_{scale}"]
    assert not list((project / "spirv").glob("*.tmp"))


def test_a_broken_shader_is_shown_with_its_file_and_line(project: Path, tools: Path) -> None:
    family = project / "shaders" / "family"
    (family / "one.comp").write_text(SOURCE.replace("+ WIDTH", "+ WIDE"))
    with pytest.raises(build_shaders.BuildError, match=r"family/one\.comp:8: (error: )?'WIDE'"):
        build()
    head, rest = SOURCE.split("\n", 1)
    include = "#extension GL_GOOGLE_include_directive : require\n#include "
    (family / "one.comp").write_text(f'{head}\n{include}"nothing.glsl"\n{rest}')
    with pytest.raises(build_shaders.BuildError, match="cannot read .*nothing.glsl"):
        build()
    (family / "more.glsl").write_text("\nuint more() { return MORE; }\n")
    (family / "one.comp").write_text(f'{head}\n{include}"more.glsl"\n{rest}')
    with pytest.raises(build_shaders.BuildError, match=r"family/more\.glsl:2: (error: )?'MORE'"):
        build()
    (family / "more.glsl").write_text("\n\n")
    broken = rest.replace("+ WIDTH", "+ WIDE")
    (family / "one.comp").write_text(f'{head}\n{include}"more.glsl"\n{broken}')
    with pytest.raises(build_shaders.BuildError, match=r"family/one\.comp:10: (error: )?'WIDE'"):
        build()
    (family / "one.comp").write_text("// first\n" + SOURCE)
    with pytest.raises(build_shaders.BuildError, match="'#version 450' in the first line"):
        build()


def test_without_a_compiler_it_says_what_to_install(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(project))
    monkeypatch.delenv("VULKAN_SDK", raising=False)
    with pytest.raises(build_shaders.BuildError, match="got neither; try `apt-get install glslc`"):
        build()


@needs_posix
def test_tools_are_looked_for_in_the_sdk_too(
    project: Path, tools: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(project))
    monkeypatch.setenv("VULKAN_SDK", str(project / "sdk"))
    (project / "sdk").mkdir()
    tools.rename(project / "sdk" / "bin")
    assert Path(build_shaders.find_tools().compiler).parent == project / "sdk" / "bin"


@needs_posix
@pytest.mark.parametrize("virtual", [False, True])
def test_tools_next_to_python_count_unless_it_is_a_virtual_environment(
    virtual: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Conda and images with Python have the system's tools where Python is."""
    tool = tmp_path / "glslc"
    tool.write_text("#!/bin/sh\n")
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("VULKAN_SDK", raising=False)
    monkeypatch.setattr(build_shaders, "own_scripts", lambda: tmp_path)
    monkeypatch.setattr(sys, "base_prefix", "elsewhere" if virtual else sys.prefix)
    assert build_shaders.find_tool("glslc") == (None if virtual else str(tool))


@needs_posix
@needs_compiler
def test_validation_is_never_left_out_silently(
    project: Path, tools: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert build() == 0 and "NOT VALIDATED, spirv-val is missing" in capsys.readouterr().out
    assert build() == 0 and "0 of 1 variants" in capsys.readouterr().out
    validator = tools / "spirv-val"
    validator.write_text("#!/bin/sh\necho v1\n")
    validator.chmod(0o755)
    assert build(check=True) == 1, "what no validator has seen is not current where there is one"
    capsys.readouterr()
    assert build() == 0
    text = capsys.readouterr().out
    assert "1 of 1 variants" in text and "NOT VALIDATED" not in text
    validator.write_text('#!/bin/sh\n[ "$1" = --version ] && exit\necho bad word; exit 1\n')
    with pytest.raises(build_shaders.BuildError, match="bad word"):
        build()
    assert not (project / "spirv" / "one.spv").exists()
