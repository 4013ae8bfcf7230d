"""How the page of the experiments looks, on top of the style of reports."""

from __future__ import annotations

__all__ = ["CSS"]

CSS = """
html { scroll-behavior: smooth; scroll-padding-top: 60px; }
a { color: var(--real); text-decoration-thickness: 1px; text-underline-offset: 2px; }
code {
  font: 0.88em ui-monospace, SFMono-Regular, Menlo, Consolas, "DejaVu Sans Mono", monospace;
  background: color-mix(in srgb, var(--soft) 14%, transparent); border-radius: 5px; padding: 1px 5px;
  overflow-wrap: anywhere;
}
header .lead { max-width: 76ch; font-size: 1.05rem; }
nav {
  position: sticky; top: 0; z-index: 2; background: color-mix(in srgb, var(--page) 92%, transparent);
  backdrop-filter: blur(6px); border-bottom: 1px solid var(--line); margin-top: 6px;
}
nav div {
  max-width: 1120px; margin: 0 auto; padding: 9px 20px; display: flex; gap: 6px; overflow-x: auto;
  scrollbar-width: thin;
}
nav a {
  flex: none; font-size: 0.82rem; padding: 3px 11px; border-radius: 999px; text-decoration: none;
  color: var(--ink); background: var(--card); border: 1px solid var(--line);
}
nav a:hover { border-color: var(--real); color: var(--real); }
.summary { list-style: none; margin: 18px 0; padding: 4px 20px; }
.summary li {
  display: grid; grid-template-columns: minmax(0, 17rem) minmax(0, 1fr) 5.5rem; gap: 4px 22px; padding: 11px 0;
  border-bottom: 1px solid var(--line); align-items: baseline;
}
.summary li:last-child { border-bottom: 0; }
.summary a { font-weight: 620; text-decoration: none; }
.summary a:hover { text-decoration: underline; }
.summary p { margin: 0; font-size: 0.93rem; }
.summary .time { text-align: right; color: var(--soft); font-size: 0.85rem; font-variant-numeric: tabular-nums; }
.flag { color: var(--fair); font-weight: 620; }
.experiment { padding: 26px 30px 22px; }
.experiment h2 { font-size: 1.4rem; margin-bottom: 12px; letter-spacing: -0.015em; }
.experiment h3 { font-size: 1rem; margin: 26px 0 0; }
.experiment > p, .experiment > ul { max-width: 78ch; }
.experiment figure { margin: 26px 0 0; }
.experiment img { background: #fff; border: 1px solid var(--line); border-radius: 10px; padding: 8px; }
.experiment figcaption { font-size: 0.875rem; margin-top: 8px; max-width: 84ch; }
table.results { width: auto; min-width: min(100%, 34rem); margin: 8px 0 0; }
.results th { vertical-align: bottom; white-space: normal; border-bottom: 2px solid var(--line); }
.results td { max-width: 26rem; overflow: visible; }
.results th.words, .results td.words { text-align: left; white-space: normal; min-width: 7rem; }
.results tbody tr:hover td { background: color-mix(in srgb, var(--soft) 7%, var(--card)); }
.results tr.ours td { background: color-mix(in srgb, var(--real) 11%, var(--card)); font-weight: 620; }
.results tr.ours td:first-child { box-shadow: inset 4px 0 0 var(--real); }
.results .published td, .results td em { color: var(--soft); font-weight: 400; }
.absent {
  border-left: 4px solid var(--fair); background: color-mix(in srgb, var(--fair) 9%, transparent);
  border-radius: 0 10px 10px 0; padding: 10px 16px; margin: 22px 0 0; font-size: 0.9rem;
}
.absent ul { margin: 4px 0 0; padding-left: 18px; overflow-wrap: anywhere; }
.damaged { border-left: 4px solid var(--poor); }
.how {
  margin: 26px 0 0; padding-top: 12px; border-top: 1px solid var(--line); font-size: 0.8rem; color: var(--soft);
}
.how p { margin: 0 0 5px; }
@media (prefers-color-scheme: dark) {
  .experiment img { filter: brightness(0.93); border-color: transparent; }
}
@media (max-width: 860px) {
  .summary li { grid-template-columns: minmax(0, 1fr) auto; }
  .summary p { grid-column: 1 / -1; grid-row: 2; }
}
@media (max-width: 560px) {
  nav div { padding: 8px 12px; }
  .summary { padding: 2px 14px; }
  .experiment { padding: 16px 14px; }
  .experiment h2 { font-size: 1.2rem; }
  .experiment img { padding: 3px; border-radius: 7px; }
  .experiment .wide img { width: 620px; max-width: none; }
  .results th:first-child, .results td:first-child {
    position: sticky; left: 0; background: var(--card); white-space: normal; min-width: 6.5rem; max-width: 9.5rem;
  }
}
@media print { nav { display: none; } .experiment { break-inside: auto; } }
"""
