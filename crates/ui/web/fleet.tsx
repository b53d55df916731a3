// The nodes of a fleet, and what flows between them and this node.

import { useEffect, useRef, useState } from "preact/hooks";
import type { Live } from "./live";
import { Failure, Figure, useAnswer } from "./pages";
import { bytes, count } from "./text";

/// More nodes than this are drawn as their zones.
const DRAWN = 60;
const WIDE = 900, HIGH = 520;

interface Flow { received: number; sent: number; }
interface Spot { name: string; label: string; zone: string; nodes: number; silent: number; flow: Flow | null; }

const OWN = ["own", "asked"];
const none: Flow = { received: 0, sent: 0 };
const sum = (a: Flow | null, b: Flow | null): Flow | null => a && b ? { received: a.received + b.received, sent: a.sent + b.sent } : a ?? b;

/// Bytes a second from and to each node, from the last two answers.
function useRates(peers: any[] | null): Map<string, Flow> {
  const before = useRef<{ at: number; peers: Map<string, any> } | null>(null), rates = useRef(new Map<string, Flow>());
  const seen = useRef<any[] | null>(null);
  if (peers && peers !== seen.current) {
    const at = performance.now(), last = before.current;
    rates.current = new Map();
    for (const peer of peers) {
      if (peer.received_bytes === undefined) continue;
      const old = last?.peers.get(peer.node), seconds = last ? (at - last.at) / 1000 : 1;
      const rate = (name: string) => old ? Math.max(0, peer[name] - old[name]) / seconds : 0;
      rates.current.set(peer.node, { received: rate("received_bytes"), sent: rate("sent_bytes") });
    }
    before.current = { at, peers: new Map(peers.map((peer) => [peer.node, peer])) };
    seen.current = peers;
  }
  return rates.current;
}

/// What is drawn around this node: nodes, or zones if there are too many.
function spots(peers: any[], rates: Map<string, Flow>): Spot[] {
  const others = peers.filter((peer) => !OWN.includes(peer.state));
  const one = (peer: any): Spot => ({ name: peer.node, label: peer.node.slice(0, 8), zone: peer.zone, nodes: 1,
    silent: peer.state === "silent" ? 1 : 0, flow: rates.get(peer.node) ?? null });
  const all = others.map(one).sort((a, b) => a.zone.localeCompare(b.zone) || a.name.localeCompare(b.name));
  if (all.length <= DRAWN) return all;
  const zones = new Map<string, Spot>();
  for (const spot of all) {
    const zone = zones.get(spot.zone) ?? { ...spot, name: `zone ${spot.zone}`, label: spot.zone, nodes: 0, silent: 0, flow: null };
    zones.set(spot.zone, { ...zone, nodes: zone.nodes + 1, silent: zone.silent + spot.silent, flow: sum(zone.flow, spot.flow) });
  }
  return [...zones.values()];
}

function words(spot: Spot): string {
  const what = spot.nodes === 1 ? `node ${spot.label}, zone ${spot.zone}${spot.silent ? ", silent" : ""}`
    : `zone ${spot.zone}, ${spot.nodes} nodes, ${spot.silent} silent`;
  return spot.flow ? `${what}, ${bytes(spot.flow.received)}/s from it, ${bytes(spot.flow.sent)}/s to it` : what;
}

/// This node in the middle, the others around it by zone. A line is as wide as its bytes a second.
function Drawing({ around, own, choose }: { around: Spot[]; own: string; choose: (name: string) => void }) {
  const most = Math.max(1, ...around.flatMap(({ flow }) => flow ? [flow.received, flow.sent] : []));
  const zones = [...new Set(around.map((spot) => spot.zone))];
  // An empty place parts two zones.
  const places = around.length + (zones.length > 1 ? zones.length : 0);
  const at = (place: number, far = 1) => {
    const angle = (place / places) * 2 * Math.PI - Math.PI / 2;
    return { x: WIDE / 2 + Math.cos(angle) * 340 * Math.min(far, 1.14), y: HIGH / 2 + Math.sin(angle) * 178 * far };
  };
  const placed = around.map((spot, n) => ({ spot, place: n + zones.indexOf(spot.zone) * (zones.length > 1 ? 1 : 0) }));
  const line = (spot: Spot, place: number, name: keyof Flow, side: number) => {
    const end = at(place), long = Math.hypot(end.x - WIDE / 2, end.y - HIGH / 2) || 1;
    const dx = side * 4 * (end.y - HIGH / 2) / long, dy = side * -4 * (end.x - WIDE / 2) / long, rate = spot.flow?.[name] ?? 0;
    return <line x1={WIDE / 2 + dx} y1={HIGH / 2 + dy} x2={end.x + dx} y2={end.y + dy} stroke={rate ? `var(--s${side < 0 ? 0 : 2})` : "var(--line)"}
      stroke-width={rate ? Math.max(1.5, 8 * rate / most) : 1} stroke-dasharray={spot.silent === spot.nodes ? "4 4" : undefined} />;
  };
  return <>
    <svg class="fleet" viewBox={`0 0 ${WIDE} ${HIGH}`} role="group" aria-label="The fleet; the table below has the same figures">
      {placed.map(({ spot, place }) => <g key={spot.name}>{line(spot, place, "received", -1)}{line(spot, place, "sent", 1)}</g>)}
      {zones.map((zone) => {
        const its = placed.filter(({ spot }) => spot.zone === zone), { x, y } = at((its[0].place + its[its.length - 1].place) / 2, 1.33);
        return around.some((spot) => spot.nodes > 1) ? null : <text key={zone} x={x} y={y} class="zone" text-anchor={x > WIDE * .6 ? "start" : x < WIDE * .4 ? "end" : "middle"}>{zone}</text>;
      })}
      {placed.map(({ spot, place }) => {
        const { x, y } = at(place), pick = () => choose(spot.name);
        return <g key={spot.name} tabindex={0} role="button" aria-label={words(spot)} class={spot.silent ? "node silent" : "node"} onClick={pick}
          onKeyDown={(event) => { if (event.key === "Enter" || event.key === " ") { event.preventDefault(); pick(); } }}>
          <title>{words(spot)}</title>
          <circle cx={x} cy={y} r={spot.nodes > 1 ? 20 : around.length > 24 ? 9 : 14} />
          {spot.silent === spot.nodes && <path d={`M${x - 5} ${y - 5}l10 10m0 -10l-10 10`} />}
          {(around.length <= 24 || spot.nodes > 1) && <text x={x} y={y < HIGH / 2 ? y - 22 : y + 32} text-anchor="middle">{spot.nodes > 1 ? `${spot.label}: ${spot.nodes}` : spot.label}</text>}
        </g>;
      })}
      <circle cx={WIDE / 2} cy={HIGH / 2} r={22} class="own" /><text x={WIDE / 2} y={HIGH / 2 + 38} text-anchor="middle" class="zone">{own}</text>
    </svg>
    <ul class="legend"><li><i style={{ background: "var(--s0)" }} />from the node</li><li><i style={{ background: "var(--s2)" }} />to the node</li>
      <li>the widest line: {bytes(most === 1 ? 0 : most)}/s</li><li>dashed and crossed: silent</li></ul>
  </>;
}

function Nodes({ peers, rates, chosen }: { peers: any[]; rates: Map<string, Flow>; chosen: string }) {
  const flows = rates.size > 0;
  return <section class="card wide scroll"><h2>Nodes</h2><table id="nodes">
    <thead><tr><th>Node</th><th>Address</th><th>Zone</th><th>Role</th><th>State</th><th class="n">Free</th><th class="n">To send</th>
      {flows && <><th class="n">From it</th><th class="n">To it</th><th class="n">So far</th></>}</tr></thead>
    <tbody>{peers.map((peer: any) => {
      const flow = rates.get(peer.node) ?? none, own = OWN.includes(peer.state);
      return <tr key={peer.node} id={`node-${peer.node}`} class={peer.node === chosen ? "chosen" : undefined}><td><code>{peer.node.slice(0, 8)}</code></td><td>{peer.address}</td>
        <td>{peer.zone}</td><td>{peer.role}</td><td class={peer.state === "silent" ? "bad" : "good"}>{peer.state}</td><td class="n">{bytes(peer.free_mib * 1048576)}</td>
        <td class="n">{peer.load_mib} MiB</td>{flows && <><td class="n">{own ? "" : `${bytes(flow.received)}/s`}</td><td class="n">{own ? "" : `${bytes(flow.sent)}/s`}</td>
          <td class="n">{own ? "" : bytes((peer.received_bytes ?? 0) + (peer.sent_bytes ?? 0))}</td></>}</tr>;
    })}</tbody></table></section>;
}

function Zones({ around }: { around: Spot[] }) {
  return <section class="card wide scroll"><h2>Zones</h2><table><thead><tr><th>Zone</th><th class="n">Nodes</th><th class="n">Silent</th><th class="n">From it</th><th class="n">To it</th></tr></thead>
    <tbody>{around.map((spot) => <tr key={spot.name}><td>{spot.zone}</td><td class="n">{count(spot.nodes)}</td><td class="n">{count(spot.silent)}</td>
      <td class="n">{spot.flow ? `${bytes(spot.flow.received)}/s` : "-"}</td><td class="n">{spot.flow ? `${bytes(spot.flow.sent)}/s` : "-"}</td></tr>)}</tbody></table></section>;
}

export function Fleet({ live, mount, about }: { live: Live | null; mount: string; about: any }) {
  const [wanted, setWanted] = useState(""), [chosen, setChosen] = useState("");
  const outside = !!about.fleet && (!mount || wanted === "join");
  const [peers, failure] = useAnswer(outside ? "members" : mount ? "fleet" : "", outside ? "" : mount, outside ? 3 : 2);
  const rates = useRates(peers);
  useEffect(() => { if (chosen) document.getElementById(`node-${chosen}`)?.scrollIntoView({ block: "nearest" }); }, [chosen]);
  const source = about.fleet && <section class="card wide"><label>Seen by <select value={outside ? "join" : "mount"} onChange={(event) => setWanted(event.currentTarget.value)}>
    {mount && <option value="mount">the mount {mount}</option>}<option value="join">a node of {about.fleet}</option></select></label></section>;
  if (!mount && !about.fleet) return <section class="card wide"><h2>Fleet</h2><p>Nothing is mounted here. A fleet can be looked at without a mount:</p>
    <p><code>covey ui --join HOST:PORT --secret-file FILE</code></p></section>;
  if (failure) return <>{source}<Failure failure={failure} /></>;
  if (!peers) return <>{source}<p class="card wide">Asking ...</p></>;
  const silent = peers.filter((peer: any) => peer.state === "silent").length, fleet = outside ? null : (live?.last.status as any)?.fleet;
  const around = spots(peers, rates), own = peers.find((peer: any) => OWN.includes(peer.state));
  const zoned = around.some((spot) => spot.nodes > 1);
  return <>
    {source}
    <section class="card wide"><h2>Fleet</h2><div class="figures">
      <Figure name="nodes" value={count(peers.length)} /><Figure name="silent" value={count(silent)} />
      {fleet && <><Figure name="sent to others" value={bytes(fleet.sent_bytes)} /><Figure name="received from others" value={bytes(fleet.received_bytes)} />
        <Figure name="fetches that failed" value={count(fleet.failed)} /></>}
    </div></section>
    {around.length > 0 && around.length <= DRAWN && <section class="card wide"><h2>Links</h2>
      {rates.size === 0 && <p class="dim">Bytes are not known here: a mount's own daemon counts them.</p>}
      <Drawing around={around} own={own ? `${own.node.slice(0, 8)} (${outside ? "asked" : "this node"})` : ""} choose={setChosen} /></section>}
    {zoned && <Zones around={around} />}
    <Nodes peers={peers} rates={rates} chosen={chosen} />
  </>;
}
