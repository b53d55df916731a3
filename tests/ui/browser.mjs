// The dashboard in a real browser: every page, no error, live figures, and drawing that is quick enough.
//
//   node browser.mjs URL FILE TOKEN PICTURES CHROMIUM HEAT
//
// FILE lies on the mount. PICTURES is a folder for screenshots. HEAT is the module that draws the grid, as a script.
import { readFileSync, writeFileSync, openSync, readSync, closeSync } from "node:fs";
import { chromium } from "playwright-core";

const [url, file, token, pictures, executablePath, heat] = process.argv.slice(2);
const PAGES = ["overview", "heat", "fleet", "requests", "kernel", "uploads"];
const problems = [];
const check = (holds, what) => { if (!holds) { problems.push(what); console.error(`FAILED ${what}`); } else console.log(`ok ${what}`); };

/// Reads the file as programs do, and writes others, because the page cache answers most reads.
let made = 0;
function read() {
  for (let n = 0; n < 20; n++) writeFileSync(`${file}.${made++ % 200}`, `${made}`);
  const fd = openSync(file, "r"), buffer = Buffer.alloc(1 << 17);
  while (readSync(fd, buffer, 0, buffer.length, null) > 0);
  closeSync(fd);
}

const browser = await chromium.launch({ executablePath, args: ["--no-sandbox"], headless: true });
try {
  for (const colorScheme of ["light", "dark"]) {
    const page = await browser.newPage({ viewport: { width: 1280, height: 900 }, colorScheme });
    page.on("pageerror", (error) => problems.push(`error: ${error.message}`));
    page.on("console", (message) => {
      // The browser itself reports an answer such as 404: a mount that is in no fleet, say.
      if (message.type() === "error" && !message.text().startsWith("Failed to load resource")) problems.push(`console: ${message.text()}`);
    });
    for (const name of PAGES) {
      await page.goto(`${url}/#${name}`);
      read();
      await page.waitForSelector("main .card");
      for (let left = name === "overview" ? 40 : 20; left; left--) { read(); await page.waitForTimeout(120); }
      await page.screenshot({ path: `${pictures}/${name}-${colorScheme}.png`, fullPage: true });
      const title = await page.title(), current = await page.getAttribute("nav a[aria-current]", "href");
      check(title.endsWith("Covey") && current === `#${name}`, `${name}, ${colorScheme}`);
    }
    await page.close();
  }
  const page = await browser.newPage({ viewport: { width: 1280, height: 900 } });
  await page.goto(`${url}/#overview`);
  await page.waitForFunction(() => document.querySelector(".figure b")?.textContent !== undefined);
  await page.waitForTimeout(3000);
  const shown = () => page.evaluate(() => document.querySelector(".figure b").textContent);
  const before = await shown(), begin = Date.now();
  let after = before;
  while (after === before && Date.now() - begin < 10_000) { read(); await page.waitForTimeout(100); after = await shown(); }
  check(after !== before && Date.now() - begin < 2_500, `figures are live after ${Date.now() - begin} ms (${before} -> ${after})`);
  await page.goto(`${url}/#uploads`);
  await page.fill("input[type=password]", "wrong");
  await page.click("text=Make it durable");
  await page.waitForFunction(() => document.querySelector("[role=status]").textContent.includes("token"));
  await page.fill("input[type=password]", token);
  await page.click("text=Make it durable");
  await page.waitForFunction(() => document.querySelector("[role=status]").textContent.includes("done"));
  check(true, "a change needs the token");
  await page.keyboard.press("Tab");
  check(await page.evaluate(() => document.activeElement !== document.body), "the keyboard reaches the page");
  // A thousand nodes, on the real page.
  await page.route("**/api/v1/fleet*", (route) => route.fulfill({ json: Array.from({ length: 1000 }, (_, n) => ({ node: n.toString(16).padStart(32, "0"),
    address: `10.0.${n >> 8}.${n & 255}:7171`, zone: `z${n % 8}`, role: "node", generation: 1, weight: 1, free_mib: n, load_mib: 0, state: n % 50 ? "there" : "silent" })) }));
  const drawn = await page.evaluate(() => new Promise((resolve) => {
    const begin = performance.now();
    location.hash = "#fleet";
    const look = () => document.querySelectorAll("tbody tr").length === 1000 ? requestAnimationFrame(() => resolve(performance.now() - begin)) : setTimeout(look, 1);
    look();
  }));
  check(drawn < 1000, `1,000 nodes are there after ${Math.round(drawn)} ms`);
  const frame = await page.evaluate(() => new Promise((resolve) => {
    let last = performance.now(), worst = 0, left = 60;
    const step = (now) => { worst = Math.max(worst, now - last); last = now; left-- ? requestAnimationFrame(step) : resolve(worst); };
    requestAnimationFrame(step);
  }));
  check(frame < 100, `1,000 nodes: the longest of 60 frames takes ${Math.round(frame)} ms`);
  const cells = await page.evaluate((script) => {
    const { draw } = new Function(`${script}; return heat;`)();
    const canvas = document.createElement("canvas");
    canvas.width = 1240; canvas.height = 480;
    const cells = Array.from({ length: 1_000_000 }, (_, n) => ({ row: Math.floor(n / 2000), column: n % 2000, heat: (n % 97) / 97 }));
    const times = [];
    for (let n = 0; n < 7; n++) {
      const begin = performance.now();
      draw(canvas.getContext("2d"), canvas.width, canvas.height, 500, 2000, cells);
      times.push(performance.now() - begin);
    }
    return times.sort((a, b) => a - b)[3];
  }, readFileSync(heat, "utf8"));
  check(cells < 100, `a million cells are drawn in ${Math.round(cells)} ms`);
} finally {
  await browser.close();
}
if (problems.length) { console.error(problems.join("\n")); process.exit(1); }
