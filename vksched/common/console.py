"""Console: tables and progress bars of rich, in which no name is an order or markup."""

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
    """A console that writes control characters as escapes and takes no markup.

    Texts are made printable before they are laid out, so that tables stay straight.
    """

    def __init__(self, *, stderr: bool = False, width: int | None = None) -> None:
        file = raw_stream(sys.stderr if stderr else sys.stdout)
        super().__init__(file=file, width=width, highlight=False, markup=False, emoji=False)

    def render_str(self, text: str, **options: Any) -> Text:
        """Return a text of a table's cell."""
        return super().render_str(printable(text), **options)

    def render(
        self, renderable: RenderableType, options: ConsoleOptions | None = None
    ) -> Iterable[Segment]:
        """Yield the parts of anything, printable also where it was made a text elsewhere."""
        for segment in super().render(renderable, options):
            text = segment.text if segment.control else printable(segment.text)
            yield segment if text == segment.text else Segment(text, segment.style)


class Described(TextColumn):
    """What a progress bar is for."""

    def __init__(self) -> None:
        super().__init__("{task.description}", markup=False)

    def render(self, task: Task) -> Text:
        """Return the description of a task, printable and on one line."""
        return Text(printable(task.description, one_line=True))


class Bars(Progress):
    """Progress bars on stderr, where that is a terminal.

    Parameters
    ----------
    *columns
        As those of rich's Progress; `Described` is the one for descriptions.
    quiet
        Show nothing.
    """

    def __init__(self, *columns: ProgressColumn, quiet: bool = False) -> None:
        console = PrintableConsole(stderr=True)
        hidden = quiet or not console.is_terminal
        super().__init__(*columns, console=console, transient=True, disable=hidden)
        self._streams = ExitStack()

    def start(self) -> None:
        """Show the bars. Rich has what is printed meanwhile appear above them."""
        are_printable = isinstance(sys.stderr, PrintableStream)
        super().start()
        if are_printable:
            self._streams.enter_context(printable_streams())

    def stop(self) -> None:
        """Hide the bars."""
        self._streams.close()
        super().stop()
