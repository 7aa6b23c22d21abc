"""Rich consoles, tables and progress bars that escape control characters and ignore markup."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.progress import Progress, ProgressColumn, Task, TextColumn
from rich.segment import Segment
from rich.text import Text

from .formatting import printable
from .terminal import PrintableStream, printable_streams, raw_stream

if TYPE_CHECKING:
    from rich.console import ConsoleOptions, RenderableType


class PrintableConsole(Console):
    """Console that escapes control characters and ignores markup.

    Texts are escaped before layout, which keeps table columns aligned.
    """

    def __init__(self, *, stderr: bool = False, width: int | None = None) -> None:
        file = raw_stream(sys.stderr if stderr else sys.stdout)
        super().__init__(file=file, width=width, highlight=False, markup=False, emoji=False)

    def render_str(self, text: str, **options: Any) -> Text:
        """Return the text of a table cell with escapes."""
        return super().render_str(printable(text), **options)

    def render(
        self, renderable: RenderableType, options: ConsoleOptions | None = None
    ) -> Iterable[Segment]:
        """Yield the segments of a renderable with control characters escaped."""
        for segment in super().render(renderable, options):
            text = segment.text if segment.control else printable(segment.text)
            yield segment if text == segment.text else Segment(text, segment.style)


class DescriptionColumn(TextColumn):
    """Progress bar column with the task's description."""

    def __init__(self) -> None:
        super().__init__("{task.description}", markup=False)

    def render(self, task: Task) -> Text:
        """Return the description of a task, escaped and on one line."""
        return Text(printable(task.description, one_line=True))


class ProgressBars(Progress):
    """Progress bars on stderr, hidden if stderr is not a terminal.

    Parameters
    ----------
    *columns
        Columns as for rich's Progress; use `DescriptionColumn` for descriptions.
    quiet
        Never show the bars.
    """

    def __init__(self, *columns: ProgressColumn, quiet: bool = False) -> None:
        console = PrintableConsole(stderr=True)
        hidden = quiet or not console.is_terminal
        super().__init__(*columns, console=console, transient=True, disable=hidden)
        self._streams = ExitStack()

    def start(self) -> None:
        """Show the bars. Rich prints other output above them."""
        are_printable = isinstance(sys.stderr, PrintableStream)
        super().start()
        if are_printable:
            self._streams.enter_context(printable_streams())

    def stop(self) -> None:
        """Hide the bars."""
        self._streams.close()
        super().stop()
