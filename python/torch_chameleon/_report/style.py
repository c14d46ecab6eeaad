"""How a page looks: light, dark, narrow, on paper."""

STYLE = """
:root{color-scheme:light dark;--page:#fbfbfa;--card:#fff;--ink:#1d1f23;
--muted:#5d636d;--line:#dfe1e5;--logical:#7c8594;--hbm:#1f6fd0;--host:#d97b12;
--dropped:#b4435f;--stall:#c23b3b;--good:#27794b;--warn-bg:#fdf3e3}
@media (prefers-color-scheme:dark){:root{--page:#15171a;--card:#1d2024;
--ink:#e7e9ec;--muted:#a0a7b2;--line:#343941;--logical:#8d96a5;--hbm:#5ba0f2;
--host:#eda24a;--dropped:#e0819a;--stall:#f0807c;--good:#6cc592;
--warn-bg:#33291a}}
*{box-sizing:border-box}
body{margin:0;background:var(--page);color:var(--ink);
font:16px/1.5 system-ui,-apple-system,"Segoe UI",Roboto,sans-serif}
header,main,footer{max-width:1080px;margin:0 auto;padding:0 16px}
header{padding-top:24px}
h1{font-size:1.5rem;line-height:1.25;margin:0 0 4px}
h2{font-size:1.1rem;margin:0 0 4px}
h2.next{margin-top:16px}
p{margin:0 0 12px}
.muted{color:var(--muted);font-size:.9rem}
footer{padding-bottom:32px}
section{background:var(--card);border:1px solid var(--line);border-radius:10px;
padding:16px;margin:16px 0}
.tiles{display:grid;gap:12px;background:none;border:0;padding:0;
grid-template-columns:repeat(4,1fr)}
.tile{background:var(--card);border:1px solid var(--line);border-radius:10px;
padding:12px}
.tile b{display:block;font-size:1.25rem;font-variant-numeric:tabular-nums}
.warning{background:var(--warn-bg);border-left:4px solid var(--host);
border-radius:6px;padding:10px 12px;margin:8px 0;overflow-wrap:anywhere}
.warning b{display:block}
.plot{position:relative;border-bottom:1px solid var(--line);margin-top:8px}
.plot svg{position:absolute;inset:0;width:100%;height:100%;display:block}
.map{max-width:100%}
.x{display:flex;justify-content:space-between;font-size:.75rem;
color:var(--muted);margin-bottom:8px}
.legend{display:flex;flex-wrap:wrap;gap:4px 16px;font-size:.85rem;
margin:4px 0 0;padding:0;list-style:none}
.legend i{display:inline-block;width:12px;height:12px;border-radius:3px;
margin-right:6px;vertical-align:-1px}
.scroll{overflow-x:auto}
table{border-collapse:collapse;width:100%;font-size:.9rem}
th,td{text-align:right;padding:4px 8px;border-bottom:1px solid var(--line);
font-variant-numeric:tabular-nums;white-space:nowrap}
th{color:var(--muted);font-weight:600}
th:first-child,td:first-child{text-align:left;white-space:normal;
overflow-wrap:anywhere;min-width:130px;padding-left:0}
td.bar{width:28%;min-width:60px}
.bar i{display:block;height:10px;border-radius:3px;background:var(--stall)}
tr.now td{font-weight:700}
.legend+.scroll{margin-top:12px}
@media (max-width:560px){.wide{display:none}section{padding:12px}
.tiles{padding:0;grid-template-columns:repeat(2,1fr)}
th,td{padding:4px 5px}}
@media print{:root{color-scheme:light;--page:#fff;--card:#fff;--ink:#000;
--muted:#444;--line:#bbb}*{print-color-adjust:exact;
-webkit-print-color-adjust:exact}section,.tile{break-inside:avoid}
body{font-size:11pt}}
"""
