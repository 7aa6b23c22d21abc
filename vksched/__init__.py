"""vksched: compute graphs on every Vulkan device you have, planned once, replayed with little host
work.

    x = vs.input("x", shape=(64, 1024))
    y = vs.softmax(vs.relu(x @ vs.weight(w1)) @ vs.weight(w2))
    with vs.Scheduler() as sched:
        run = sched.compile(y)
        probs = run(x=batch)
"""

from __future__ import annotations

from .common.op_loaders import register_op_loader
from .common.version import __version__ as __version__


def _declare_onnx_op(name: str) -> None:
    from .common.errors import ModelFormatError

    try:
        from .importers.onnx.nodes.cpu_node import declare
    except ImportError as error:
        raise ModelFormatError(
            f'{name} needs the onnx package; try pip install "vksched[onnx]"'
        ) from error
    declare(name)


register_op_loader("onnx.", _declare_onnx_op)

TYPE_CHECKING = False  # as in typing, which takes longer to import than all of this

if TYPE_CHECKING:
    from .api import *  # noqa: F403
    from .ops import *  # noqa: F403
else:

    def __getattr__(name):
        """Returns one of the names in `api`, or a module below, imported at the first use: so the
        command line starts quickly, and is there to end when Ctrl-C is pressed meanwhile.
        """
        if name.startswith("__") and name != "__all__":  # Python itself looks for such
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        from importlib import import_module

        api = import_module(".api", __name__)
        if name == "__all__":
            return api.__all__
        if name in globals():  # a module that came with it
            return globals()[name]
        if name not in api.__all__:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        globals()[name] = found = getattr(api, name)
        return found

    def __dir__():
        return sorted({*globals(), *__getattr__("__all__")})
