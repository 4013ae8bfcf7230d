"""Self-contained HTML pages: skeleton, style sheet for light and dark, escaping, embedded images."""

from __future__ import annotations

import base64
import html

from elflow.report._format import to_printable

__all__ = ["BASE_CSS", "escape", "render_document", "to_data_uri"]

CONTENT_POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"
"""Content security policy, which forbids a page to load anything and to run scripts."""

BASE_CSS = """
:root {
  color-scheme: light dark;
  --page: #f4f6f8; --card: #ffffff; --ink: #1d2a38; --soft: #5b6977; --line: #d8dee5;
  --real: #2b6cb0; --sampled: #d4681f; --good: #1c7f45; --fair: #946000; --poor: #bb3326;
}
@media (prefers-color-scheme: dark) {
  :root {
    --page: #10151b; --card: #19212a; --ink: #e5ebf1; --soft: #9caab8; --line: #34404d;
    --real: #68a8ea; --sampled: #f29b56; --good: #53c78e; --fair: #e2ac45; --poor: #f47f75;
  }
}
* { box-sizing: border-box; }
body {
  margin: 0; background: var(--page); color: var(--ink);
  font: 16px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, "Noto Sans", sans-serif;
}
main, header { max-width: 1120px; margin: 0 auto; padding: 0 20px; }
header { padding-top: 36px; }
h1 { font-size: 1.9rem; line-height: 1.2; margin: 0 0 6px; letter-spacing: -0.02em; }
h2 { font-size: 1.2rem; margin: 0 0 4px; letter-spacing: -0.01em; }
p { margin: 0 0 12px; }
a { color: var(--real); }
.lead, figcaption, .note { color: var(--soft); }
.note { font-size: 0.875rem; max-width: 84ch; margin: 12px 0 0; }
.card {
  background: var(--card); border: 1px solid var(--line); border-radius: 14px; padding: 20px;
  margin: 18px 0; min-width: 0;
}
svg, img { display: block; width: 100%; height: auto; }
svg text { font-family: system-ui, -apple-system, "Segoe UI", Roboto, "Noto Sans", sans-serif; }
figure { margin: 0; min-width: 0; }
figcaption { font-size: 0.8rem; line-height: 1.35; overflow-wrap: anywhere; }
figcaption b { color: var(--ink); font-weight: 600; display: block; }
.scroll { overflow-x: auto; -webkit-overflow-scrolling: touch; }
table { border-collapse: collapse; font-size: 0.85rem; font-variant-numeric: tabular-nums; width: 100%; }
th, td { text-align: right; padding: 5px 10px; border-bottom: 1px solid var(--line); white-space: nowrap; }
th { color: var(--soft); font-weight: 600; }
td { max-width: 16rem; overflow: hidden; text-overflow: ellipsis; }
th:first-child, td:first-child { text-align: left; }
tr:last-child td { border-bottom: 0; }
td small { display: block; color: var(--soft); }
footer { max-width: 1120px; margin: 0 auto; padding: 4px 20px 40px; font-size: 0.8rem; color: var(--soft); }
@media (max-width: 560px) {
  main, header { padding: 0 12px; }
  header { padding-top: 22px; }
  h1 { font-size: 1.5rem; }
  .card { padding: 14px; border-radius: 12px; }
  th, td { padding: 5px 6px; }
}
@media print { body { background: none; } .card { break-inside: avoid; } }
"""
"""Style sheet of `render_document`: colours as variables, headings, cards (`.card`), notes, figures and tables."""


def escape(value: object) -> str:
    """Convert anything to HTML that shows it as text on one line.

    Example:
        >>> escape("<b> & 'c'")
        '&lt;b&gt; &amp; &#x27;c&#x27;'
    """
    return html.escape(to_printable(value))


def to_data_uri(data: bytes, media_type: str = "image/png") -> str:
    """Encode a file as the address of an image that is embedded in a page.

    Example:
        >>> to_data_uri(b"...")
        'data:image/png;base64,Li4u'
    """
    return f"data:{media_type};base64,{base64.b64encode(data).decode()}"


def render_document(title: str, body: str, css: str = "") -> str:
    """Render a page that needs no other file, no network and no script.

    Arguments:
        title: The title of the page, as text.
        body: The content of the page, as HTML in which all text is escaped.
        css: Rules in addition to `BASE_CSS`.

    Example:
        >>> page = render_document("Cells & co.", "<main><p class='card'>Hello</p></main>")
        >>> page.splitlines()[6]
        '<title>Cells &amp; co.</title>'
    """
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="{CONTENT_POLICY}">
<title>{escape(title)}</title>
<style>{BASE_CSS}{css}</style>
</head>
<body>
{body}
</body>
</html>
"""
