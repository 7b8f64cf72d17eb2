"""The report's page: template, style and the one small script, as package data. Nothing is fetched at view time."""

from __future__ import annotations

import base64
import hashlib
import json
from functools import cache
from importlib.resources import files
from typing import Any

from calibrant.errors import escaped
from calibrant.provenance import provenance
from calibrant.report.numbers import sentence
from calibrant.types import jsonable


def read(name: str) -> str:
    return files(__name__).joinpath(name).read_text(encoding="utf-8")


def script_hash(script: str) -> str:
    """Return the hash by which the Content-Security-Policy admits this script and no other."""
    digest = hashlib.sha256(script.encode("utf-8")).digest()
    return f"sha256-{base64.b64encode(digest).decode('ascii')}"


def json_for_html(value: Any) -> str:
    """Return JSON that is safe inside HTML: <, >, & and the two line separators of JavaScript are escaped."""
    text = json.dumps(jsonable(value), separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    for character in "<>&\u2028\u2029":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return text


def render(template: str, command: str, data: Any, **content: Any) -> str:
    """Return a page in the common frame. The script reads `data`; `command` says how to make the page again."""
    from markupsafe import Markup

    script = read("report.js")
    framed = {
        "style": Markup(read("report.css")),
        "script": Markup(script),
        "script_hash": script_hash(script),
        "data": Markup(json_for_html(data)),
        "made": provenance(),
        "command": command,
    }
    text: str = _environment().get_template(template).render(**framed, **content)
    return text.lstrip()


@cache
def _environment() -> Any:
    """Return jinja2's environment: all text is escaped unless it is Markup, and an undefined name is an error."""
    import jinja2
    from markupsafe import Markup

    def finalize(value: Any) -> Any:
        return escaped(value) if isinstance(value, str) and not isinstance(value, Markup) else value

    environment = jinja2.Environment(
        loader=jinja2.FunctionLoader(read),
        autoescape=True,
        finalize=finalize,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["sentence"] = sentence
    return environment
