/** What the page shows. The view is part of the address, so that it can be sent to others. */
import { computed, effect, signal } from "@preact/signals";
import type { Exam, Page, Pin } from "./contract";

export const VIEWS = ["story", "head", "depth", "alignment", "reshape", "compare", "claims"] as const;
export type View = (typeof VIEWS)[number];

interface Route {
  view: View;
  head: string | null;
}

const NOTHING: Page = {
  format: 1,
  version: "",
  host: "file",
  title: "",
  exams: [],
  comparison: null,
  advice: null,
  receipts: [],
  live: null,
  start: null,
  remarks: [],
};

const NO_EXAM: Exam = {
  label: "",
  model: { name: "", kinds: [], layers: {}, heads: {} },
  corpus: {},
  readings: {},
  findings: [],
  headline: { text: "", evidence: [] },
  story: [],
  work: null,
  notes: [],
  pins: [],
  attended: null,
};

export const page = signal<Page>(NOTHING);

// The view in the address -----------------------------------------------------------------------------------------------

const address = signal(location.hash);
addEventListener("hashchange", () => (address.value = location.hash));

/** In a frame of a notebook, "#head" would lead to that place of the notebook: the page goes there itself. */
if (location.protocol === "about:") {
  addEventListener("click", (event) => {
    const link = event.target instanceof Element ? event.target.closest("a")?.getAttribute("href") : null;
    if (event.defaultPrevented || !link?.startsWith("#")) return;
    event.preventDefault();
    location.hash = link;
  });
}

/** #depth, #head=enc.3.7; behind it &sentence=1 and &exam=1. */
export const route = computed<Route>(() => {
  const said = new URLSearchParams(address.value.slice(1));
  const [first] = said.keys();
  const head = said.get("head");
  if (head !== null) return { view: "head", head: head || null };
  const view = views.value.find((name) => name === first) ?? "story";
  return { view, head: null };
});

/** The views that have something to show for these examinations. */
export const views = computed<View[]>(() => {
  const { exams, live } = page.value;
  const crosses = exams.some(({ model }) => model.kinds.includes("cross"));
  const apply: Partial<Record<View, boolean>> = {
    alignment: crosses,
    claims: exams.some(({ readings }) => Object.keys(readings).some((name) => name.startsWith("bounds."))),
    compare: exams.length > 1 || live?.reshape === true,
  };
  return VIEWS.filter((view) => apply[view] ?? true);
});

/** The head that was shown last: the view Head returns to it. */
export const lastHead = signal<string | null>(null);
effect(() => {
  lastHead.value = route.value.head ?? lastHead.peek();
});

export const examIndex = computed(() => placeSaid("exam", page.value.exams.length));
export const exam = computed<Exam>(() => page.value.exams[examIndex.value] ?? NO_EXAM);
export const pinIndex = computed(() => placeSaid("sentence", exam.value.pins.length));
export const pin = computed<Pin | null>(() => exam.value.pins[pinIndex.value] ?? null);

function placeSaid(name: string, count: number): number {
  const place = Number(new URLSearchParams(address.value.slice(1)).get(name) ?? 0);
  return Number.isInteger(place) && place >= 0 && place < count ? place : 0;
}

/** Which examination and which sentence; by default those that are shown now. */
export interface Which {
  exam?: number;
  sentence?: number;
}

export function linkTo(view: View, what?: string, which: Which = {}): string {
  const { exam: examined = examIndex.value, sentence = pinIndex.value } = which;
  const where = what === undefined ? view : `${view}=${encodeURIComponent(what)}`;
  const parts = [
    where,
    ...(examined > 0 ? [`exam=${examined}`] : []),
    ...(sentence > 0 ? [`sentence=${sentence}`] : []),
  ];
  return `#${parts.join("&")}`;
}

export function goTo(view: View, what?: string): void {
  location.hash = linkTo(view, what);
}

/** Another sentence, or another examination, in the same view. */
export function choose(which: Which): void {
  const { view, head } = route.value;
  location.hash = linkTo(view, head ?? undefined, which);
}

// Light and dark --------------------------------------------------------------------------------------------------------

type Theme = "light" | "dark";
const THEME = "attnworks theme";
const prefersDark = matchMedia("(prefers-color-scheme: dark)");
const wanted = signal<Theme>(remembered() ?? (prefersDark.matches ? "dark" : "light"));
prefersDark.addEventListener("change", (event) => (wanted.value = event.matches ? "dark" : "light"));
const paper = matchMedia("print");
export const printing = signal(paper.matches);
paper.addEventListener("change", (event) => (printing.value = event.matches));
/** Printed pages are always light. */
export const theme = computed<Theme>(() => (printing.value ? "light" : wanted.value));
export function turnTheme(): void {
  wanted.value = wanted.value === "dark" ? "light" : "dark";
  try {
    localStorage.setItem(THEME, wanted.value);
  } catch {
    // A frame of another origin has no storage: the theme lasts as long as the page.
  }
}

/** The theme that the reader chose before; null where there is none, or no storage. */
function remembered(): Theme | null {
  try {
    const theme = localStorage.getItem(THEME);
    return theme === "dark" || theme === "light" ? theme : null;
  } catch {
    return null;
  }
}
effect(() => {
  document.documentElement.dataset["theme"] = theme.value;
});
