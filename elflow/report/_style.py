"""How a report looks: light and dark, wide and narrow."""

from __future__ import annotations

__all__ = ["CSS"]

CSS = """
:root {
  color-scheme: light dark;
  --page: #f4f6f8; --card: #ffffff; --ink: #1d2a38; --soft: #5b6977; --line: #d8dee5;
  --real: #2b6cb0; --sampled: #d4681f; --good: #1c7f45; --fair: #946000; --look: #bb3326;
}
@media (prefers-color-scheme: dark) {
  :root {
    --page: #10151b; --card: #19212a; --ink: #e5ebf1; --soft: #9caab8; --line: #34404d;
    --real: #68a8ea; --sampled: #f29b56; --good: #53c78e; --fair: #e2ac45; --look: #f47f75;
  }
  .pairs img { filter: brightness(1.35); }
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
.soft, .lead, figcaption, .note { color: var(--soft); }
.note { font-size: 0.875rem; max-width: 84ch; margin: 12px 0 0; }
.card {
  background: var(--card); border: 1px solid var(--line); border-radius: 14px; padding: 20px;
  margin: 18px 0; min-width: 0;
}
.two { display: grid; grid-template-columns: repeat(2, minmax(0, 1fr)); gap: 18px; margin: 18px 0; }
.two > .card { margin: 0; }
svg, img { display: block; width: 100%; height: auto; }
svg text { font-family: system-ui, -apple-system, "Segoe UI", Roboto, "Noto Sans", sans-serif; }
figure { margin: 0; min-width: 0; }
figcaption { font-size: 0.8rem; line-height: 1.35; overflow-wrap: anywhere; }
figcaption b { color: var(--ink); font-weight: 600; display: block; }
.tiles { display: grid; grid-template-columns: repeat(4, minmax(0, 1fr)); gap: 14px; margin: 20px 0; }
.tile {
  background: var(--card); border: 1px solid var(--line); border-top: 4px solid var(--level, var(--line));
  border-radius: 12px; padding: 14px 16px; min-width: 0;
}
.tile h3 { font-size: 0.8rem; font-weight: 600; color: var(--soft); margin: 0; }
.tile .value { font-size: 1.6rem; font-weight: 650; letter-spacing: -0.02em; line-height: 1.25; margin: 4px 0 0; }
.tile .value small { font-size: 0.6em; font-weight: 500; letter-spacing: 0; white-space: nowrap; }
.tile .unit { font-size: 0.75rem; color: var(--soft); margin: 0 0 8px; }
.tile p { font-size: 0.85rem; line-height: 1.4; margin: 0; overflow-wrap: anywhere; }
.level { color: var(--level, var(--soft)); font-weight: 650; }
.good { --level: var(--good); } .fair { --level: var(--fair); } .look { --level: var(--look); }
.legend { display: flex; flex-wrap: wrap; gap: 4px 18px; font-size: 0.85rem; color: var(--soft); margin: 6px 0 12px; }
.legend span::before {
  content: ""; display: inline-block; width: 12px; height: 12px; border-radius: 3px; margin-right: 6px;
  background: var(--swatch, var(--line)); vertical-align: -1px;
}
.real { --swatch: var(--real); } .sampled { --swatch: var(--sampled); }
.band { --swatch: color-mix(in srgb, var(--soft) 35%, transparent); }
.positive { --swatch: #764ac7; } .negative { --swatch: #1a9985; }
.small {
  display: grid; grid-template-columns: repeat(auto-fill, minmax(215px, 1fr)); gap: 18px 20px; align-items: start;
}
.small + .small { margin-top: 22px; }
.bars { list-style: none; margin: 6px 0 0; padding: 0; font-size: 0.75rem; line-height: 1.3; }
.bars li {
  display: grid; grid-template-columns: minmax(0, 5fr) minmax(0, 6fr); gap: 8px; align-items: center; padding: 1px 0;
}
.bars span { overflow: hidden; text-overflow: ellipsis; white-space: nowrap; color: var(--soft); }
.bars i {
  display: block; height: 5px; border-radius: 0 2px 2px 0; background: var(--swatch); width: calc(100% * var(--w));
}
.bars i.real { opacity: 0.55; }
.bars .others { display: block; color: var(--soft); }
.pairs {
  display: grid; grid-template-columns: repeat(var(--n), minmax(0, 1fr)); gap: 8px; max-width: 960px; margin: 0 auto;
}
.pairs > * { grid-row: var(--r); grid-column: var(--c); }
.pairs figure { border: 1px solid var(--line); border-radius: 8px; overflow: hidden; }
.pairs .self {
  display: flex; flex-direction: column; align-items: center; justify-content: center; text-align: center;
  font-size: 0.85rem; line-height: 1.25; padding: 6px; overflow: hidden; overflow-wrap: anywhere;
}
.pairs .self small { color: var(--soft); }
.pairs .both { display: none; }
.heats { display: grid; grid-template-columns: repeat(3, minmax(0, 1fr)); gap: 18px; }
.scroll { overflow-x: auto; -webkit-overflow-scrolling: touch; }
table { border-collapse: collapse; font-size: 0.85rem; font-variant-numeric: tabular-nums; width: 100%; }
th, td { text-align: right; padding: 5px 10px; border-bottom: 1px solid var(--line); white-space: nowrap; }
th { color: var(--soft); font-weight: 600; }
td { max-width: 16rem; overflow: hidden; text-overflow: ellipsis; }
th:first-child, td:first-child { text-align: left; }
tr:last-child td { border-bottom: 0; }
td.extreme { color: var(--look); font-weight: 650; }
td small { display: block; color: var(--soft); }
table.figures { margin: 10px 0 0; }
.figures td:first-child { white-space: normal; overflow-wrap: anywhere; }
.gauge { position: relative; margin: 34px 0 30px; height: 10px; border-radius: 5px; background: var(--zones); }
.gauge b, .gauge i, .gauge u { position: absolute; left: var(--at); }
.gauge b, .gauge i { transform: translateX(calc(-1 * var(--at))); font-size: 0.8rem; white-space: nowrap; }
.gauge b { bottom: 16px; }
.gauge i { top: 14px; color: var(--soft); font-style: normal; }
.gauge u { top: -6px; width: 3px; height: 22px; margin-left: -1.5px; border-radius: 2px; background: var(--ink); }
footer { max-width: 1120px; margin: 0 auto; padding: 4px 20px 40px; font-size: 0.8rem; color: var(--soft); }
@media (max-width: 860px) {
  .two, .heats { grid-template-columns: minmax(0, 1fr); }
  .heats figure { max-width: 420px; margin: 0 auto; width: 100%; }
  .tiles { grid-template-columns: repeat(2, minmax(0, 1fr)); }
}
@media (max-width: 560px) {
  main, header { padding: 0 12px; }
  header { padding-top: 22px; }
  h1 { font-size: 1.5rem; }
  .card { padding: 14px; border-radius: 12px; }
  .tile { padding: 11px 12px; }
  .tile .value { font-size: 1.3rem; }
  th, td { padding: 5px 6px; }
  .figures th, .figures td { padding: 5px 4px; }
  table.figures { font-size: 0.78rem; }
  .small { grid-template-columns: repeat(auto-fill, minmax(145px, 1fr)); gap: 16px 14px; }
  .pairs { grid-template-columns: repeat(2, minmax(0, 1fr)); gap: 6px; }
  .pairs > * { grid-row: auto; grid-column: auto; order: var(--k); }
  .pairs .self { display: none; }
  .pairs .both { display: block; grid-column: 1 / -1; font-size: 0.8rem; margin-top: 8px; overflow-wrap: anywhere; }
}
@media print { body { background: none; } .card, .tile { break-inside: avoid; } }
"""
