"""HTML in one file: no script, no address to load from, light and dark, and to be printed.

It is XML too, so that any reader of either takes it. Every word goes through `said.safe`; what is given as
`Markup` is markup, and nothing else is.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NewType

from firesteel.bench.report.format import safe

Markup = NewType("Markup", str)
_CUT_CELL = 400
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
.made { border: 2px dashed currentColor; padding: .4rem .8rem; font-weight: 600; }
@media print {
  body { max-width: none; padding: 0; font-size: 10pt; } table { font-size: 7pt; }
  figure, tr, .verdict { break-inside: avoid; } h2, h3 { break-after: avoid; } .wide { overflow: visible; }
}
"""


def page(title: str, body: Iterable[Markup]) -> str:
    policy = "default-src 'none'; style-src 'unsafe-inline'"
    head = (
        '<!DOCTYPE html>\n<html xmlns="http://www.w3.org/1999/xhtml" lang="en">\n<head>\n'
        '<meta charset="utf-8"/>\n'
        f'<meta http-equiv="Content-Security-Policy" content="{safe(policy)}"/>\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1"/>\n'
        f"<title>{safe(title)}</title>\n<style>{_CSS}</style>\n</head>\n<body>\n<main>"
    )
    return "\n".join([head, *body, "</main>\n</body>\n</html>\n"])


def heading(level: int, words: str) -> Markup:
    return Markup(f"<h{level}>{safe(words)}</h{level}>")


def paragraph(words: str, kind: str = "") -> Markup:
    named = f' class="{kind}"' if kind else ""
    return Markup(f"<p{named}>{safe(words, 1000)}</p>")


def link(address: str) -> Markup:
    """Only the web's own addresses are led to; others are words."""
    if not address.startswith(("https://", "http://")):
        return Markup(safe(address))
    return Markup(f'<a href="{safe(address)}" rel="noreferrer">{safe(address)}</a>')


def drawing(svg: str) -> Markup:
    return Markup(f"<figure>{svg}</figure>")


def table(
    head: Sequence[str], rows: Iterable[Sequence[str | Markup]], caption: str, most: int = 200
) -> Markup:
    """The first cell of a row is its name."""
    every = list(rows)
    names = "".join(f'<th scope="col">{safe(name)}</th>' for name in head)
    lines = "\n".join(_line(row) for row in every[:most])
    left = f"<p>{len(every) - most:,} more rows are left out.</p>" if len(every) > most else ""
    named = f"<caption>{safe(caption)}</caption>" if caption else ""
    top = f"<thead><tr>{names}</tr></thead>" if head else ""
    return Markup(f'<div class="wide"><table>{named}{top}<tbody>\n{lines}\n</tbody></table></div>{left}')


def _line(row: Sequence[str | Markup]) -> str:
    cells = [_cell(cell) for cell in row]
    return f'<tr><th scope="row"{cells[0]}</th>{"".join(f"<td{cell}</td>" for cell in cells[1:])}</tr>'


def _cell(words: str) -> str:
    """A long one may be broken anywhere, so that the table keeps to the page."""
    long = ' class="long"' if len(words) > 32 else ""
    return f"{long}>{safe(words, _CUT_CELL)}"


def listing(items: Iterable[str], most: int = 60) -> Markup:
    every = list(items)
    lines = "\n".join(f"<li>{safe(item, 600)}</li>" for item in every[:most])
    left = f"\n<li>and {len(every) - most:,} more</li>" if len(every) > most else ""
    return Markup(f"<ul>\n{lines}{left}\n</ul>")
