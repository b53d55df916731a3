// Charts of the last minutes. Each has a table beside it for people who do not see it.

import { useEffect, useRef } from "preact/hooks";
import uPlot from "uplot";

export interface Line { label: string; colour: string; values: number[]; }

export function colour(name: string): string {
  return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
}

/// Steps of the time axis.
const SECONDS = [1, 2, 5, 10, 15, 30, 60, 120, 300];

function clock(at: number): string {
  return new Date(at * 1000).toTimeString().slice(0, 8);
}

/// Lines over time, or areas that are stacked, so that the upper edge is the sum.
export function Chart({ title, times, lines, stacked, log, format, theme }:
  { title: string; times: number[]; lines: Line[]; stacked?: boolean; log?: boolean; format: (n: number) => string; theme: string }) {
  const box = useRef<HTMLDivElement>(null), plot = useRef<uPlot | null>(null);
  const data: uPlot.AlignedData = [times];
  if (stacked) {
    const sums = times.map(() => 0);
    const layers = lines.map((line) => line.values.map((value, at) => (sums[at] += value)));
    layers.reverse().forEach((layer) => data.push(layer));
  } else {
    lines.forEach((line) => data.push(log ? line.values.map((value) => value || null) as any : line.values));
  }
  useEffect(() => {
    const element = box.current!;
    const shown = stacked ? [...lines].reverse() : lines;
    const axis = { stroke: colour("--dim"), grid: { stroke: colour("--line"), width: 1 }, ticks: { stroke: colour("--line"), width: 1 } };
    const options: uPlot.Options = {
      width: element.clientWidth, height: 220, legend: { show: false }, cursor: { show: false },
      scales: { x: { time: true }, y: log ? { distr: 3 } : { range: (_, __, max) => [0, Math.max(1024, max * 1.05)] } },
      axes: [{ ...axis, incrs: SECONDS, values: (_, ticks) => ticks.map(clock) }, { ...axis, size: 78, values: (_, ticks) => ticks.map((tick) => (tick === null ? "" : format(tick))) }],
      series: [{}, ...shown.map((line) => ({ label: line.label, stroke: colour(line.colour), width: 1.5, points: { show: false },
        ...(stacked ? { fill: colour(line.colour) } : {}) }))],
    };
    plot.current = new uPlot(options, data, element);
    const resized = new ResizeObserver(() => plot.current?.setSize({ width: element.clientWidth, height: 220 }));
    resized.observe(element);
    return () => { resized.disconnect(); plot.current?.destroy(); };
  }, [theme, lines.length]);
  useEffect(() => { plot.current?.setData(data); });
  const now = (line: Line) => format(line.values[line.values.length - 1] ?? 0);
  return (
    <section class="card wide" aria-label={title}>
      <h2>{title}</h2>
      <div ref={box} aria-hidden="true" />
      <ul class="legend" aria-label={`${title}, now`}>
        {lines.map((line) => <li key={line.label}><i style={{ background: `var(${line.colour})` }} />{line.label}: {now(line)}</li>)}
      </ul>
    </section>
  );
}
