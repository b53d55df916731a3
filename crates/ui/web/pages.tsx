// The pages. Each shows one mount.

import { useEffect, useRef, useState } from "preact/hooks";
import { Chart } from "./chart";
import { draw, intensity } from "./heat";
import { ask, change, Live, SOURCES } from "./live";
import { bytes, count, path, time } from "./text";

export interface Props { live: Live; mount: string; theme: string; changes: boolean; }

export function Figure({ name, value }: { name: string; value: string }) {
  return <div class="figure"><b>{value}</b><span>{name}</span></div>;
}

export function Failure({ failure }: { failure: any }) {
  return <div class="card wide"><p class="note bad" role="alert">{failure.what}{failure.why ? `: ${failure.why.join("; ")}` : ""}</p>
    {(failure.next ?? []).map((line: string) => <p key={line}>Next: <code>{line}</code></p>)}</div>;
}

/// Asks again and again while the page is open. Without a name, nothing is asked.
export function useAnswer(name: string, mount: string, seconds: number, more: Record<string, string> = {}): [any, any] {
  const [answer, setAnswer] = useState<[any, any]>([null, null]);
  useEffect(() => {
    setAnswer([null, null]);
    if (!name) return;
    let open = true, timer = 0;
    const step = async () => {
      let next: [any, any];
      try { next = [await ask(name, mount, more), null]; } catch (failure) { next = [null, failure]; }
      if (!open) return;
      setAnswer(next);
      timer = window.setTimeout(step, seconds * 1000);
    };
    step();
    return () => { open = false; clearTimeout(timer); };
  }, [name, mount, JSON.stringify(more)]);
  return answer;
}

export function Overview({ live, theme }: Props) {
  const { status = {}, stats = {} } = live.last as any;
  const times = live.points.map((point) => point.at);
  const origin = status.far?.requests, cache = status.far?.cache;
  const here = cache ? cache.memory_reads + cache.disk_reads : 0, all = cache ? here + cache.far_reads : 0;
  const requests = origin ? Object.values(origin.by_kind as Record<string, number>).reduce((sum, n) => sum + n, 0) : 0;
  return <>
    <section class="card wide"><h2>Now</h2><div class="figures">
      <Figure name="requests a second" value={count((stats.requests ?? 0) / (stats.seconds || 1))} />
      <Figure name="read a second" value={bytes((stats.read_bytes ?? 0) / (stats.seconds || 1))} />
      <Figure name="written a second" value={bytes((stats.written_bytes ?? 0) / (stats.seconds || 1))} />
      <Figure name="files" value={count(status.files ?? 0)} />
      <Figure name="stored" value={bytes(status.stored_bytes ?? 0)} />
      <Figure name="errors" value={count(status.io_errors ?? 0)} />
      {cache && <Figure name="reads from this node" value={all ? `${(100 * here / all).toFixed(1)} %` : "-"} />}
      {origin && <Figure name="requests to the origin" value={count(requests)} />}
      {cache && <Figure name="requests saved" value={count(here)} />}
    </div></section>
    <Chart title="Bytes read, by source" theme={theme} times={times} stacked format={(n) => `${bytes(n)}/s`}
      lines={SOURCES.map((name, at) => ({ label: name, colour: `--s${at}`, values: live.points.map((point) => point.sources[name]) }))} />
    <Chart title="Time of requests in the daemon" theme={theme} times={times} log format={time}
      lines={[{ label: "half of them within", colour: "--s0", values: live.points.map((point) => point.p50) },
        { label: "99 of 100 within", colour: "--s4", values: live.points.map((point) => point.p99) }]} />
    <p class="dim wide">Reads that the page cache answers do not reach the daemon. The page Heat shows them, on mounts with --heat.</p>
  </>;
}

export function Heat({ mount }: Props) {
  const [heat, failure] = useAnswer("heat", mount, 1, { top: "20000" });
  const canvas = useRef<HTMLCanvasElement>(null);
  const chunks: any[] = heat?.chunks ?? [];
  const names = [...new Set(chunks.map((chunk) => chunk.inode))].sort((a, b) => a - b);
  const columns = chunks.reduce((most, chunk) => Math.max(most, chunk.mib + 1), 1);
  // A single file, or many files of one MiB, fill a square rather than a line.
  const single = names.length === 1 || columns === 1;
  const across = single ? Math.ceil(Math.sqrt(Math.max(columns, names.length) * 3)) : columns;
  const rows = single ? Math.ceil(Math.max(columns, names.length) / across) : names.length;
  useEffect(() => {
    const element = canvas.current;
    if (!element) return;
    const width = element.width = element.clientWidth * devicePixelRatio;
    const height = element.height = Math.max(60, Math.min(480, rows * 22)) * devicePixelRatio;
    element.style.height = `${height / devicePixelRatio}px`;
    const row = new Map(names.map((inode, at) => [inode, at]));
    const cells = chunks.map((chunk) => {
      const at = single ? Math.max(chunk.mib, row.get(chunk.inode)!) : 0;
      const place = single ? { row: Math.floor(at / across), column: at % across } : { row: row.get(chunk.inode)!, column: chunk.mib };
      return { ...place, heat: intensity(chunk.score, heat.hot_from) };
    });
    draw(element.getContext("2d")!, width, height, rows, across, cells);
  });
  if (failure) return <Failure failure={failure} />;
  if (!heat) return <p class="card wide">Asking ...</p>;
  return <>
    <section class="card wide"><h2>Heat</h2>
      {heat.unseen.map((line: string) => <p class="note" key={line}>{line}</p>)}
      <p class="dim">{count(heat.hot)} of {count(heat.known)} parts are hot, counted by the {heat.view}. Each row is a file, each cell one MiB.</p>
      <canvas class="heat" ref={canvas} role="img" aria-label="Parts of files by heat; the table below has the same figures" />
    </section>
    <section class="card wide scroll"><h2>Hottest parts</h2>
      <table><thead><tr><th class="n">Score</th><th>File</th><th class="n">MiB</th><th class="n">In memory</th><th>Why</th></tr></thead>
        <tbody>{chunks.slice(0, 50).map((chunk) => <tr key={`${chunk.inode} ${chunk.mib}`}>
          <td class="n">{chunk.score.toFixed(1)}</td><td>{chunk.path === null ? `inode ${chunk.inode}` : path(chunk.path)}</td><td class="n">{chunk.mib}</td>
          <td class="n">{heat.view === "kernel" ? `${Math.min(100, Math.round(chunk.pages / 2.56))} %` : "?"}</td><td>{chunk.why}</td></tr>)}</tbody></table>
    </section>
  </>;
}

function Busy({ title, rows }: { title: string; rows: any[] }) {
  return <section class="card scroll"><h2>{title}</h2><table>
    <thead><tr><th>Name</th><th class="n">Requests</th><th class="n">Bytes</th><th class="n">Time each</th></tr></thead>
    <tbody>{rows.map((row) => <tr key={row.name}><td>{row.name}</td><td class="n">{count(row.requests)}</td><td class="n">{bytes(row.bytes)}</td>
      <td class="n">{time(row.ns / Math.max(1, row.requests))}</td></tr>)}</tbody></table>{rows.length === 0 && <p class="dim">None in the last second.</p>}</section>;
}

export function Requests({ live, mount }: Props) {
  const [table, failure] = useAnswer("requests", mount, 1);
  const { status = {}, stats = {} } = live.last as any;
  if (failure) return <Failure failure={failure} />;
  return <>
    <section class="card wide"><h2>Requests</h2><div class="figures">
      <Figure name="a second" value={count((stats.requests ?? 0) / (stats.seconds || 1))} />
      <Figure name="waiting" value={count(stats.waiting ?? 0)} />
      <Figure name="half of them within" value={time(stats.p50_ns ?? 0)} /><Figure name="99 of 100 within" value={time(stats.p99_ns ?? 0)} />
      <Figure name="arrive over" value={status.served?.transport ?? "-"} />
    </div></section>
    <Busy title="Operations" rows={table?.operations ?? []} /><Busy title="Callers" rows={table?.callers ?? []} /><Busy title="Files" rows={table?.files ?? []} />
  </>;
}

export function Kernel({ mount }: Props) {
  const [heat, failure] = useAnswer("heat", mount, 1, { top: "1" });
  if (failure) return <Failure failure={failure} />;
  if (!heat) return <p class="card wide">Asking ...</p>;
  return <>
    <section class="card wide"><h2>What the kernel sees</h2>
      {heat.unseen.map((line: string) => <p class="note" key={line}>{line}</p>)}
      <div class="figures">
        <Figure name="mode" value={heat.view === "kernel" ? "LIVE" : "counters"} /><Figure name="parts seen" value={count(heat.known)} />
        <Figure name="hot events" value={count(heat.events)} /><Figure name="latest event after" value={time(heat.delay_us * 1000)} />
        <Figure name="blobs kept for it" value={count(heat.protected)} /><Figure name="not counted" value={count(heat.lost)} />
      </div></section>
    <section class="card wide scroll"><h2>Cost of each program</h2><table>
      <thead><tr><th>Program</th><th class="n">Runs while measured</th><th class="n">Time each</th></tr></thead>
      <tbody>{heat.programs.map((program: any) => <tr key={program.name}><td><code>{program.name}</code></td><td class="n">{count(program.runs)}</td>
        <td class="n">{program.runs ? time(program.ns / program.runs) : "-"}</td></tr>)}</tbody></table></section>
  </>;
}

export function Uploads({ live, mount, changes }: Props) {
  const far = (live.last.status as any)?.far;
  const [said, setSaid] = useState(""), token = useRef<HTMLInputElement>(null);
  const press = async (name: string) => {
    setSaid(`${name} ...`);
    try { await change(name, mount, token.current!.value.trim()); setSaid(`${name}: done`); } catch (why) { setSaid(`${name}: ${why}`); }
  };
  const uploads = far?.uploads;
  return <>
    <section class="card wide"><h2>Uploads</h2>{!far ? <p class="dim">The origin is on this machine: nothing is uploaded.</p> : <>
      {uploads.trouble && <p class="note bad" role="alert">Since {uploads.trouble.since}: {uploads.trouble.why}</p>}
      {far.away && <p class="note bad" role="alert">The origin is away: {far.away.why}</p>}
      <div class="figures">
        <Figure name="blobs wait" value={count(uploads.blobs)} /><Figure name="of" value={bytes(uploads.bytes)} /><Figure name="being sent" value={count(uploads.under_way)} />
        <Figure name="oldest waits" value={time(uploads.oldest_seconds * 1e9)} /><Figure name="sent so far" value={bytes(uploads.uploaded_bytes)} />
        <Figure name="attempts that failed" value={count(uploads.failed_attempts)} />
      </div></>}</section>
    <section class="card wide"><h2>Change something</h2>{!changes ? <p class="dim">Not here: start the dashboard with <code>--ui-token FILE</code>.</p> : <>
      <p><label>Token <input ref={token} type="password" autocomplete="off" /></label>{" "}
        {[["flush", "Make it durable"], ["gc", "Collect garbage"], ["evict", "Empty the cache"]].map(([name, label]) => <button key={name} onClick={() => press(name)}>{label}</button>)}</p>
      <p role="status">{said}</p></>}</section>
  </>;
}
