"""rich's console with escaped text, as in `console`: tables and colours are ours, the text may be anyone's."""

from __future__ import annotations

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
