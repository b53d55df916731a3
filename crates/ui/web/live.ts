// The stream of figures of one mount, and what it says over the last minutes.

export interface Message { stats?: any; status?: any; heat?: any; silent?: any; }
export interface Point { at: number; sources: Record<string, number>; p50: number; p99: number; requests: number; }

export const SOURCES = ["memory", "disk", "peers", "depot", "origin", "names"] as const;
const POINTS = 300;

/// Bytes so far by source, from a status. A volume whose origin is on this machine has no cache: what it reads
/// comes from the disk.
export function bySource(status: any): Record<string, number> {
  const none = { memory: 0, disk: 0, peers: 0, depot: 0, origin: 0, names: 0 };
  const fleet = status?.fleet, cache = status?.far?.cache;
  if (fleet) {
    const of = (...names: string[]) => names.reduce((sum, name) => sum + (fleet[name]?.bytes ?? 0), 0);
    return { ...none, memory: of("memory"), disk: of("disk"), peers: of("peer", "stream", "part"), depot: of("depot", "depot_part"), origin: of("origin", "origin_part") };
  }
  if (cache) return { ...none, memory: cache.memory_bytes, disk: cache.disk_bytes, origin: status.far.requests.received_bytes };
  return none;
}

export class Live {
  points: Point[] = [];
  last: Message = {};
  silent: any = null;
  private before: Record<string, number> | null = null;
  private source: EventSource | null = null;

  constructor(private mount: string, private changed: () => void) {}

  start() {
    this.source = new EventSource(`api/v1/events?mount=${encodeURIComponent(this.mount)}`);
    this.source.onmessage = (event) => this.take(JSON.parse(event.data));
    this.source.onerror = () => { this.silent = { what: "the dashboard does not answer", next: ["is it still running?"] }; this.changed(); };
  }

  stop() { this.source?.close(); }

  take(message: Message) {
    if (message.silent) { this.silent = message.silent; this.before = null; return this.changed(); }
    this.silent = null;
    this.last = message;
    const now = bySource(message.status), seconds = message.stats?.seconds || 1;
    const sources: Record<string, number> = {};
    for (const name of SOURCES) sources[name] = this.before ? Math.max(0, now[name] - this.before[name]) / seconds : 0;
    if (!message.status?.fleet && !message.status?.far) {
      const hits = message.stats?.sources ?? {};
      sources.names = (hits.names?.bytes ?? 0) / seconds;
      sources.disk = ((hits.cache?.bytes ?? 0) + (hits.origin?.bytes ?? 0)) / seconds;
    }
    this.before = now;
    const stats = message.stats ?? {};
    this.points.push({ at: Date.now() / 1000, sources, p50: stats.p50_ns ?? 0, p99: stats.p99_ns ?? 0, requests: (stats.requests ?? 0) / seconds });
    if (this.points.length > POINTS) this.points.shift();
    this.changed();
  }
}

export async function ask(path: string, mount: string, more: Record<string, string> = {}): Promise<any> {
  const answer = await fetch(`api/v1/${path}?${new URLSearchParams({ mount, ...more })}`);
  const body = await answer.json();
  if (!answer.ok) throw body.error ?? { what: `the dashboard answers ${answer.status}` };
  return body;
}

export async function change(path: string, mount: string, token: string): Promise<void> {
  const answer = await fetch(`api/v1/${path}?${new URLSearchParams({ mount })}`, { method: "POST", headers: { Authorization: `Bearer ${token}` } });
  if (!answer.ok) throw (await answer.text()).trim();
}

/// Starts or stops a demo.
export async function demo(method: "POST" | "DELETE", name: string, small: boolean, token: string): Promise<void> {
  const answer = await fetch(`api/v1/demos/${name}${small ? "?small=true" : ""}`, { method, headers: { Authorization: `Bearer ${token}` } });
  if (answer.ok) return;
  const text = await answer.text();
  let why = text.trim();
  try { const { error } = JSON.parse(text); why = [error.what, ...(error.why ?? []), ...(error.next ?? [])].join("; "); } catch { /* a line of text */ }
  throw why;
}
