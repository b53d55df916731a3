// Numbers as people read them.

export function bytes(n: number): string {
  const units = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];
  let at = 0;
  while (n >= 1024 && at < units.length - 1) { n /= 1024; at++; }
  return `${at === 0 || n >= 100 ? Math.round(n) : n.toFixed(1)} ${units[at]}`;
}

export function count(n: number): string {
  return Math.round(n).toLocaleString("en");
}

export function time(ns: number): string {
  if (ns < 1e3) return `${Math.round(ns)} ns`;
  if (ns < 1e6) return `${(ns / 1e3).toFixed(1)} us`;
  if (ns < 1e9) return `${(ns / 1e6).toFixed(1)} ms`;
  return `${(ns / 1e9).toFixed(1)} s`;
}

export function path(raw: string | number[] | null): string {
  if (raw === null) return "?";
  return typeof raw === "string" ? raw : new TextDecoder().decode(new Uint8Array(raw));
}
