"""The cases as compute shaders by hand, in WGSL: forms of each, of which the fastest counts.

Register-blocked products with vec4 loads, one group or one invocation per row for norms, plain
loops for the rest: what somebody writes who knows the device and needs this one shape.
"""

from __future__ import annotations

from dataclasses import dataclass

from .workloads import EPSILON, Spec

Groups = tuple[int, int, int]


@dataclass(frozen=True)
class Kernel:
    """One dispatch. buffers: names, the last one written; types: the element types."""

    source: str
    groups: Groups
    buffers: tuple[str, ...]


def kernel(
    types: dict[str, str], local: tuple[int, int], body: str, groups: Groups, shared: str = ""
) -> Kernel:
    """Return a kernel with these buffers, the last one written, whose body may use g, l and w."""
    lines = []
    for i, (name, type_) in enumerate(types.items()):
        access = "read_write" if i == len(types) - 1 else "read"
        lines.append(f"@group(0) @binding({i}) var<storage, {access}> {name}: array<{type_}>;")
    lines.append(shared)
    lines.append(
        f"""@compute @workgroup_size({local[0]}, {local[1]})
fn main(@builtin(global_invocation_id) g: vec3<u32>, @builtin(local_invocation_id) l: vec3<u32>,
        @builtin(workgroup_id) w: vec3<u32>, @builtin(num_workgroups) nw: vec3<u32>) {{
{body}
}}"""
    )
    return Kernel("\n".join(lines), groups, tuple(types))


def _up(a: int, b: int) -> int:
    return -(-a // b)


@dataclass(frozen=True)
class Product:
    """A product of matrices, of which `batch` lie behind each other."""

    m: int
    k: int
    n: int
    batch: int = 1
    transpose_a: bool = False
    transpose_b: bool = False

    def kernels(self, names: tuple[str, str, str]) -> list[Kernel]:
        """Return the forms that fit the sizes."""
        if self.transpose_b:
            forms = [self._dots(names, 4, 4, 8, 8), self._dots(names, 8, 4, 8, 4)]
            return forms if self.k % 4 == 0 else [self._scalars(names)]
        wide = self.n % 4 == 0 and (self.m if self.transpose_a else self.k) % 4 == 0
        if not wide:
            return [self._scalars(names)]
        blocks = ((8, 2, 8, 4), (8, 4, 8, 4), (4, 2, 8, 8), (4, 1, 8, 4))
        return [self._vectors(names, *block) for block in blocks]

    def _base(self, row: str = "r") -> str:
        a, b, o = self.m * self.k, self.k * self.n, self.m * self.n
        return f"let pa = g.z * {a}u; let pb = g.z * {b}u; let po = g.z * {o}u;"

    def _groups(self, columns: int, rows: int) -> Groups:
        return (_up(self.n, columns), _up(self.m, rows), self.batch)

    def _vectors(self, names: tuple[str, str, str], tm: int, tn: int, wx: int, wy: int) -> Kernel:
        a, b, o = names
        n4, k4, m4 = self.n // 4, self.k // 4, self.m // 4
        rows = [f"min(d + {i}u, {self.m - 1}u)" for i in range(tm)]
        columns = [f"min(c + {j}u, {n4 - 1}u)" for j in range(tn)]
        body = [self._base(), f"let c = g.x * {tn}u; let d = g.y * {tm}u;"]
        body += [f"var s{i}_{j} = vec4<f32>();" for i in range(tm) for j in range(tn)]
        if self.transpose_a:
            body.append(f"for (var k = 0u; k < {self.k}u; k++) {{")
            for q in range(tm // 4):
                at = f"min(d / 4u + {q}u, {m4 - 1}u)"
                body.append(f"let a{q} = {a}[pa / 4u + k * {m4}u + {at}];")
            body += [f"let b{j} = {b}[pb / 4u + k * {n4}u + {columns[j]}];" for j in range(tn)]
            body += [
                f"s{i}_{j} += a{i // 4}.{'xyzw'[i % 4]} * b{j};"
                for i in range(tm)
                for j in range(tn)
            ]
        else:
            body.append(f"for (var k = 0u; k < {k4}u; k++) {{")
            body += [f"let a{i} = {a}[pa / 4u + {rows[i]} * {k4}u + k];" for i in range(tm)]
            for q, part in enumerate("xyzw"):
                body += [
                    f"let b{q}_{j} = {b}[pb / 4u + (k * 4u + {q}u) * {n4}u + {columns[j]}];"
                    for j in range(tn)
                ]
                body += [
                    f"s{i}_{j} += a{i}.{part} * b{q}_{j};" for i in range(tm) for j in range(tn)
                ]
        body.append("}")
        for i in range(tm):
            for j in range(tn):
                store = f"{o}[po / 4u + (d + {i}u) * {n4}u + c + {j}u] = s{i}_{j};"
                body.append(f"if (d + {i}u < {self.m}u && c + {j}u < {n4}u) {{ {store} }}")
        types = {a: "vec4<f32>", b: "vec4<f32>", o: "vec4<f32>"}
        return kernel(types, (wx, wy), "\n".join(body), self._groups(4 * tn * wx, tm * wy))

    def _dots(self, names: tuple[str, str, str], tm: int, tn: int, wx: int, wy: int) -> Kernel:
        a, b, o = names
        k4 = self.k // 4
        body = [self._base(), f"let c = g.x * {tn}u; let d = g.y * {tm}u;"]
        body += [f"var s{i}_{j} = 0.0;" for i in range(tm) for j in range(tn)]
        body.append(f"for (var k = 0u; k < {k4}u; k++) {{")
        for i in range(tm):
            body.append(f"let a{i} = {a}[pa / 4u + min(d + {i}u, {self.m - 1}u) * {k4}u + k];")
        for j in range(tn):
            body.append(f"let b{j} = {b}[pb / 4u + min(c + {j}u, {self.n - 1}u) * {k4}u + k];")
            body += [f"s{i}_{j} += dot(a{i}, b{j});" for i in range(tm)]
        body.append("}")
        body += self._stores(o, tm, tn)
        types = {a: "vec4<f32>", b: "vec4<f32>", o: "f32"}
        return kernel(types, (wx, wy), "\n".join(body), self._groups(tn * wx, tm * wy))

    def _scalars(self, names: tuple[str, str, str], tm: int = 4, tn: int = 8) -> Kernel:
        a, b, o = names
        body = [self._base(), f"let c = g.x * {tn}u; let d = g.y * {tm}u;"]
        body += [f"var s{i}_{j} = 0.0;" for i in range(tm) for j in range(tn)]
        body.append(f"for (var k = 0u; k < {self.k}u; k++) {{")
        for i in range(tm):
            row = f"min(d + {i}u, {self.m - 1}u)"
            at = f"k * {self.m}u + {row}" if self.transpose_a else f"{row} * {self.k}u + k"
            body.append(f"let a{i} = {a}[pa + {at}];")
        for j in range(tn):
            column = f"min(c + {j}u, {self.n - 1}u)"
            at = f"{column} * {self.k}u + k" if self.transpose_b else f"k * {self.n}u + {column}"
            body.append(f"let b{j} = {b}[pb + {at}];")
            body += [f"s{i}_{j} += a{i} * b{j};" for i in range(tm)]
        body.append("}")
        body += self._stores(o, tm, tn)
        return kernel(
            {a: "f32", b: "f32", o: "f32"}, (8, 8), "\n".join(body), self._groups(tn * 8, tm * 8)
        )

    def _stores(self, o: str, tm: int, tn: int) -> list[str]:
        return [
            f"if (d + {i}u < {self.m}u && c + {j}u < {self.n}u) "
            f"{{ {o}[po + (d + {i}u) * {self.n}u + c + {j}u] = s{i}_{j}; }}"
            for i in range(tm)
            for j in range(tn)
        ]


def matvec(k: int, n: int, local: int) -> Kernel:
    """One row times a matrix, four columns per invocation."""
    steps = "".join(f"s += x0[k + {i}u] * w0[(k + {i}u) * {n // 4}u + g.x];\n" for i in range(4))
    body = f"var s = vec4<f32>();\nfor (var k = 0u; k < {k}u; k += 4u) {{\n{steps}}}\nr[g.x] = s;"
    types = {"x0": "f32", "w0": "vec4<f32>", "r": "vec4<f32>"}
    return kernel(types, (local, 1), body, (n // 4 // local, 1, 1))


ERF = """
fn erf4(x: vec4<f32>) -> vec4<f32> {
  let a = abs(x);
  let t = 1.0 / (1.0 + 0.3275911 * a);
  let p = ((((1.061405429 * t - 1.453152027) * t + 1.421413741) * t - 0.284496736) * t
           + 0.254829592) * t;
  return sign(x) * (1.0 - p * exp(-a * a));
}
"""


def elementwise(expression: str, operands: tuple[str, ...], count: int) -> Kernel:
    """One vec4 per invocation; the expression is of a and b."""
    groups = _up(count // 4, 256)
    names = ("a", "b")
    loads = "".join(f"let {n} = {o}[i];\n" for n, o in zip(names, operands, strict=False))
    body = f"let i = g.y * nw.x * 256u + g.x;\n{loads}r[i] = {expression};"
    wide = min(groups, 32768)
    types = {**dict.fromkeys(operands, "vec4<f32>"), "r": "vec4<f32>"}
    return kernel(types, (256, 1), body, (wide, _up(groups, wide), 1), ERF)


@dataclass(frozen=True)
class Row:
    """What happens to a row of values: folds over it, then what is written.

    folds: (name, start, term of v, how two combine), each of which may use the ones before.
    result: a term of v, the row's element, and i, its vector's number; none: the last fold's value.
    """

    folds: tuple[tuple[str, str, str, str], ...]
    result: str | None
    operands: tuple[str, ...] = ("x0",)
    scale: str = ""


def rows(row: Row, count: int, columns: int, target: str = "r") -> list[Kernel]:
    """Return one group per row, and one invocation per row."""
    c4 = columns // 4
    x = row.operands[0]
    types = dict.fromkeys(row.operands, "vec4<f32>")
    types[target] = "vec4<f32>" if row.result else "f32"
    load = f"let v = {x}[base + i]{row.scale};"

    def combine(how: str, a: str, b: str) -> str:
        return f"max({a}, {b})" if how == "max" else f"{a} + {b}"

    group, alone = [f"let base = w.x * {c4}u;"], [f"let base = g.x * {c4}u;"]
    for name, start, term, how in row.folds:
        inside = f"{load} t = {combine(how, 't', term)};"
        across = combine(how, combine(how, "t.x", "t.y"), combine(how, "t.z", "t.w"))
        group += [
            f"var {name} = {start};",
            f"{{ var t = vec4<f32>({start});",
            f"for (var i = l.x; i < {c4}u; i += 64u) {{ {inside} }}",
            f"sh[l.x] = {across}; workgroupBarrier();",
            "for (var h = 32u; h > 0u; h >>= 1u) {",
            f"if (l.x < h) {{ sh[l.x] = {combine(how, 'sh[l.x]', 'sh[l.x + h]')}; }}",
            "workgroupBarrier(); }",
            f"{name} = sh[0]; workgroupBarrier(); }}",
        ]
        alone += [
            f"var {name} = {start};",
            f"{{ var t = vec4<f32>({start});",
            f"for (var i = 0u; i < {c4}u; i++) {{ {inside} }}",
            f"{name} = {across}; }}",
        ]
    if row.result:
        out = f"{load} {target}[base + i] = {row.result};"
        group.append(f"for (var i = l.x; i < {c4}u; i += 64u) {{ {out} }}")
        alone.append(f"for (var i = 0u; i < {c4}u; i++) {{ {out} }}")
    else:
        last = row.folds[-1][0]
        group.append(f"if (l.x == 0u) {{ {target}[w.x] = {last}; }}")
        alone.append(f"{target}[g.x] = {last};")
    shared = "var<workgroup> sh: array<f32, 64>;"
    out_kernels = [kernel(types, (64, 1), "\n".join(group), (count, 1, 1), shared)]
    if count % 32 == 0:
        out_kernels.append(kernel(types, (32, 1), "\n".join(alone), (count // 32, 1, 1)))
    return out_kernels


def softmax_row(scale: float = 1.0) -> Row:
    folds = (
        ("top", "-3.0e38", "v", "max"),
        ("total", "0.0", "exp(v - top)", "add"),
    )
    by = "" if scale == 1.0 else f" * {scale}"
    return Row(folds, "exp(v - top) / total", scale=by)


def norm_row(spec: Spec) -> Row:
    columns = spec["shape"][-1]
    if spec.kind == "rms_norm":
        result = f"v * inverseSqrt(square / {columns}.0 + {EPSILON:.8f}) * w0[i]"
        return Row((("square", "0.0", "v * v", "add"),), result, ("x0", "w0"))
    mean = f"total / {columns}.0"
    folds = (
        ("total", "0.0", "v", "add"),
        ("square", "0.0", f"(v - {mean}) * (v - {mean})", "add"),
    )
    result = f"(v - {mean}) * inverseSqrt(square / {columns}.0 + {EPSILON:.8f}) * w0[i] + w1[i]"
    return Row(folds, result, ("x0", "w0", "w1"))


def column_sums(count: int, columns: int, parts: int = 64) -> list[Kernel]:
    """Sums over rows, in two dispatches: of parts of the rows, then of these."""
    c4, each = columns // 4, count // parts
    body = f"""var s = vec4<f32>();
for (var i = 0u; i < {{n}}u; i++) {{{{ s += {{x}}[(w.y * {{n}}u + i) * {c4}u + g.x]; }}}}
{{o}}[w.y * {c4}u + g.x] = s;"""
    first = kernel(
        {"x0": "vec4<f32>", "t0": "vec4<f32>"},
        (32, 1),
        body.format(n=each, x="x0", o="t0"),
        (c4 // 32, parts, 1),
    )
    second = kernel(
        {"t0": "vec4<f32>", "r": "vec4<f32>"},
        (32, 1),
        body.format(n=parts, x="t0", o="r"),
        (c4 // 32, 1, 1),
    )
    return [first, second]


def transposed(rows_: int, columns: int) -> Kernel:
    """The transpose of a matrix, 4 x 4 values per invocation."""
    r4, c4 = rows_ // 4, columns // 4
    loads = "".join(f"let v{i} = x0[(g.y * 4u + {i}u) * {c4}u + g.x];\n" for i in range(4))
    stores = "".join(
        f"r[(g.x * 4u + {i}u) * {r4}u + g.y] = vec4<f32>(v0.{p}, v1.{p}, v2.{p}, v3.{p});\n"
        for i, p in enumerate("xyzw")
    )
    types = {"x0": "vec4<f32>", "r": "vec4<f32>"}
    return kernel(types, (8, 8), loads + stores, (c4 // 8, r4 // 8, 1))


def swapped(shape: tuple[int, int, int, int]) -> Kernel:
    """The second and third axis of four exchanged, one vec4 of the last per invocation."""
    a, b, c, d = shape
    d4 = d // 4
    body = f"""let i = g.y * nw.x * 256u + g.x;
let x = i % {d4}u; let p = i / {d4}u;
let j = p % {b}u; let q = p / {b}u;
r[i] = x0[(((q / {c}u) * {b}u + j) * {c}u + q % {c}u) * {d4}u + x];"""
    types = {"x0": "vec4<f32>", "r": "vec4<f32>"}
    return kernel(types, (256, 1), body, (_up(a * b * c * d4, 256), 1, 1))


def gathered(count: int, columns: int) -> Kernel:
    """Rows of a table by number, one vec4 per invocation."""
    c4 = columns // 4
    body = f"r[g.x] = x0[u32(x1[g.x / {c4}u]) * {c4}u + g.x % {c4}u];"
    types = {"x0": "vec4<f32>", "x1": "i32", "r": "vec4<f32>"}
    return kernel(types, (256, 1), body, (count * c4 // 256, 1, 1))
