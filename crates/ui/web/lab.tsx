// JupyterLab in a frame. It decides itself who may use it.

export function Lab({ about }: { about: any }) {
  if (!about.lab) return <section class="card wide"><h2>Lab</h2>
    <p>JupyterLab with notebooks on a mounted volume. In a checkout of the project:</p>
    <p><code>make lab LAB_ARGS="--dashboard {location.host}"</code></p>
    <p>It prints an address with a token. Start the dashboard with the address, and enter the token in the frame:</p>
    <p><code>covey ui --lab http://127.0.0.1:8888/lab</code></p></section>;
  return <section class="card wide lab"><h2>Lab</h2>
    <p class="dim">If nothing is shown: does it still run, and was it started with <code>--dashboard {location.host}</code>?{" "}
      <a href={about.lab} target="_blank" rel="noopener noreferrer">Open it in a tab of its own</a></p>
    <iframe src={about.lab} title="JupyterLab" referrerpolicy="no-referrer" allow="clipboard-write"
      sandbox="allow-scripts allow-same-origin allow-forms allow-popups allow-downloads allow-modals" /></section>;
}
