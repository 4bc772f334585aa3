/** The statements of the documents: verdict, formula, and the numbers that were found. */
import { computed, signal } from "@preact/signals";
import type { JSX, RefObject } from "preact";
import { useEffect, useRef } from "preact/hooks";
import { bytesOf } from "../blobs";
import type { Claim } from "../contract";
import { Picker, toggled } from "../controls";
import { isTyping } from "../keys";
import { page, printing, route } from "../store";
import { ClaimRow } from "./claim_row";
import "./claims.css";
import type { Document, Sort } from "./claims_search";
import { documentOf, DOCUMENTS, EVERYTHING, isWanted, mentions, SORTS, sortOf } from "./claims_search";
import { useLoaded } from "./loaded";

const claims = signal<Claim[]>([]);
const wanted = signal(EVERYTHING);
const opened = signal<ReadonlySet<string>>(new Set());
const shown = computed(() => new Set(claims.value.filter((claim) => isWanted(claim, wanted.value))));

export function ClaimsView(): JSX.Element {
  return page.value.claims === null ? <NoClaims /> : <Claims blob={page.value.claims} />;
}

function NoClaims(): JSX.Element {
  return (
    <section>
      <h2>Claims</h2>
      <p>
        This page was made without the claims. <code>attnworks claims</code> checks all statements and prints the
        results.
      </p>
    </section>
  );
}

function Claims({ blob }: { blob: string }): JSX.Element {
  const loaded = useLoaded(() => load(blob), [blob]);
  const search = useRef<HTMLInputElement>(null);
  useKeys(search);
  useDeepLink(loaded !== null);
  const count = shown.value.size;
  return (
    <section class="claims">
      <h2>Claims</h2>
      <p class="muted">
        attnworks is based on five documents. Each of their statements has a verdict, found by computing both of its
        sides wherever there is something to compute. Our own results come last. Open a statement to see its numbers.
      </p>
      {loaded !== null && route.value.claim !== null && !claims.value.some(({ id }) => id === wantedId()) && (
        <p role="alert">
          There is no statement <code>{route.value.claim}</code>.
        </p>
      )}
      <div class="claims-tools">
        <label class="claims-search">
          <span class="visually-hidden">Search the claims</span>
          <input
            ref={search}
            type="search"
            placeholder="Search: softmax, S0.17, theorem 2.2, \beta …"
            value={wanted.value.words}
            onInput={(event) => (wanted.value = { ...wanted.value, words: event.currentTarget.value })}
          />
          <kbd aria-hidden="true">/</kbd>
        </label>
        <Picker
          label="Document"
          options={[
            { value: "", text: "all" },
            ...DOCUMENTS.map(({ key, author }) => ({ value: key, text: `${key} · ${author}` })),
          ]}
          value={wanted.value.document}
          onChange={(document) => (wanted.value = { ...wanted.value, document })}
        />
        <Sorts />
        <p class="small muted" role="status">
          {loaded === null ? "Loading …" : `${count} of ${claims.value.length} shown`}
          {count < claims.value.length && (
            <button type="button" class="quiet" onClick={() => (wanted.value = EVERYTHING)}>
              Show all
            </button>
          )}
        </p>
      </div>
      {DOCUMENTS.map((document) => (
        <Group key={document.key} document={document} />
      ))}
      {loaded !== null && count === 0 && <p>No statement contains all of these words. Try fewer words.</p>}
    </section>
  );
}

async function load(blob: string): Promise<true> {
  claims.value = JSON.parse(new TextDecoder().decode(await bytesOf(blob))) as Claim[];
  return true;
}

/** How many there are of each verdict, and buttons that show these alone. */
function Sorts(): JSX.Element {
  const { sorts } = wanted.value;
  const found = claims.value.filter((claim) => mentions(claim, wanted.value)).map(sortOf);
  return (
    <div class="row" role="group" aria-label="Verdicts">
      {(Object.keys(SORTS) as Sort[]).map((sort) => (
        <button
          key={sort}
          type="button"
          class="claims-sort"
          data-verdict={sort}
          aria-pressed={sorts.has(sort)}
          onClick={() => (wanted.value = { ...wanted.value, sorts: toggled(sorts, sort) })}
        >
          <span class="claims-mark" aria-hidden="true">
            {SORTS[sort].mark}
          </span>
          {SORTS[sort].words} <b>{found.filter((one) => one === sort).length}</b>
        </button>
      ))}
    </div>
  );
}

function Group({ document }: { document: Document }): JSX.Element | null {
  const own = claims.value.filter((claim) => documentOf(claim) === document.key);
  const count = own.filter((claim) => shown.value.has(claim)).length;
  if (own.length === 0) return null;
  return (
    <section class="claims-group" aria-labelledby={`claims-${document.key}`} hidden={count === 0}>
      <h3 id={`claims-${document.key}`}>
        {document.author} <span class="muted">{document.title}</span>
        <span class="claims-count muted small">{count === own.length ? count : `${count} of ${own.length}`}</span>
      </h3>
      <ul>
        {own.map((claim) => (
          <ClaimRow
            key={claim.id}
            claim={claim}
            hidden={!shown.value.has(claim)}
            open={opened.value.has(claim.id) || (printing.value && shown.value.has(claim))}
            onToggle={() => (opened.value = toggled(opened.value, claim.id))}
          />
        ))}
      </ul>
    </section>
  );
}

function wantedId(): string | null {
  return route.value.claim?.toUpperCase() ?? null;
}

/** #claim=S0.17: open it and go there, even if it was filtered out. */
function useDeepLink(loaded: boolean): void {
  const id = wantedId();
  useEffect(() => {
    const claim = claims.value.find((one) => one.id === id);
    if (!loaded || claim === undefined) return;
    if (!shown.value.has(claim)) wanted.value = EVERYTHING;
    opened.value = new Set([...opened.value, claim.id]);
    const later = setTimeout(() => focusOn(document.getElementById(`claim-${claim.id}`), "start"));
    return () => clearTimeout(later);
  }, [id, loaded]);
}

/** / goes to the search; j and k, or the arrows, from a statement to the next and back. */
function useKeys(search: RefObject<HTMLInputElement | null>): void {
  useEffect(() => {
    const onKey = (event: KeyboardEvent): void => {
      if (isTyping(event) || !(event.target instanceof Element)) return;
      const onRow = event.target.closest(".claim-id") !== null;
      if (event.key === "/") search.current?.focus();
      else if (event.key === "j" || (onRow && event.key === "ArrowDown")) step(1);
      else if (event.key === "k" || (onRow && event.key === "ArrowUp")) step(-1);
      else return;
      event.preventDefault();
    };
    addEventListener("keydown", onKey);
    return () => removeEventListener("keydown", onKey);
  }, []);
}

/** From the statement that has the focus, else from the top of what is seen. */
function step(by: 1 | -1): void {
  const rows = [...document.querySelectorAll<HTMLElement>(".claim:not([hidden])")];
  const at = rows.findIndex((row) => row.contains(document.activeElement));
  const seen = rows.findIndex((row) => row.getBoundingClientRect().bottom > 0);
  focusOn(rows[at < 0 ? Math.max(seen, 0) : at + by] ?? null, "nearest");
}

function focusOn(row: HTMLElement | null, block: "start" | "nearest"): void {
  row?.querySelector<HTMLElement>(".claim-id")?.focus({ preventScroll: true });
  row?.scrollIntoView({ block });
  requestAnimationFrame(() => row?.scrollIntoView({ block }));
}
