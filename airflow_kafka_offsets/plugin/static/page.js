"use strict";
// The theme of Airflow around the page, filters, links out of Airflow's frame, and a page that refreshes itself.
(() => {
  const root = document.documentElement;
  root.classList.add("script");

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

  // A command, or the positions, are copied; or else selected: a page without TLS has no clipboard.
  document.addEventListener("click", async (event) => {
    const button = event.target.closest("button[data-copy]");
    if (button === null) return;
    const offsets = [...document.querySelectorAll("tr[data-offset]")].map((row) => row.dataset.offset);
    const ofOffsets = button.dataset.copy === "offsets";
    const command = ofOffsets ? document.createElement("pre") : button.previousElementSibling;
    if (ofOffsets) command.textContent = ["topic,partition,offset", ...offsets].join("\n");
    try {
      await navigator.clipboard.writeText(command.textContent);
      button.textContent = "Copied";
    } catch {
      if (ofOffsets) button.after(command);
      getSelection().selectAllChildren(command);
      button.textContent = document.execCommand("copy") ? "Copied" : "Selected: press Ctrl+C";
    }
  });
  for (const link of document.querySelectorAll("a[data-again]")) link.href = location.href;

  // Typing a value chooses its scenario.
  document.addEventListener("input", (event) => {
    const radio = event.target.closest(".choice")?.querySelector("input[type=radio]");
    if (radio !== undefined && radio !== null) radio.checked = true;
  });
  // One click, one rewind.
  document.addEventListener("submit", (event) => {
    if (event.target.method === "post") for (const button of event.target.querySelectorAll("button")) button.disabled = true;
  });

  // Where rows are drawn as cards, some browsers take tables for no tables.
  const ROLES = { TABLE: "table", THEAD: "rowgroup", TBODY: "rowgroup", TR: "row", TD: "cell" };
  const setRoles = (root) => {
    for (const part of root.querySelectorAll("table, thead, tbody, tr, th, td")) {
      part.setAttribute("role", ROLES[part.tagName] ?? (part.scope === "row" ? "rowheader" : "columnheader"));
    }
  };
  setRoles(document);

  const live = document.getElementById("live");
  if (live === null) return;
  const refreshed = document.getElementById("refreshed");
  const show = (text, live = "polite") => {
    if (refreshed === null) return;
    refreshed.setAttribute("aria-live", live);
    refreshed.textContent = text;
  };

  // What did not change stays, with its focus, its selection and where it was scrolled to. What has a key is found again.
  const keyOf = (node) => node.id || node.dataset?.key || "";
  const morph = (old, fresh) => {
    if (old.nodeType !== Node.ELEMENT_NODE) {
      if (old.data !== fresh.data) old.data = fresh.data;
      return;
    }
    for (const { name } of [...old.attributes]) if (!fresh.hasAttribute(name)) old.removeAttribute(name);
    for (const { name, value } of fresh.attributes) if (old.getAttribute(name) !== value) old.setAttribute(name, value);
    const wanted = new Set([...fresh.childNodes].map(keyOf));
    for (const child of [...old.childNodes]) if (keyOf(child) && !wanted.has(keyOf(child))) child.remove();
    const keyed = new Map([...old.childNodes].filter(keyOf).map((child) => [keyOf(child), child]));
    let next = old.firstChild;
    const drop = () => {
      const gone = next;
      next = next.nextSibling;
      gone.remove();
    };
    for (const child of [...fresh.childNodes]) {
      const key = keyOf(child);
      const same = key ? keyed.get(key) : next !== null && !keyOf(next) && next.nodeName === child.nodeName ? next : null;
      if (!same) {
        old.insertBefore(child, next);
      } else {
        // To move a node takes its focus and its selection: blanks before it go instead.
        while (next !== null && next !== same && next.nodeType === Node.TEXT_NODE) drop();
        if (same === next) next = next.nextSibling;
        else old.insertBefore(same, next);
        if (same.nodeType !== child.nodeType || !same.isEqualNode(child)) morph(same, child);
      }
    }
    while (next !== null) drop();
  };

  const seconds = () => Number(document.getElementById("fragment")?.dataset.refresh ?? 10);
  let timer = null;
  let asked = 0;
  const schedule = () => {
    clearTimeout(timer);
    timer = setTimeout(refresh, seconds() * 1000);
  };
  const refresh = async () => {
    if (document.hidden) return schedule();
    const number = ++asked;
    try {
      const answer = await fetch(location.href, { headers: { Accept: "text/html", "X-Part": "live" } });
      const text = await answer.text();
      if (number !== asked) return;
      if (answer.status === 401 || answer.status === 403) return show("logged out: reload the page");
      const page = new DOMParser().parseFromString(answer.ok ? `<div id="live">${text}</div>` : text, "text/html");
      if (!answer.ok) throw new Error(page.querySelector(".message")?.textContent ?? answer.statusText);
      const fresh = page.getElementById("live");
      setRoles(fresh);
      const focused = document.activeElement;
      morph(live, document.adoptNode(fresh));
      if (document.activeElement !== focused && focused.isConnected) focused.focus({ preventScroll: true });
      show(`updated ${new Date().toLocaleTimeString([], { hour12: false })}`, "off");
      document.dispatchEvent(new Event("refreshed"));
    } catch (error) {
      show(`not updated: ${error.message}`);
    }
    schedule();
  };
  schedule();

  // Filters, headings and pages of the table change the address, and what is below it.
  const go = (url) => {
    history.replaceState(null, "", url);
    refresh();
  };
  const fields = () => [...(document.getElementById("filters")?.elements ?? [])].filter((field) => field.name && field.name !== "sort");
  document.addEventListener("click", (event) => {
    const link = event.target.closest("#live a[href^='?']");
    if (link === null || event.ctrlKey || event.metaKey || event.shiftKey) return;
    event.preventDefault();
    const values = new URL(link.href).searchParams;
    for (const field of fields()) field.value = values.get(field.name) ?? "";
    go(link.href);
  });
  const filter = () => {
    const url = new URL(location.href);
    url.searchParams.delete("page");
    for (const { name, value } of fields()) value ? url.searchParams.set(name, value) : url.searchParams.delete(name);
    go(url);
  };
  let typing = null;
  document.addEventListener("input", (event) => {
    if (event.target.closest("#filters") === null) return;
    clearTimeout(typing);
    typing = setTimeout(filter, event.target.tagName === "SELECT" ? 0 : 250);
  });
  document.addEventListener("submit", (event) => {
    if (event.target.id !== "filters") return;
    event.preventDefault();
    clearTimeout(typing);
    filter();
  });
})();
