"""A self-contained HTML page: its style, and escaping.

Functions take plain text and return HTML, except for parameters called `html`.
"""

from collections.abc import Iterable, Sequence
from html import escape

COLOURS = {
    # name: (on a light page, on a dark one). Those of the curves are after the palette of Okabe
    # and Ito, which people with any kind of colour vision can tell apart.
    "page": ("#ffffff", "#15171a"),
    "raised": ("#f5f6f8", "#202328"),
    "ink": ("#1b1d20", "#e6e8ea"),
    "muted": ("#5b6168", "#a3a9b1"),
    "line": ("#d5d9de", "#3b4047"),
    "training": ("#0072b2", "#56b4e9"),
    "validation": ("#d55e00", "#ff9a3d"),
    "event": ("#00795a", "#3ccfa4"),
    "raw": ("#8a9097", "#7d848c"),
    "short": ("#b0568c", "#e39ac4"),
    "long": ("#a87400", "#edc04a"),
}


def _variables(shade: int) -> str:
    return "".join(f"--{name}:{pair[shade]};" for name, pair in COLOURS.items())


STYLE = (
    f"""
:root {{ color-scheme: light dark; {_variables(0)} }}
@media (prefers-color-scheme: dark) {{ :root {{ {_variables(1)} }} }}
@media print {{ :root {{ color-scheme: light; {_variables(0)} }} }}
"""
    + """
* { box-sizing: border-box; }
html { -webkit-text-size-adjust: 100%; }
body { max-width: 47rem; margin: 0 auto; padding: 2.5rem 1.25rem 3rem; background: var(--page);
  color: var(--ink); font: 1rem/1.55 system-ui, "Segoe UI", Roboto, "Helvetica Neue", sans-serif; }
h1 { margin: 0; font-size: 1.7rem; line-height: 1.25; letter-spacing: -0.01em; }
h2 { margin: 2.4rem 0 0.6rem; font-size: 1.15rem; }
p { margin: 0.6rem 0; }
.source, .note, figcaption, caption, footer { color: var(--muted); font-size: 0.875rem; }
.source { margin-top: 0.3rem; }
.lead { margin-top: 1.1rem; font-size: 1.075rem; }
.verdict { margin-top: 0.9rem; padding-left: 0.8rem; border-left: 3px solid currentColor;
  font-size: 1.15rem; }
strong, td, th { font-variant-numeric: tabular-nums lining-nums; }
code, pre { font: 0.875em/1.5 ui-monospace, "SF Mono", Menlo, Consolas, "DejaVu Sans Mono",
  monospace; }
code { overflow-wrap: anywhere; }
.wide { overflow-x: auto; }
table { width: 100%; border-collapse: collapse; }
th, td { padding: 0.3rem 0 0.3rem 1.25rem; text-align: right; vertical-align: baseline;
  white-space: nowrap; font-weight: normal; }
th:first-child { width: 100%; min-width: 11rem; padding-left: 0; text-align: left;
  white-space: normal; }
thead th { border-bottom: 1px solid var(--line); color: var(--muted); font-size: 0.875rem; }
tbody tr:first-child th { padding-top: 0.9rem; font-weight: 600; }
tr.best td:not(:last-child) { font-weight: 600; }
tr.expected > *, td.error { color: var(--muted); }
tr td.error { padding-left: 0.35rem; font-size: 0.875rem; font-weight: normal; text-align: left; }
figure { margin: 0.8rem 0 0; }
figure svg { display: block; width: 100%; min-width: 27rem; height: auto; }
figure svg text { font-family: inherit !important; font-variant-numeric: tabular-nums; }
.sample { margin: 0.7rem 0; padding: 0.7rem 0.9rem; border-left: 3px solid var(--line);
  background: var(--raised); white-space: pre-wrap; overflow-wrap: anywhere; font-size: 0.94rem; }
dl { display: grid; grid-template-columns: max-content 1fr; gap: 0.35rem 1.25rem;
  margin: 0.6rem 0; }
dt { color: var(--muted); }
dd { margin: 0; min-width: 0; }
details { margin-top: 1rem; }
summary { cursor: pointer; }
pre { margin: 0.6rem 0 0; padding: 0.8rem 1rem; background: var(--raised); overflow-x: auto; }
footer { margin-top: 2.5rem; padding-top: 0.8rem; border-top: 1px solid var(--line); }
@media (max-width: 34rem) {
  dl { grid-template-columns: 1fr; gap: 0; }
  dd { margin-bottom: 0.6rem; }
}
@media print {
  body { max-width: none; padding: 0; font-size: 10pt; }
  figure, .sample, tr { break-inside: avoid; }
  h2 { break-after: avoid; }
  figure svg { min-width: 0; }
  pre { white-space: pre-wrap; }
  details::details-content { content-visibility: visible; block-size: auto; }
}
"""
)


def page(title: str, html: Iterable[str]) -> str:
    """The whole document. Its policy forbids every script and every request."""
    body = "\n".join(html)
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{escape(title)}</title>
<style>{STYLE}</style>
</head>
<body>
{body}
</body>
</html>
"""


def strong(text: str) -> str:
    return f"<strong>{escape(text)}</strong>"


def code(text: str) -> str:
    return f"<code>{escape(text)}</code>"


def paragraph(html: str, kind: str = "") -> str:
    attribute = f' class="{kind}"' if kind else ""
    return f"<p{attribute}>{html}</p>"


def section(heading: str, html: Iterable[str]) -> str:
    return "\n".join(["<section>", f"<h2>{escape(heading)}</h2>", *html, "</section>"])


def commands(pairs: Sequence[tuple[str, str]]) -> str:
    """Each command with its purpose."""
    rows = [f"<dt>{escape(purpose)}</dt><dd>{code(command)}</dd>" for purpose, command in pairs]
    return "\n".join(["<dl>", *rows, "</dl>"])


def figure(svg: str, caption: str) -> str:
    return (
        f'<figure><div class="wide">{svg}</div><figcaption>{escape(caption)}</figcaption></figure>'
    )


def number(value: float, decimals: int) -> str:
    """1234.5 -> '1,234.50'; a number too long to read in full, in powers of ten."""
    return f"{value:,.{decimals}f}" if value < 1e6 else f"{value:.2e}"


def folded(summary: str, text: str) -> str:
    """Plain text, folded until opened."""
    return f"<details><summary>{escape(summary)}</summary><pre>{escape(text)}</pre></details>"
