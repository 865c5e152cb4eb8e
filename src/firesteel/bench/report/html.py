"""HTML in one file: no script, nothing to load from elsewhere, light and dark, and fit to print.

It is well-formed XML too. All text is escaped here; only `Markup` is taken as markup.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NewType

from firesteel.render.svg import escape_text

Markup = NewType("Markup", str)
_MAX_CELL = 400
_CSS = """
:root { color-scheme: light dark; --ink: #1b1f23; --paper: #fff; --line: #c9ced4; --quiet: #57606a;
  --card: #f5f7f9; }
@media screen and (prefers-color-scheme: dark) {
  :root { --ink: #e4e8ec; --paper: #14181d; --line: #3c444d; --quiet: #a0a9b3; --card: #1d232a; }
}
body { margin: 0 auto; max-width: 60rem; padding: 1.5rem; background: var(--paper); color: var(--ink);
  font: 16px/1.5 system-ui, sans-serif; overflow-wrap: anywhere; }
h1 { font-size: 1.6rem; line-height: 1.25; margin: 0 0 .25rem; }
h2 { font-size: 1.2rem; margin: 2.2rem 0 .6rem; }
h3 { font-size: 1rem; margin: 1.2rem 0 .4rem; }
p { margin: .4rem 0; } .quiet { color: var(--quiet); }
.verdict { list-style: none; padding: .8rem 1rem; margin: 1rem 0; background: var(--card);
  border: 1px solid var(--line); border-radius: 6px; }
.verdict li { margin: .35rem 0; display: grid; grid-template-columns: 7rem 1fr; }
figure { margin: .5rem 0; } svg { width: 100%; height: auto; max-width: 52rem; display: block; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; font-size: .84rem; margin: .5rem 0; font-variant-numeric: tabular-nums; }
th, td { border-bottom: 1px solid var(--line); padding: .25rem .6rem .25rem 0; text-align: left;
  vertical-align: top; white-space: nowrap; }
td.long, th.long { white-space: normal; overflow-wrap: anywhere; min-width: 9rem; }
thead th { white-space: normal; }
th { font-weight: 600; }
.alert { border: 2px dashed currentColor; padding: .4rem .8rem; font-weight: 600; }
@media print {
  body { max-width: none; padding: 0; font-size: 10pt; } table { font-size: 7pt; }
  figure, tr, .verdict { break-inside: avoid; } h2, h3 { break-after: avoid; } .wide { overflow: visible; }
}
"""


def document(title: str, body: Iterable[Markup]) -> str:
    policy = escape_text("default-src 'none'; style-src 'unsafe-inline'")
    head = (
        '<!DOCTYPE html>\n<html xmlns="http://www.w3.org/1999/xhtml" lang="en">\n<head>\n'
        '<meta charset="utf-8"/>\n'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}"/>\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1"/>\n'
        f"<title>{escape_text(title)}</title>\n<style>{_CSS}</style>\n</head>\n<body>\n<main>"
    )
    return "\n".join([head, *body, "</main>\n</body>\n</html>\n"])


def element(tag: str, text: str, style_class: str = "") -> Markup:
    attribute = f' class="{style_class}"' if style_class else ""
    return Markup(f"<{tag}{attribute}>{escape_text(text, 1000)}</{tag}>")


def bullets(entries: Sequence[str], limit: int = 60) -> Markup:
    shown = [*entries[:limit], *([f"and {len(entries) - limit:,} more"] if len(entries) > limit else [])]
    lines = "\n".join(f"<li>{escape_text(entry, 600)}</li>" for entry in shown)
    return Markup(f"<ul>\n{lines}\n</ul>")


def table(head: Sequence[str], rows: Sequence[Sequence[str]], limit: int = 200) -> Markup:
    """The first cell of a row is its heading."""
    columns = "".join(f'<th scope="col">{escape_text(name)}</th>' for name in head)
    top = f"<thead><tr>{columns}</tr></thead>" if head else ""
    lines = [
        f'<tr><th scope="row"{_cell(row[0])}</th>{"".join(f"<td{_cell(cell)}</td>" for cell in row[1:])}</tr>'
        for row in rows[:limit]
    ]
    body = "\n".join(["<tbody>", *lines, "</tbody>"])
    left_out = f"<p>{len(rows) - limit:,} more rows are left out.</p>" if len(rows) > limit else ""
    return Markup(f'<div class="wide"><table>{top}{body}</table></div>{left_out}')


def _cell(text: str) -> str:
    """Long text may wrap anywhere, so that the table stays inside the page."""
    wraps = ' class="long"' if len(text) > 32 else ""
    return f"{wraps}>{escape_text(text, _MAX_CELL)}"
