import { render } from "preact";
import { useEffect, useState } from "preact/hooks";
import { Live } from "./live";
import { Demos } from "./demo";
import { Fleet } from "./fleet";
import { Lab } from "./lab";
import { Failure, Heat, Kernel, Overview, Requests, Uploads, type Props } from "./pages";

const PAGES: [string, string, (props: Props) => any][] = [
  ["overview", "Overview", Overview], ["heat", "Heat", Heat], ["requests", "Requests", Requests],
  ["kernel", "Kernel", Kernel], ["uploads", "Uploads", Uploads],
];
/// Pages that need no mount. `about` is what the dashboard says about itself.
const OTHERS: [string, string, (props: { live: Live | null; mount: string; theme: string; about: any }) => any][] = [
  ["fleet", "Fleet", Fleet], ["demo", "Demo", Demos], ["lab", "Lab", Lab],
];
const TITLES = [...PAGES.slice(0, 2), OTHERS[0], ...PAGES.slice(2), ...OTHERS.slice(1)].map(([name, title]) => [name, title]);

function useTheme(): [string, () => void] {
  const wanted = () => localStorage.getItem("theme") ?? (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light");
  const [theme, setTheme] = useState(wanted);
  document.documentElement.dataset.theme = theme;
  const turn = () => { const next = theme === "dark" ? "light" : "dark"; localStorage.setItem("theme", next); setTheme(next); };
  return [theme, turn];
}

function App() {
  const [about, setAbout] = useState<any>(null), mounts: any[] | null = about?.mounts ?? null;
  const [mount, setMount] = useState<string>(""), [live, setLive] = useState<Live | null>(null);
  const [page, setPage] = useState(location.hash.slice(1) || "overview"), [, draw] = useState(0);
  const [theme, turn] = useTheme();
  useEffect(() => {
    const turned = () => setPage(location.hash.slice(1) || "overview");
    addEventListener("hashchange", turned);
    const look = async () => {
      const found = await fetch("api/v1/mounts").then((answer) => answer.json()).catch(() => null);
      if (!found) return;
      setAbout(found);
      setMount((now) => (found.mounts.some((each: any) => each.mountpoint === now) ? now : found.mounts[0]?.mountpoint ?? ""));
    };
    look();
    const timer = setInterval(look, 5000);
    return () => { removeEventListener("hashchange", turned); clearInterval(timer); };
  }, []);
  useEffect(() => {
    if (!mount) return setLive(null);
    const next = new Live(mount, () => draw((n) => n + 1));
    next.start(); setLive(next);
    return () => next.stop();
  }, [mount]);
  const other = OTHERS.find(([name]) => name === page), own = PAGES.find(([name]) => name === page) ?? PAGES[0];
  const Page = own[2], Other = other?.[2], title = (other ?? own)[1];
  document.title = `${title} - Covey`;
  return <>
    <header>
      <h1>Covey</h1>
      <nav aria-label="Pages">{TITLES.map(([name, label]) => <a key={name} href={`#${name}`} aria-current={name === page ? "page" : undefined}>{label}</a>)}</nav>
      <div class="right">
        {mounts && mounts.length > 0 && <label>Mount <select value={mount} onChange={(event) => setMount(event.currentTarget.value)}>
          {mounts.map((each) => <option key={each.mountpoint} value={each.mountpoint}>{each.mountpoint}</option>)}</select></label>}
        <button onClick={turn} aria-label={`Use ${theme === "dark" ? "light" : "dark"} colours`}>{theme === "dark" ? "Light" : "Dark"}</button>
      </div>
    </header>
    <main aria-label={title}>
      {!other && mounts !== null && mounts.length === 0 && <p class="card wide">Nothing is mounted. <code>covey up /mnt/covey</code> starts.</p>}
      {!other && live?.silent && <Failure failure={live.silent} />}
      {Other && about && <Other live={live} mount={mount} theme={theme} about={about} />}
      {!other && live && <Page live={live} mount={mount} theme={theme} changes={about?.changes} />}
    </main>
  </>;
}

render(<App />, document.getElementById("app")!);
