// The demos of the project, run from here: progress, charts, and the result beside the seed's figures.

import { useEffect, useRef, useState } from "preact/hooks";
import uPlot from "uplot";
import { colour } from "./chart";
import { demo as send } from "./live";

const DEMOS: [string, string, string][] = [
  ["cache", "A: the same data again and again", "An order book in a MinIO, read by boto3, by a mount, from mappings, and by boto3 that the kernel redirects."],
  ["scale", "B: more nodes", "600 MB are divided among 1, 2, 4 and 8 nodes. Each has a store of its own and a link of 100 Mbit/s."],
  ["sort", "C: a sort over several nodes", "Two nodes generate records, divide them by key, exchange them through their mounts, and sort."],
];
/// What FasterFS, the prototype that the demos answer, says about itself.
const SEED: Record<string, [string, string][]> = {
  cache: [["a chunk from MinIO", "57.8 ms"], ["third pass, against MinIO", "9 x; 327 x"]],
  scale: [["two nodes, against one", "1.95 x"]],
  sort: [["partition", "13.69 s"], ["all steps", "15.18 s"]],
};
/// Charts are drawn this often while points arrive.
const DRAW_MS = 250;
const DASHES = [[], [8, 4], [3, 3]];

interface Series { xs: number[]; ys: number[]; }
interface Plot { unit: string; series: Map<string, Series>; }

/// What the demo said so far.
class Run {
  demo = ""; small = false; running = false; done = 0; step = ""; output = "";
  charts = new Map<string, Plot>();
  tables: { title: string; head: string[]; rows: string[][] }[] = [];
  trouble: string[] = [];
  ended: any = null;

  take(event: any) {
    switch (event.kind) {
      case "start": this.demo = event.demo; this.small = event.small; this.running = true; break;
      case "progress": this.done = event.done; this.step = event.step; break;
      case "output": this.output = event.line; break;
      case "table": this.tables.push(event); break;
      case "end": if (!event.ok) this.trouble.push(event.message); break;
      case "ended": this.ended = event; this.running = false; break;
      case "point": {
        const plot = this.charts.get(event.chart) ?? { unit: event.unit, series: new Map() };
        const line = plot.series.get(event.series) ?? { xs: [], ys: [] };
        line.xs.push(event.x); line.ys.push(event.y);
        this.charts.set(event.chart, plot); plot.series.set(event.series, line);
      }
    }
  }
}

/// Follows the demos while the page is open.
function useRun(wanted: boolean): [Run, boolean] {
  const [, draw] = useState(0), run = useRef(new Run()), [connected, setConnected] = useState(false);
  useEffect(() => {
    if (!wanted) return;
    let open = true, socket: WebSocket, again = 0, timer = 0;
    const changed = () => { timer ||= window.setTimeout(() => { timer = 0; draw((n) => n + 1); }, DRAW_MS); };
    const connect = () => {
      const url = new URL("api/v1/demos/live", location.href);
      url.protocol = url.protocol === "https:" ? "wss:" : "ws:"; url.hash = "";
      socket = new WebSocket(url);
      socket.onopen = () => setConnected(true);
      socket.onmessage = ({ data }) => {
        const event = JSON.parse(data);
        if (event.kind === "start" || event.kind === "idle") run.current = new Run();
        run.current.take(event); changed();
      };
      socket.onclose = () => { setConnected(false); if (open) again = window.setTimeout(connect, 2000); };
    };
    connect();
    return () => { open = false; clearTimeout(again); clearTimeout(timer); socket.close(); };
  }, [wanted]);
  return [run.current, connected];
}

const number = (n: number) => n === 0 ? "0" : Math.abs(n) >= 1e5 || Math.abs(n) < 1e-3 ? n.toExponential(1) : `${+n.toPrecision(3)}`;

function middle(values: number[]): number {
  const sorted = [...values].sort((a, b) => a - b);
  return sorted[sorted.length >> 1];
}

function DemoChart({ title, plot, theme }: { title: string; plot: Plot; theme: string }) {
  const box = useRef<HTMLDivElement>(null), drawn = useRef<uPlot | null>(null);
  const lines = [...plot.series];
  const sorted = ({ xs, ys }: Series): uPlot.AlignedData => {
    const order = xs.map((_, at) => at).sort((a, b) => xs[a] - xs[b]);
    return [order.map((at) => xs[at]), order.map((at) => ys[at])];
  };
  const all = lines.flatMap(([, { ys }]) => ys), low = all.reduce((a, b) => Math.min(a, b), Infinity), high = all.reduce((a, b) => Math.max(a, b), 0);
  const log = low > 0 && high / low > 30;
  const data = uPlot.join(lines.map(([, line]) => sorted(line)));
  useEffect(() => {
    const element = box.current!;
    const axis = { stroke: colour("--dim"), grid: { stroke: colour("--line"), width: 1 }, ticks: { stroke: colour("--line"), width: 1 } };
    const values = (_: uPlot, ticks: (number | null)[]) => ticks.map((tick) => tick === null ? "" : `${number(tick)} ${plot.unit}`);
    const chart = drawn.current = new uPlot({
      width: element.clientWidth, height: 240, legend: { show: false }, cursor: { show: false },
      scales: { x: { time: false }, y: log ? { distr: 3 } : { range: (_, __, max) => [0, max > 0 ? max * 1.05 : 1] } },
      axes: [axis, { ...axis, size: 88, values }],
      series: [{}, ...lines.map(([label], n) => ({ label, stroke: colour(`--s${n % 6}`), width: 1.5, spanGaps: true, dash: DASHES[Math.floor(n / 6) % 3],
        points: { show: (chart: uPlot) => chart.data[0].length < 40 } }))],
    }, data, element);
    const resized = new ResizeObserver(() => chart.setSize({ width: element.clientWidth, height: 240 }));
    resized.observe(element);
    return () => { resized.disconnect(); chart.destroy(); };
  }, [theme, lines.length, log]);
  useEffect(() => { drawn.current?.setData(data); });
  return <section class="card wide" aria-label={title}><h2>{title}</h2>
    <div ref={box} aria-hidden="true" />
    <ul class="legend">{lines.map(([label], n) => <li key={label}><i style={{ background: `var(--s${n % 6})` }} />{label}</li>)}</ul>
    <details><summary>As a table</summary><div class="scroll"><table><thead><tr><th>Line</th><th class="n">Points</th><th class="n">Least</th><th class="n">Half of them below</th><th class="n">Most</th></tr></thead>
      <tbody>{lines.map(([label, { ys }]) => <tr key={label}><td>{label}</td><td class="n">{ys.length}</td>
        {[ys.reduce((a, b) => Math.min(a, b)), middle(ys), ys.reduce((a, b) => Math.max(a, b))].map((value, n) => <td class="n" key={n}>{number(value)} {plot.unit}</td>)}</tr>)}</tbody></table></div></details>
  </section>;
}

function Progress({ run }: { run: Run }) {
  const percent = Math.round(run.done * 100), ended = run.ended;
  const said = run.running ? `${run.step || "it begins: programs may have to be built"} (${percent} %)` : ended?.stopped ? "stopped" : ended?.ok ? "done" : "failed";
  return <section class="card wide"><h2>{DEMOS.find(([name]) => name === run.demo)?.[1]}{run.small ? ", short form" : ""}</h2>
    <div class="bar" role="progressbar" aria-label="Progress of the demo" aria-valuemin={0} aria-valuemax={100} aria-valuenow={percent} aria-valuetext={said}><div style={{ width: `${ended?.ok ? 100 : percent}%` }} /></div>
    <p role="status">{said}</p>
    {run.running && run.output && <p class="dim"><code>{run.output}</code></p>}
    {!ended?.stopped && run.trouble.map((why) => <p class="note bad" role="alert" key={why}>{why || "The demo says that it failed."}</p>)}
    {ended && !ended.ok && !ended.stopped && <><p class="note bad" role="alert">{ended.said_end ? "It ended" : "It ended without a result"}: {ended.how}. Its last lines:</p>
      <pre class="scroll">{ended.output.join("\n")}</pre></>}
    {ended?.ignored > 0 && <p class="dim">{ended.ignored} lines that it reported were not understood.</p>}
  </section>;
}

function Result({ run }: { run: Run }) {
  return <section class="card wide"><h2>Result</h2><div class="beside">
    {run.tables.map((table, n) => <div class="scroll" key={n}>{table.title && <h3>{table.title}</h3>}<table><thead><tr>{table.head.map((cell, at) => <th class={at ? "n" : ""} key={at}>{cell}</th>)}</tr></thead>
      <tbody>{table.rows.map((row, at) => <tr key={at}>{row.map((cell, column) => <td class={column ? "n" : ""} key={column}>{cell}</td>)}</tr>)}</tbody></table></div>)}
    <div class="scroll"><table><thead><tr><th>The seed, FasterFS</th><th class="n">Figure</th></tr></thead>
      <tbody>{(SEED[run.demo] ?? []).map(([name, value]) => <tr key={name}><td>{name}</td><td class="n">{value}</td></tr>)}</tbody></table></div>
  </div></section>;
}

export function Demos({ theme, about }: { theme: string; about: any }) {
  const [run, connected] = useRun(about.demos), [said, setSaid] = useState(""), token = useRef<HTMLInputElement>(null);
  const press = async (method: "POST" | "DELETE", name: string, small = false) => {
    setSaid(method === "POST" ? "starting ..." : "stopping: it removes what it made ...");
    try { await send(method, name, small, token.current!.value.trim()); setSaid(""); } catch (why) { setSaid(`${why}`); }
  };
  if (!about.demos) return <section class="card wide"><h2>Demos</h2>
    <p>Three demonstrations, each with the figures of a prototype beside it. This page can run them if the dashboard is started in a checkout of the project, as root:</p>
    <p><code>covey ui --ui-token FILE --demos .</code></p>
    <p>Without it, they are commands: <code>make demo-cache</code>, <code>make demo-scale</code>, <code>make demo-sort</code>.</p></section>;
  return <>
    <section class="card wide"><h2>Demos</h2>
      <p class="dim">They need root. They make network namespaces and mounts of their own, and remove them at the end. The short form takes some seconds.</p>
      {!connected && <p class="note bad">Not connected to the dashboard; trying again.</p>}
      <p><label>Token <input ref={token} type="password" autocomplete="off" /></label></p>
      <div class="demos">{DEMOS.map(([name, title, text]) => <div key={name}><h3>{title}</h3><p>{text}</p>
        {run.running && run.demo === name ? <button onClick={() => press("DELETE", name)}>Stop</button> : <>
          <button disabled={run.running} onClick={() => press("POST", name)} aria-label={`Run demo ${title}`}>Run</button>
          <button disabled={run.running} onClick={() => press("POST", name, true)} aria-label={`Run demo ${title}, short form`}>Run the short form</button></>}</div>)}</div>
      <p role="status">{said}</p></section>
    {run.demo && <Progress run={run} />}
    {[...run.charts].map(([title, plot]) => <DemoChart key={`${run.demo} ${title}`} title={title} plot={plot} theme={theme} />)}
    {run.tables.length > 0 && <Result run={run} />}
  </>;
}
