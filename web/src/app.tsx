/** The frame around every view: title, tabs, which examination and sentence, light and dark, keys. */
import type { JSX, RefObject } from "preact";
import { useEffect, useErrorBoundary, useRef } from "preact/hooks";
import { Picker } from "./controls";
import { isTyping } from "./keys";
import { beginning } from "./heatmap";
import { LiveBar } from "./live_bar";
import { SaveView } from "./save_view";
import { choose, exam, examIndex, linkTo, page, pinIndex, route, theme, turnTheme, views, type View } from "./store";
import { AlignmentView } from "./views/alignment";
import { ClaimsView } from "./views/claims";
import { CompareView } from "./views/compare";
import { DepthView } from "./views/depth";
import { HeadView } from "./views/head";
import { ReshapeView } from "./views/reshape";
import { StoryView } from "./views/story";

const SHOWN: Record<View, { words: string; Body: () => JSX.Element }> = {
  story: { words: "Story", Body: StoryView },
  head: { words: "Head", Body: HeadView },
  depth: { words: "Depth", Body: DepthView },
  alignment: { words: "Alignment", Body: AlignmentView },
  reshape: { words: "Reshape", Body: ReshapeView },
  compare: { words: "Compare", Body: CompareView },
  claims: { words: "Claims", Body: ClaimsView },
};

export function App(): JSX.Element {
  const { view, head } = route.value;
  const { Body, words } = SHOWN[view];
  const help = useRef<HTMLDialogElement>(null);
  const main = useRef<HTMLElement>(null);
  useEffect(() => {
    document.querySelector("nav [aria-current]")?.scrollIntoView({ block: "nearest", inline: "nearest" });
    document.title = `${[words, head].filter(Boolean).join(" ")} · ${page.value.title}`;
  }, [view, head]);
  useArrival(view, main);
  useEffect(() => {
    const onKey = (event: KeyboardEvent): void => {
      if (isTyping(event)) return;
      if (event.key === "?") help.current?.showModal();
      const place = Number(event.key) - 1;
      const wanted = views.value[place];
      if (wanted !== undefined) location.hash = linkTo(wanted);
    };
    addEventListener("keydown", onKey);
    return () => removeEventListener("keydown", onKey);
  }, []);
  return (
    <>
      <a class="skip" href="#main" onClick={(event) => (event.preventDefault(), main.current?.focus())}>
        Skip to content
      </a>
      <header class="top">
        <h1>{page.value.title}</h1>
        <div class="top-tools">
          <Which />
          <SaveView />
          <button
            type="button"
            class="quiet"
            aria-label={`Change to ${theme.value === "dark" ? "light" : "dark"} colours`}
            onClick={turnTheme}
          >
            {theme.value === "dark" ? "☀" : "☾"}
          </button>
          <button type="button" class="quiet" aria-label="Keyboard shortcuts" onClick={() => help.current?.showModal()}>
            ?
          </button>
        </div>
        <nav aria-label="Views">
          {views.value.map((name) => (
            <a key={name} href={linkTo(name)} aria-current={name === view ? "page" : undefined}>
              {SHOWN[name].words}
            </a>
          ))}
        </nav>
      </header>
      {page.value.live !== null && <LiveBar />}
      <main id="main" tabIndex={-1} ref={main}>
        <View Body={Body} />
      </main>
      <footer class="small muted">
        attnworks {page.value.version}.{" "}
        {page.value.live === null
          ? "This page contains all its data and makes no network requests."
          : "This page sends requests only to the server that it came from."}
      </footer>
      <Keys dialog={help} />
    </>
  );
}

/** A new view starts at its top and gets the focus; a view that the reader returns to keeps its scroll position. */
function useArrival(view: View, main: RefObject<HTMLElement | null>): void {
  const before = useRef(view);
  useEffect(() => {
    const isNew = history.state === null;
    history.replaceState("visited", "");
    if (before.current === view) return;
    before.current = view;
    main.current?.focus({ preventScroll: true });
    if (isNew) scrollTo(0, 0);
  }, [route.value]);
}

/** A view that cannot be drawn says so; the other views still work. */
function View({ Body }: { Body: () => JSX.Element }): JSX.Element {
  const [problem, again] = useErrorBoundary();
  useEffect(again, [route.value, page.value]);
  if (problem === undefined) return <Body />;
  return <p role="alert">This cannot be shown: {String(problem)}. Choose another view or head.</p>;
}

/** Where there are several: which examination, and which sentence. */
function Which(): JSX.Element {
  const { exams } = page.value;
  const { pins } = exam.value;
  return (
    <>
      {exams.length > 1 && (
        <Picker
          label="Examination"
          options={exams.map(({ label }, place) => ({ value: String(place), text: label }))}
          value={String(examIndex.value)}
          onChange={(place) => choose({ exam: Number(place) })}
        />
      )}
      {pins.length > 1 && (
        <Picker
          label="Sentence"
          options={pins.map(({ tokens }, place) => ({ value: String(place), text: beginning(tokens) }))}
          value={String(pinIndex.value)}
          onChange={(place) => choose({ sentence: Number(place) })}
        />
      )}
    </>
  );
}

function Keys({ dialog }: { dialog: { current: HTMLDialogElement | null } }): JSX.Element {
  const keys: [string, string][] = [
    ["1 to 7", "go to a view, counted from the left"],
    ["← →", "previous head, next head (Head view)"],
    ["↑ ↓", "same head in the previous layer, in the next layer (Head view)"],
    ["j k", "same as → and ← (Head view)"],
    ["arrows", "move between heads, words or dots (when one has the focus)"],
    ["arrows, + − 0", "move over the cells of a matrix, zoom in, zoom out, show all (when it has the focus)"],
    ["c, p, o", "cut the head, project it onto the form, open it (live, Reshape view)"],
    ["?", "show this list"],
  ];
  return (
    <dialog ref={dialog} aria-labelledby="keys-title">
      <h2 id="keys-title">Keyboard shortcuts</h2>
      <dl class="keys">
        {keys.map(([key, words]) => (
          <div key={key}>
            <dt>
              <kbd>{key}</kbd>
            </dt>
            <dd>{words}</dd>
          </div>
        ))}
      </dl>
      <button type="button" onClick={() => dialog.current?.close()}>
        Close
      </button>
    </dialog>
  );
}
