"""Style sheet of a report, in addition to that of all pages."""

from __future__ import annotations

__all__ = ["CSS"]

CSS = """
.two { display: grid; grid-template-columns: repeat(2, minmax(0, 1fr)); gap: 18px; margin: 18px 0; }
.two > .card { margin: 0; }
.tiles { display: flex; flex-wrap: wrap; gap: 14px; margin: 20px 0; }
.tile {
  flex: 1 1 22%;
  background: var(--card); border: 1px solid var(--line); border-top: 4px solid var(--level, var(--line));
  border-radius: 12px; padding: 14px 16px; min-width: 0;
}
.tile h3 { font-size: 0.8rem; font-weight: 600; color: var(--soft); margin: 0; }
.tile .value { font-size: 1.6rem; font-weight: 650; letter-spacing: -0.02em; line-height: 1.25; margin: 4px 0 0; }
.tile .value small { font-size: 0.6em; font-weight: 500; letter-spacing: 0; white-space: nowrap; }
.tile .unit { font-size: 0.75rem; color: var(--soft); margin: 0 0 8px; }
.tile p { font-size: 0.85rem; line-height: 1.4; margin: 0; overflow-wrap: anywhere; }
.level { color: var(--level, var(--soft)); font-weight: 650; }
.good { --level: var(--good); } .fair { --level: var(--fair); } .poor { --level: var(--poor); }
.warnings { border-left: 4px solid var(--fair); }
.warnings ul { margin: 6px 0 0; padding-left: 20px; font-size: 0.875rem; overflow-wrap: anywhere; }
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
.pairs .both { display: none; }
.heats { display: grid; grid-template-columns: repeat(3, minmax(0, 1fr)); gap: 18px; }
td.extreme { color: var(--poor); font-weight: 650; }
td.reason { text-align: left; max-width: 22rem; }
table.figures { margin: 10px 0 0; }
.figures td:first-child { white-space: normal; overflow-wrap: anywhere; }
.gauge { position: relative; margin: 34px 0 30px; height: 10px; border-radius: 5px; background: var(--zones); }
.gauge b, .gauge i, .gauge u { position: absolute; left: var(--at); }
.gauge b, .gauge i { transform: translateX(calc(-1 * var(--at))); font-size: 0.8rem; white-space: nowrap; }
.gauge b { bottom: 16px; }
.gauge i { top: 14px; color: var(--soft); font-style: normal; }
.gauge u { top: -6px; width: 3px; height: 22px; margin-left: -1.5px; border-radius: 2px; background: var(--ink); }
@media (prefers-color-scheme: dark) { .pairs img { filter: brightness(1.35); } }
@media (max-width: 860px) {
  .two, .heats { grid-template-columns: minmax(0, 1fr); }
  .heats figure { max-width: 420px; margin: 0 auto; width: 100%; }
  .tile { flex-basis: 40%; }
}
@media (max-width: 560px) {
  .tile { padding: 11px 12px; }
  .tile .value { font-size: 1.3rem; }
  .figures th, .figures td { padding: 5px 4px; }
  table.figures { font-size: 0.78rem; }
  .small { grid-template-columns: repeat(auto-fill, minmax(145px, 1fr)); gap: 16px 14px; }
  .pairs { grid-template-columns: repeat(2, minmax(0, 1fr)); gap: 6px; }
  .pairs > * { grid-row: auto; grid-column: auto; order: var(--k); }
  .pairs .self { display: none; }
  .pairs .both { display: block; grid-column: 1 / -1; font-size: 0.8rem; margin-top: 8px; overflow-wrap: anywhere; }
}
@media print { .tile { break-inside: avoid; } }
"""
