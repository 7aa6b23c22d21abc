"""The cases as MLIR, in the linalg dialect that IREE takes."""

from __future__ import annotations

from collections.abc import Callable

from .workloads import EPSILON, Spec, result_shape, shapes_of


def module_of(spec: Spec, calls: int) -> str:
    """Return a module whose function f does the case several times and returns all results."""
    shapes = dict(shapes_of(spec))
    half = spec.get("storage") == "float16"
    if spec.kind == "conv":
        _, channels, size, _ = shapes["x0"]
        padded = size + 2 * spec.get("pad", 0)
        shapes["x0"] = (1, channels, padded, padded)
        if spec.get("groups", 1) > 1:
            out, _, *kernel = shapes["w0"]
            shapes["w0"] = (out, *kernel)
    ordered = sorted(shapes, key=lambda name: (name[0] == "w", name))
    types = {n: _type(shapes[n], _element(spec, n, half)) for n in ordered}
    result = _type(result_shape(spec), "f32")
    lines = []
    for i in range(calls):
        first = types["x0"]
        lines.append(f"%in{i} = util.optimization_barrier %x0 : {first}")
        lines.append(_BODIES[spec.kind](spec, str(i), types, result))
    body = "\n  ".join("\n".join(lines).splitlines())
    args = ", ".join(f"%{n}: {t}" for n, t in types.items())
    results = ", ".join(f"%r{i}" for i in range(calls))
    every = ", ".join([result] * calls)
    return f"""func.func @f({args}) -> ({every}) {{
  %zero = arith.constant 0.0 : f32
  %low = arith.constant 0xFF800000 : f32
  {body}
  return {results} : {every}
}}
"""


def _type(shape: tuple[int, ...], element: str) -> str:
    return f"tensor<{'x'.join(map(str, (*shape, element)))}>"


def _element(spec: Spec, name: str, half: bool) -> str:
    if spec.kind == "gather" and name == "x1":
        return "i32"
    return "f16" if half else "f32"


def _filled(name: str, type_: str, value: str = "%zero") -> str:
    return f"""%{name}_e = tensor.empty() : {type_}
%{name} = linalg.fill ins({value} : f32) outs(%{name}_e : {type_}) -> {type_}
"""


def _generic(
    name: str,
    maps: list[str],
    loops: str,
    operands: list[tuple[str, str]],
    out: tuple[str, str],
    body: str,
) -> str:
    """A linalg.generic whose body names its arguments %a0, %a1, ..., the last being the result's,
    and yields %y.
    """
    kinds = ", ".join(f'"{"reduction" if c == "r" else "parallel"}"' for c in loops)
    texts = ", ".join(f"affine_map<{m}>" for m in maps)
    args = ", ".join(f"%a{i}: {t[1].split('x')[-1][:-1]}" for i, t in enumerate([*operands, out]))
    names = ", ".join(n for n, _ in operands)
    types = ", ".join(t for _, t in operands)
    return f"""%{name} = linalg.generic {{indexing_maps = [{texts}], iterator_types = [{kinds}]}}
  ins({names} : {types}) outs({out[0]} : {out[1]}) {{
  ^bb0({args}):
    {body}
    linalg.yield %y : f32
}} -> {out[1]}
"""


def _matmul(spec: Spec, i: str, types: dict[str, str], result: str) -> str:
    left = types["x0"]
    name, right = ("%x1", types["x1"]) if spec.get("batch") else ("%w0", types["w0"])
    op = "batch_matmul" if spec.get("batch") else "matmul"
    transposed = spec.get("transpose_a"), spec.get("transpose_b")
    maps = ""
    if any(transposed):
        a, b = "(k, m)" if transposed[0] else "(m, k)", "(n, k)" if transposed[1] else "(k, n)"
        layouts = (f"affine_map<(m, n, k) -> {one}>" for one in (a, b, "(m, n)"))
        maps = f"indexing_maps = [{', '.join(layouts)}] "
    return _filled(f"z{i}", result) + (
        f"%r{i} = linalg.{op} {maps}ins(%in{i}, {name} : {left}, {right}) "
        f"outs(%z{i} : {result}) -> {result}"
    )


def _elementwise(spec: Spec, i: str, types: dict[str, str], result: str) -> str:
    if spec.kind == "binary":
        op = {"add": "addf", "mul": "mulf"}[spec["op"]]
        return f"%r{i} = arith.{op} %in{i}, %x1 : {result}"
    if spec["op"] == "exp":
        return f"%r{i} = math.exp %in{i} : {result}"
    if spec["op"] == "relu":
        return f"""%c{i} = arith.constant dense<0.0> : {result}
%r{i} = arith.maximumf %in{i}, %c{i} : {result}"""
    return f"""%h{i} = arith.constant dense<0.5> : {result}
%s{i} = arith.constant dense<0.70710678118> : {result}
%one{i} = arith.constant dense<1.0> : {result}
%m{i} = arith.mulf %in{i}, %s{i} : {result}
%e{i} = math.erf %m{i} : {result}
%p{i} = arith.addf %e{i}, %one{i} : {result}
%q{i} = arith.mulf %in{i}, %h{i} : {result}
%r{i} = arith.mulf %q{i}, %p{i} : {result}"""


def _softmax(spec: Spec, i: str, types: dict[str, str], result: str) -> str:
    axis = len(spec["shape"]) - 1
    return f"""%e{i} = tensor.empty() : {result}
%r{i} = linalg.softmax dimension({axis})
  ins(%in{i} : {result}) outs(%e{i} : {result}) -> {result}"""


WHOLE, ROW, COLUMN = "(i, j) -> (i, j)", "(i, j) -> (i)", "(i, j) -> (j)"


def _norm(spec: Spec, i: str, types: dict[str, str], result: str) -> str:
    rows, columns = spec["shape"]
    row = _type((rows,), "f32")
    source, out = f"%in{i}", ""
    if spec.kind == "layer_norm":
        out += (
            _filled(f"mz{i}", row)
            + _generic(
                f"ms{i}",
                [WHOLE, ROW],
                "pr",
                [(source, result)],
                (f"%mz{i}", row),
                "%y = arith.addf %a0, %a1 : f32",
            )
            + f"%ce{i} = tensor.empty() : {result}\n"
            + _generic(
                f"ct{i}",
                [WHOLE, ROW, WHOLE],
                "pp",
                [(source, result), (f"%ms{i}", row)],
                (f"%ce{i}", result),
                f"%n = arith.constant {float(columns)} : f32\n    %m = arith.divf %a1, %n : f32\n"
                "    %y = arith.subf %a0, %m : f32",
            )
        )
        source = f"%ct{i}"
    out += (
        _filled(f"sz{i}", row)
        + _generic(
            f"ss{i}",
            [WHOLE, ROW],
            "pr",
            [(source, result)],
            (f"%sz{i}", row),
            "%q = arith.mulf %a0, %a0 : f32\n    %y = arith.addf %q, %a1 : f32",
        )
        + f"%oe{i} = tensor.empty() : {result}\n"
    )
    operands = [(source, result), (f"%ss{i}", row), ("%w0", types["w0"])]
    body = f"""%n = arith.constant {float(columns)} : f32
    %eps = arith.constant {EPSILON:e} : f32
    %mean = arith.divf %a1, %n : f32
    %more = arith.addf %mean, %eps : f32
    %root = math.rsqrt %more : f32
    %t = arith.mulf %a0, %root : f32
    """
    maps = [WHOLE, ROW, COLUMN, WHOLE]
    if spec.kind == "layer_norm":
        operands.append(("%w1", types["w1"]))
        maps.insert(3, COLUMN)
        body += "%u = arith.mulf %t, %a2 : f32\n    %y = arith.addf %u, %a3 : f32"
    else:
        body += "%y = arith.mulf %t, %a2 : f32"
    return out + _generic(f"r{i}", maps, "pp", operands, (f"%oe{i}", result), body)


def _reduce(spec: Spec, i: str, types: dict[str, str], result: str) -> str:
    start = "%zero" if spec["op"] == "sum" else "%low"
    op = "addf" if spec["op"] == "sum" else "maximumf"
    reduced, loops = (ROW, "pr") if spec["axis"] == 1 else (COLUMN, "rp")
    return _filled(f"z{i}", result, start) + _generic(
        f"r{i}",
        [WHOLE, reduced],
        loops,
        [(f"%in{i}", types["x0"])],
        (f"%z{i}", result),
        f"%y = arith.{op} %a0, %a1 : f32",
    )


def _transpose(spec: Spec, i: str, types: dict[str, str], result: str) -> str:
    axes = ", ".join(map(str, spec["axes"]))
    return f"""%e{i} = tensor.empty() : {result}
%r{i} = linalg.transpose
  ins(%in{i} : {types["x0"]}) outs(%e{i} : {result}) permutation = [{axes}]"""


def _gather(spec: Spec, i: str, types: dict[str, str], result: str) -> str:
    table = types["x0"]
    return f"""%e{i} = tensor.empty() : {result}
%r{i} = linalg.generic {{indexing_maps = [affine_map<(i, j) -> (i)>, affine_map<(i, j) -> (i, j)>],
    iterator_types = ["parallel", "parallel"]}}
  ins(%x1 : {types["x1"]}) outs(%e{i} : {result}) {{
  ^bb0(%at: i32, %o: f32):
    %row = arith.index_cast %at : i32 to index
    %column = linalg.index 1 : index
    %y = tensor.extract %in{i}[%row, %column] : {table}
    linalg.yield %y : f32
}} -> {result}"""


def _conv(spec: Spec, i: str, types: dict[str, str], result: str) -> str:
    depthwise = spec.get("groups", 1) > 1
    op = "depthwise_conv_2d_nchw_chw" if depthwise else "conv_2d_nchw_fchw"
    stride = spec.get("stride", 1)
    return _filled(f"z{i}", result) + (
        f"%r{i} = linalg.{op} {{dilations = dense<1> : tensor<2xi64>, "
        f"strides = dense<{stride}> : tensor<2xi64>}} ins(%in{i}, %w0 : {types['x0']}, "
        f"{types['w0']}) outs(%z{i} : {result}) -> {result}"
    )


def _attention(spec: Spec, i: str, types: dict[str, str], result: str) -> str:
    heads, tokens, width = spec["heads"], spec["tokens"], spec["width"]
    scores, one = _type((heads, tokens, tokens), "f32"), types["x0"]
    transposed = _type((heads, width, tokens), "f32")
    zeros, out = _filled(f"z{i}", scores), _filled(f"o{i}", result)
    return f"""%te{i} = tensor.empty() : {transposed}
%t{i} = linalg.transpose ins(%x1 : {one}) outs(%te{i} : {transposed}) permutation = [0, 2, 1]
{zeros}%s{i} = linalg.batch_matmul
  ins(%in{i}, %t{i} : {one}, {transposed}) outs(%z{i} : {scores}) -> {scores}
%f{i} = arith.constant dense<{width**-0.5}> : {scores}
%l{i} = arith.mulf %s{i}, %f{i} : {scores}
%pe{i} = tensor.empty() : {scores}
%p{i} = linalg.softmax dimension(2) ins(%l{i} : {scores}) outs(%pe{i} : {scores}) -> {scores}
{out}%r{i} = linalg.batch_matmul
  ins(%p{i}, %x2 : {scores}, {one}) outs(%o{i} : {result}) -> {result}"""


def _chain(spec: Spec, i: str, types: dict[str, str], result: str) -> str:
    lines, value = [], f"%in{i}"
    for n in range(spec["ops"]):
        lines.append(f"%a{n} = arith.addf {value}, %x1 : {result}")
        value = f"%a{n}"
        if not spec.get("fused"):
            lines.append(f"%b{n} = util.optimization_barrier %a{n} : {result}")
            value = f"%b{n}"
    return "\n".join([*lines, f"%r{i} = util.optimization_barrier {value} : {result}"])


_BODIES: dict[str, Callable[[Spec, str, dict[str, str], str], str]] = {
    "matmul": _matmul,
    "binary": _elementwise,
    "unary": _elementwise,
    "softmax": _softmax,
    "layer_norm": _norm,
    "rms_norm": _norm,
    "reduce": _reduce,
    "transpose": _transpose,
    "gather": _gather,
    "conv": _conv,
    "attention": _attention,
    "chain": _chain,
}
