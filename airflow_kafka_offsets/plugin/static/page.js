"use strict";
// The theme of Airflow around the page, a filter, links out of Airflow's frame, and a table that refreshes itself.
(() => {
  const root = document.documentElement;

  // In Airflow's frame, its own choice decides; outside of it, that of the system.
  const outer = () => {
    try {
      return window.parent !== window ? window.parent.document.documentElement : null;
    } catch {
      return null;
    }
  };
  const frame = outer();
  const adoptTheme = () => {
    const classes = frame.classList;
    const theme = classes.contains("dark") ? "dark" : classes.contains("light") ? "light" : null;
    if (theme === null) delete root.dataset.theme;
    else root.dataset.theme = theme;
    document.dispatchEvent(new Event("theme"));
  };
  if (frame !== null) {
    root.classList.add("framed");
    adoptTheme();
    new MutationObserver(adoptTheme).observe(frame, { attributeFilter: ["class"] });
  }
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => document.dispatchEvent(new Event("theme")));

  // Airflow's pages open around the frame, whose sandbox does not let its own links do that.
  document.addEventListener("click", (event) => {
    const link = event.target.closest("a[data-airflow]");
    if (link === null || frame === null || event.ctrlKey || event.metaKey || event.shiftKey) return;
    event.preventDefault();
    const outside = window.parent.document.createElement("a");
    outside.href = link.href;
    window.parent.document.body.append(outside);
    outside.click();
    outside.remove();
  });

  // A command is copied, or else selected: a page without TLS has no clipboard.
  document.addEventListener("click", async (event) => {
    const button = event.target.closest("button[data-copy]");
    if (button === null) return;
    const command = button.previousElementSibling;
    try {
      await navigator.clipboard.writeText(command.textContent);
      button.textContent = "Copied";
    } catch {
      getSelection().selectAllChildren(command);
      button.textContent = document.execCommand("copy") ? "Copied" : "Selected: press Ctrl+C";
    }
  });

  // Typing a value chooses its scenario.
  document.addEventListener("input", (event) => {
    const radio = event.target.closest(".choice")?.querySelector("input[type=radio]");
    if (radio !== undefined && radio !== null) radio.checked = true;
  });
  // One click, one rewind.
  document.addEventListener("submit", (event) => {
    for (const button of event.target.querySelectorAll("button")) button.disabled = true;
  });

  const live = document.getElementById("live");
  if (live === null) return;
  const filter = document.getElementById("filter");
  const only = document.getElementById("only-attention");
  const refreshed = document.getElementById("refreshed");

  const applyFilter = () => {
    if (filter === null) return;
    const words = filter.value.toLowerCase().split(/\s+/).filter(Boolean);
    let shown = 0;
    for (const row of live.querySelectorAll("#groups tbody tr")) {
      const urgent = row.classList.contains("critical") || row.classList.contains("warning");
      row.hidden = !words.every((word) => row.dataset.text.includes(word)) || (only.checked && !urgent);
      shown += row.hidden ? 0 : 1;
    }
    const none = document.getElementById("no-match");
    if (none !== null) none.hidden = shown > 0;
  };
  if (filter !== null) {
    const parameters = new URLSearchParams(location.search);
    filter.value = parameters.get("q") ?? "";
    only.checked = parameters.has("attention");
    const changed = () => {
      const url = new URL(location.href);
      filter.value ? url.searchParams.set("q", filter.value) : url.searchParams.delete("q");
      only.checked ? url.searchParams.set("attention", "1") : url.searchParams.delete("attention");
      history.replaceState(null, "", url);
      applyFilter();
    };
    filter.addEventListener("input", changed);
    only.addEventListener("change", changed);
    applyFilter();
  }

  const scrolled = () => [...live.querySelectorAll(".scroll")].map((box) => [box.scrollTop, box.scrollLeft]);
  const seconds = () => Number(document.getElementById("fragment")?.dataset.refresh ?? 10);
  const refresh = async () => {
    if (document.hidden) return schedule();
    try {
      const answer = await fetch(location.href, { headers: { Accept: "text/html" } });
      if (answer.status === 401 || answer.status === 403) return show("logged out: reload the page");
      if (!answer.ok) throw new Error(await answer.text());
      const page = new DOMParser().parseFromString(await answer.text(), "text/html");
      const before = scrolled();
      live.replaceChildren(...page.getElementById("live").childNodes);
      live.querySelectorAll(".scroll").forEach((box, index) => {
        if (before[index] !== undefined) [box.scrollTop, box.scrollLeft] = before[index];
      });
      applyFilter();
      show(`updated ${new Date().toLocaleTimeString()}`);
      document.dispatchEvent(new Event("refreshed"));
    } catch (error) {
      show(`not updated: ${error.message}`);
    }
    schedule();
  };
  const show = (text) => {
    if (refreshed !== null) refreshed.textContent = text;
  };
  const schedule = () => setTimeout(refresh, seconds() * 1000);
  schedule();
})();
