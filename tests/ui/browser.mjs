// The dashboard in a real browser: every page, no error, live figures, and drawing that is quick enough.
//
//   node browser.mjs URL FILE TOKEN PICTURES CHROMIUM HEAT MACHINE
//
// FILE lies on the mount. PICTURES is a folder for screenshots. HEAT is the module that draws the grid, as a script.
// MACHINE is the dashboard of `covey ui` with demos, a lab and a fleet.
import { readFileSync, writeFileSync, openSync, readSync, closeSync } from "node:fs";
import { chromium } from "playwright-core";

const [url, file, token, pictures, executablePath, heat, machine] = process.argv.slice(2);
const PAGES = ["overview", "heat", "fleet", "requests", "kernel", "uploads", "demo", "lab"];
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

/// Nodes as a daemon lists them, with bytes that grow.
function nodes(count, at) {
  return Array.from({ length: count }, (_, n) => ({ node: n.toString(16).padStart(8, "0").padEnd(32, "0"), address: `10.0.0.${n}:7171`,
    zone: `z${n % 3}`, role: n % 7 ? "node" : "depot", generation: 1, weight: 1, free_mib: 900 * n, load_mib: n,
    state: n === 0 ? "own" : n === 5 ? "silent" : "there", received_bytes: at * n * 3e6, sent_bytes: at * (n % 4) * 2e6 }));
}

/// What only `covey ui` has: demos, a lab, and a fleet that is looked at from outside.
async function machinePages(page, colours) {
  const picture = (name) => page.screenshot({ path: `${pictures}/${name}-${colours}.png`, fullPage: true });
  await page.goto(`${machine}/#lab`);
  check(await page.frameLocator("iframe").locator("#lab").textContent() !== "", `the lab is in its frame, ${colours}`);
  await picture("lab-shown");
  await page.goto(`${machine}/#fleet`);
  await page.selectOption("main select", "join");
  await page.waitForSelector("#nodes tbody tr");
  check((await page.textContent("#nodes tbody")).includes("asked"), `members without a mount, ${colours}`);
  await picture("fleet-join");
  let asked = 0;
  await page.route("**/api/v1/fleet*", (route) => route.fulfill({ json: nodes(14, asked++) }));
  await page.selectOption("main select", "mount");
  await page.waitForFunction(() => document.querySelector("svg.fleet .node[aria-label*='MiB/s']"), null, { timeout: 15_000 });
  await page.locator("svg.fleet .node.silent").focus();
  await page.keyboard.press("Enter");
  check(await page.textContent("tr.chosen td.bad") === "silent", `the keyboard chooses a node, ${colours}`);
  await picture("fleet-links");
  await page.goto(`${machine}/#demo`);
  const run = async (title, button) => { await page.fill("input[type=password]", token); await page.click(`[aria-label="${button} demo ${title}"]`); };
  const says = (text) => page.waitForFunction((text) => [...document.querySelectorAll("[role=status]")].some((each) => each.textContent.includes(text)), text);
  await page.fill("input[type=password]", "wrong");
  await page.click('[aria-label^="Run demo A"]');
  await says("token");
  await run("A: the same data again and again", "Run");
  await says("chunk 5");
  check(Number(await page.getAttribute("[role=progressbar]", "aria-valuenow")) > 0, `a demo shows its progress, ${colours}`);
  await picture("demo-runs");
  await says("done");
  await page.waitForTimeout(400);
  check(await page.locator("canvas").count() === 2 && (await page.textContent(".beside")).includes("0.19 ms"), `charts and a result, ${colours}`);
  await picture("demo-done");
  await run("C: a sort over several nodes", "Run");
  await page.waitForFunction(() => document.querySelector("pre")?.textContent.includes("the disk is full"));
  await picture("demo-failed");
  await run("B: more nodes", "Run");
  await says("chunk 2");
  await page.click("text=Stop");
  await says("stopped");
  check(true, `demos fail and stop, ${colours}`);
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
    await machinePages(page, colorScheme);
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
    const look = () => document.querySelectorAll("#nodes tbody tr").length === 1000 ? requestAnimationFrame(() => resolve(performance.now() - begin)) : setTimeout(look, 1);
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
