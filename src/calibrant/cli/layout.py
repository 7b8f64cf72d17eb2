"""rich's console and progress bar, with text escaped as in `console`."""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import Any

import rich.console
from rich.segment import Segment

from calibrant.errors import escaped


class Console(rich.console.Console):
    """rich's console, which escapes all text that it renders and keeps its own control codes."""

    def render(self, *args: Any, **kwargs: Any) -> Iterable[Segment]:
        for text, style, control in super().render(*args, **kwargs):
            yield Segment(text, style, control) if control else Segment(escaped(text, lines=True), style)

    def say(self, line: str, style: str = "") -> None:
        """Print one line as it is: no markup, no highlighted numbers, wrapped by the terminal only."""
        self.print(escaped(line), style=style, highlight=False, markup=False, soft_wrap=True)


class Bar:
    """A progress bar on stderr, shown only in a terminal and after two seconds."""

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
