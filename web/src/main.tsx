/** Unpack the page's data, draw the first view, and say so: body[data-ready]. */
import { render } from "preact";
import { App } from "./app";
import { unpack } from "./blobs";
import type { Page } from "./contract";
import "./page.css";
import { page } from "./store";

async function begin(): Promise<void> {
  const packed = document.getElementById("page")?.textContent ?? "";
  page.value = JSON.parse(new TextDecoder().decode(await unpack(packed))) as Page;
  if (location.hash === "" && page.value.start !== null) location.hash = page.value.start;
  render(<App />, document.getElementById("app")!);
  requestAnimationFrame(() => requestAnimationFrame(() => (document.body.dataset["ready"] = "true")));
}

begin().catch((error: unknown) => {
  const place = document.getElementById("app") ?? document.body;
  place.textContent = `This page cannot be shown: ${String(error)}. It needs a browser from 2023 or later.`;
});
