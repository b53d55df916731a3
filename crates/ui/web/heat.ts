// The grid of heat: a row for each file, a cell for each MiB. It draws pixels, so that a million cells take some milliseconds.

export interface Cell { row: number; column: number; heat: number; }

// From dark (cold) to bright (hot). 256 colours as the bytes of RGBA.
export const COLOURS: Uint32Array = (() => {
  const stops = [[13, 18, 26], [36, 52, 92], [110, 42, 120], [206, 70, 70], [247, 160, 52], [255, 244, 190]];
  const out = new Uint32Array(256);
  for (let n = 0; n < 256; n++) {
    const at = (n / 255) * (stops.length - 1), low = Math.min(Math.floor(at), stops.length - 2), part = at - low;
    const [r, g, b] = [0, 1, 2].map((c) => Math.round(stops[low][c] + (stops[low + 1][c] - stops[low][c]) * part));
    out[n] = (255 << 24) | (b << 16) | (g << 8) | r;
  }
  return out;
})();

/// Where a score lies between cold (0) and very hot (1). A score at which a chunk is hot is in the middle.
export function intensity(score: number, hotFrom: number): number {
  const value = Math.log2(1 + score / hotFrom);
  return Math.min(1, value / 4 + (score > 0 ? 0.12 : 0));
}

/// Draws cells on a canvas of the given size in device pixels. Returns the size of a cell.
export function draw(context: CanvasRenderingContext2D, width: number, height: number, rows: number, columns: number, cells: Iterable<Cell>) {
  const image = context.createImageData(width, height);
  const pixels = new Uint32Array(image.data.buffer);
  pixels.fill(COLOURS[0]);
  const cellWidth = width / Math.max(columns, 1), cellHeight = height / Math.max(rows, 1);
  const gapX = cellWidth >= 6 ? 1 : 0, gapY = cellHeight >= 6 ? 1 : 0;
  for (const { row, column, heat } of cells) {
    const colour = COLOURS[Math.max(0, Math.min(255, Math.round(heat * 255)))];
    const left = Math.floor(column * cellWidth), right = Math.max(left + 1, Math.floor((column + 1) * cellWidth) - gapX);
    const top = Math.floor(row * cellHeight), bottom = Math.max(top + 1, Math.floor((row + 1) * cellHeight) - gapY);
    // Most cells of a large grid are one pixel, for which fill() would take longer than the rest.
    if (right - left === 1 && bottom - top === 1) {
      if (left < width && top < height) pixels[top * width + left] = colour;
      continue;
    }
    for (let y = top; y < bottom && y < height; y++) pixels.fill(colour, y * width + left, y * width + Math.min(right, width));
  }
  context.putImageData(image, 0, 0);
  return { cellWidth, cellHeight };
}
