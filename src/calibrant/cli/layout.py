"""rich's console and progress bar with escaped text, as in `console`: colours are ours, the text may be anyone's."""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import Any

import rich.console
from rich.segment import Segment
from rich.text import Text

from calibrant.errors import escaped


class Console(rich.console.Console):
    """rich's console; what it renders is escaped, what moves the cursor or colours is its own."""

    def render(self, *args: Any, **kwargs: Any) -> Iterable[Segment]:
        for text, style, control in super().render(*args, **kwargs):
            yield Segment(text, style, control) if control else Segment(escaped(text, lines=True), style)

    def headed(self, word: str, line: str) -> None:
        """One line whose first word stands out."""
        self.print(Text.assemble((escaped(word), "bold"), escaped(line)))

    def say(self, line: str, style: str = "") -> None:
        """One line that wraps only where the terminal does; brackets and numbers are no markup."""
        self.print(escaped(line), style=style, highlight=False, markup=False, soft_wrap=True)


class Bar:
    """A progress bar on stderr that appears only where someone looks and the work takes longer than two seconds."""

    def __init__(self, title: str) -> None:
        from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

        console = Console(stderr=True)
        columns = (TextColumn("{task.description}", markup=False), BarColumn(), TimeElapsedColumn())
        self._bar = Progress(*columns, console=console, transient=True, disable=not console.is_terminal)
        self._task, self._title = self._bar.add_task(title, total=1.0), title
        self._began, self._shown = time.monotonic(), False

    def share(self, what: str, share: float) -> None:
        if not self._shown and time.monotonic() - self._began > 2:
            self._bar.start()
            self._shown = True
        self._bar.update(self._task, completed=share, description=escaped(what))

    def rows(self, done: int, total: int) -> None:
        self.share(f"{self._title}: {done:,} of {total:,} rows", done / total)

    def __enter__(self) -> Bar:
        return self

    def __exit__(self, *_: object) -> None:
        if self._shown:
            self._bar.stop()
