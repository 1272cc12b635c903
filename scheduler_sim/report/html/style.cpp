#include "scheduler_sim/report/html/assets.hpp"

namespace loratory::sim::report {

// The palette is Okabe and Ito's, which people with any common colour vision tell apart; lines also
// differ by dashes and markers. Lighter tones on the dark page keep the contrast.
const char* const kPageStyle = R"css(
:root{color-scheme:light dark;
--bg:#fff;--panel:#f6f7f9;--ink:#1a1e23;--muted:#5d6772;--rule:#e2e5e9;--axis:#a9b1ba;
--accent:#0b63b5;--accent-soft:#e8f1fb;--good:#0b7350;--bad:#b3202c;
--c1:#0072b2;--c2:#d55e00;--c3:#009272;--c4:#b0558b;--c5:#c98a00;--c6:#56b4e9;
--a1:#0072b2;--a2:#e69f00;--a3:#009e73;--a4:#cc79a7;--a5:#56b4e9;--a6:#d55e00;--a7:#f0e442;
--a8:#5b4fa2;
--o0:#c9ced4;--o1:#dfe2e6;--weights:#8d97a3;--reserve:#d3d8dd;--slots:#d55e00;--kv:#3f93c4}
@media(prefers-color-scheme:dark){:root{
--bg:#101316;--panel:#181c21;--ink:#e7eaee;--muted:#9ca6b1;--rule:#2a3037;--axis:#59636e;
--accent:#6fb3f2;--accent-soft:#15283b;--good:#4cc79a;--bad:#ff7d8b;
--c1:#56aee6;--c2:#ff8f4d;--c3:#3dcba4;--c4:#e59ac6;--c5:#efb93f;--c6:#3b7fa8;
--a1:#3d93cf;--a2:#e6a92f;--a3:#21b58a;--a4:#d88fb6;--a5:#7cc8f2;--a6:#e8763a;--a7:#e9df5b;
--a8:#8f84d6;
--o0:#3d454e;--o1:#2f363d;--weights:#6b7681;--reserve:#3a424a;--slots:#f08a4b;--kv:#3b86b5}}
*{box-sizing:border-box}
html{-webkit-text-size-adjust:100%}
body{margin:0;background:var(--bg);color:var(--ink);
font:16px/1.55 system-ui,-apple-system,"Segoe UI",Roboto,"Helvetica Neue",Arial,sans-serif;
font-variant-numeric:tabular-nums}
main,footer{max-width:1120px;margin:0 auto;padding:0 24px}
h1,h2,h3,p,dl,dd,figure,ul{margin:0;padding:0}
code{font:.92em/1.5 ui-monospace,SFMono-Regular,Menlo,Consolas,"DejaVu Sans Mono",monospace;
overflow-wrap:anywhere}
.eyebrow{overflow-wrap:anywhere;padding-top:40px;color:var(--muted);font-size:.9rem}
.verdict{display:grid;grid-template-columns:minmax(0,1.35fr) minmax(0,1fr);gap:40px;
padding:10px 0 36px}
h1{font-size:2.5rem;line-height:1.15;letter-spacing:-.02em;font-weight:650;margin-bottom:14px}
h1 em{font-style:normal;color:var(--accent);white-space:nowrap}
.flags{display:inline-block;background:var(--accent-soft);border-radius:6px;padding:5px 11px;
margin-bottom:18px}
.say{display:grid;grid-template-columns:auto 1fr;gap:6px 16px;max-width:62ch}
.say dd{overflow-wrap:anywhere}.say dt{color:var(--muted)}
.tiles{display:grid;grid-template-columns:1fr 1fr;gap:1px;background:var(--rule);
border:1px solid var(--rule);
border-radius:10px;overflow:hidden;align-self:start}
.tiles div{background:var(--bg);padding:13px 16px}
.tiles div:last-child:nth-child(odd){grid-column:1/-1}
.tiles dt{color:var(--muted);font-size:.82rem}
.tiles dd{font-size:1.42rem;line-height:1.3;font-weight:600;letter-spacing:-.01em}
.tiles small{display:block;font-size:.8rem;font-weight:400;letter-spacing:0;color:var(--muted)}
.tiles .good small{color:var(--good)}.tiles .bad small{color:var(--bad)}
.facts{display:grid;grid-template-columns:auto 1fr;gap:4px 20px;background:var(--panel);
border-radius:10px;
padding:16px 20px;font-size:.92rem}
.facts span{display:inline-block}.facts dt{color:var(--muted)}.facts dd{overflow-wrap:anywhere;min-width:0}
section{padding-top:48px}
h2{font-size:1.3rem;letter-spacing:-.01em;font-weight:650;line-height:1.3}
h2+p{color:var(--muted);max-width:75ch;margin-top:3px}
.charts{display:grid;grid-template-columns:repeat(2,minmax(0,1fr));gap:36px 40px;padding-top:22px}
figure.wide{grid-column:1/-1}.wide figcaption p{min-height:0}
h3{font-size:1rem;font-weight:650;line-height:1.4}
#fleet h3{margin:24px 0 4px}
figcaption p{color:var(--muted);font-size:.86rem;line-height:1.45;margin-bottom:10px;
min-height:2.9em}
svg{display:block;width:100%;height:auto;overflow:visible}
svg text{font-size:12px;fill:var(--ink)}
.tick,svg .name{fill:var(--muted)}.mid{text-anchor:middle}.end{text-anchor:end}
svg .chosen{fill:var(--accent);font-weight:650}
.axis{stroke:var(--axis);stroke-width:1}.grid{stroke:var(--rule);stroke-width:1}
.line{fill:none;stroke-width:2.2;stroke-linejoin:round;stroke-linecap:round}
.s1{stroke:var(--c1)}.s2{stroke:var(--c2);stroke-dasharray:8 4}.s3{stroke:var(--c3);
stroke-dasharray:2 4.5}
.s4{stroke:var(--c4);stroke-dasharray:9 4 2 4}.s5{stroke:var(--c5);stroke-dasharray:5 3}
.f1{fill:var(--c1)}.f2{fill:var(--c2)}.f3{fill:var(--c3)}.f4{fill:var(--c4)}.f5{fill:var(--c5)}
.f6{fill:var(--c6)}
.mark{stroke:var(--bg);stroke-width:1.4}
svg .label{font-weight:600}
svg .t1{fill:var(--c1)}svg .t2{fill:var(--c2)}svg .t3{fill:var(--c3)}svg .t4{fill:var(--c4)}
svg .t5{fill:var(--c5)}
svg .label,svg .limit-name,svg .choice{paint-order:stroke;stroke:var(--bg);stroke-width:4px;
stroke-linejoin:round}
.band{opacity:.16}
.limit{stroke:var(--bad);stroke-width:1.4;stroke-dasharray:5 3}svg .limit-name{fill:var(--bad)}
.choice-line{stroke:var(--accent);stroke-width:1.2;opacity:.75}svg .choice{fill:var(--accent);
font-weight:600}
.note-ring{fill:none;stroke:var(--accent);stroke-width:1.6}
.misfit{stroke:var(--bad);stroke-width:1.8}
.part{stroke:var(--bg);stroke-width:1}
.weights{fill:var(--weights)}.reserve{fill:var(--reserve)}.slots{fill:var(--slots)}
.kv{fill:var(--kv)}
.area{opacity:.8}.outline{fill:none;stroke-width:1.6;stroke-dasharray:none}
.hover{fill:var(--ink);opacity:0}.hover:hover{opacity:.06}
.a1{fill:var(--a1)}.a2{fill:var(--a2)}.a3{fill:var(--a3)}.a4{fill:var(--a4)}.a5{fill:var(--a5)}
.a6{fill:var(--a6)}
.a7{fill:var(--a7)}.a8{fill:var(--a8)}.o0{fill:var(--o0)}.o1{fill:var(--o1)}
svg .run-name{font-size:10.5px;fill:#111;pointer-events:none}svg .a1n,svg .a8n{fill:#fff}
svg .o0n,svg .o1n{fill:var(--ink)}
.legend{list-style:none;overflow-wrap:anywhere;display:flex;flex-wrap:wrap;gap:4px 18px;
font-size:.84rem;padding-top:8px}
.legend span{color:var(--muted)}
.swatch{display:inline-block;width:11px;height:11px;border-radius:2px;margin-right:6px}
.swatch.a1{background:var(--a1)}.swatch.a2{background:var(--a2)}.swatch.a3{background:var(--a3)}
.swatch.a4{background:var(--a4)}.swatch.a5{background:var(--a5)}.swatch.a6{background:var(--a6)}
.swatch.a7{background:var(--a7)}.swatch.a8{background:var(--a8)}
.swatch.o0{background:var(--o0);margin-right:1px}.swatch.o1{background:var(--o1)}
.scroll{overflow-x:auto}
table{border-collapse:separate;border-spacing:0;font-size:.86rem;width:100%;line-height:1.35}
th,td{padding:6px 10px;text-align:right;white-space:nowrap;border-bottom:1px solid var(--rule)}
th{color:var(--muted);font-weight:500;vertical-align:bottom}
th:first-child,td:first-child{text-align:left}
.configs{margin-top:18px;font-size:.82rem}
.configs td{padding:6px}
.note{color:var(--muted);font-size:.84rem;margin-top:8px}
.configs th{padding:0}
.configs th button{all:unset;display:block;padding:6px;cursor:pointer;width:100%;
box-sizing:border-box}
.configs th button:hover,.configs th button:focus-visible{color:var(--ink);
text-decoration:underline}
.configs th small{display:block;color:var(--muted);font-size:.92em}
.configs th[aria-sort=ascending] button::after{content:" \2191"}
.configs th[aria-sort=descending] button::after{content:" \2193"}
.configs td.why,.configs th:nth-child(3){text-align:left}
#configurations>.scroll{margin-inline:max(-160px,min(0px,(100% - 100vw + 48px)/2))}
.configs tr.chosen td{background:var(--accent-soft);font-weight:600}
.configs tr.misfit-row td{color:var(--muted)}
.configs td:first-child,.configs th:first-child{position:sticky;left:0;background:var(--bg)}
.ok{color:var(--good)}.miss{color:var(--bad)}
details{margin-top:8px;font-size:.86rem}
summary{cursor:pointer;color:var(--muted);width:max-content}
details[open] summary{margin-bottom:6px}
details .scroll{max-height:320px;overflow:auto}
.flags-table th,.flags-table td{text-align:left;white-space:normal;overflow-wrap:anywhere}
.terms{display:grid;grid-template-columns:auto 1fr;gap:5px 22px;font-size:.9rem;padding-top:14px}
.terms dt{font-weight:600}.terms dd{max-width:80ch;color:var(--muted)}
footer{padding-top:44px;padding-bottom:56px;color:var(--muted);font-size:.84rem}
footer p{margin-top:4px;overflow-wrap:anywhere}
#tip{position:fixed;z-index:9;pointer-events:none;white-space:pre;background:var(--ink);
color:var(--bg);
padding:7px 10px;border-radius:6px;font-size:.8rem;line-height:1.45;max-width:90vw}
#tip[hidden]{display:none}
@media(max-width:760px){
main,footer{padding-left:16px;padding-right:16px}
.eyebrow{padding-top:24px}
.verdict{grid-template-columns:minmax(0,1fr);gap:24px;padding-bottom:24px}
h1{font-size:1.9rem}
.charts{grid-template-columns:minmax(0,1fr);gap:32px}
.facts,.say,.terms{grid-template-columns:minmax(0,1fr);gap:0}
.facts dd,.say dd,.terms dd{margin-bottom:9px}
section{padding-top:36px}
svg text{font-size:14px}svg .label{font-size:13px}figcaption p{min-height:0}
.wide .drawing{overflow-x:auto}.wide svg{width:820px}.wide svg text{font-size:13px}}
@media print{.hover,summary,#tip{display:none}section,figure{break-inside:avoid}}
)css";

}  // namespace loratory::sim::report
