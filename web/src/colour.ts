/** Colours that remain apart for colour-blind eyes; numbers and words stand beside them everywhere. */
import { theme } from "./store";

export type Rgb = [number, number, number];

/** Lightness falls (or, in the dark, rises) all the way, as in cividis: blue to yellow, or paper to deep blue. */
const LIGHT: Rgb[] = [
  [255, 255, 255],
  [222, 235, 247],
  [158, 202, 225],
  [84, 150, 200],
  [24, 96, 168],
  [8, 48, 107],
];
const DARK: Rgb[] = [
  [20, 24, 33],
  [28, 54, 92],
  [40, 96, 150],
  [86, 146, 178],
  [176, 196, 150],
  [253, 231, 110],
];
const BELOW: Rgb = [178, 88, 10];
const ABOVE: Rgb = [60, 50, 150];
const MIDDLE = { light: [250, 250, 250] as Rgb, dark: [24, 28, 38] as Rgb };
const BELOW_DARK: Rgb = [253, 174, 97];
const ABOVE_DARK: Rgb = [140, 160, 255];

/** From 0 to 1. */
export function sequential(t: number): Rgb {
  return along(theme.value === "dark" ? DARK : LIGHT, clamp(t, 0, 1));
}

/** From -1 to 1; 0 is paper. */
export function diverging(t: number): Rgb {
  const dark = theme.value === "dark";
  const end = t < 0 ? (dark ? BELOW_DARK : BELOW) : dark ? ABOVE_DARK : ABOVE;
  return along([MIDDLE[theme.value], end], Math.abs(clamp(t, -1, 1)));
}

function along(stops: Rgb[], t: number): Rgb {
  const place = t * (stops.length - 1);
  const low = Math.min(Math.floor(place), stops.length - 2);
  const [from, to] = [stops[low]!, stops[low + 1]!];
  const mix = (channel: 0 | 1 | 2) => Math.round(from[channel] + (place - low) * (to[channel] - from[channel]));
  return [mix(0), mix(1), mix(2)];
}

function clamp(x: number, low: number, high: number): number {
  return Number.isNaN(x) ? low : Math.min(high, Math.max(low, x));
}

export function rgb([red, green, blue]: Rgb): string {
  return `rgb(${red} ${green} ${blue})`;
}

/** Black or white, whichever is read better on this. */
export function inkOn([red, green, blue]: Rgb): string {
  return 0.299 * red + 0.587 * green + 0.114 * blue > 140 ? "#16181d" : "#ffffff";
}

/** Of Okabe and Ito, made dark enough for thin lines on paper. */
export const CATEGORIES = [
  "var(--c0)",
  "var(--c1)",
  "var(--c2)",
  "var(--c3)",
  "var(--c4)",
  "var(--c5)",
  "var(--c6)",
  "var(--c7)",
];

const ROLES: [RegExp, number][] = [
  [/^previous|offset -/, 0],
  [/^next|offset [1-9]/, 1],
  [/^self|offset 0/, 2],
  [/^syntactic/, 3],
  [/^rare/, 4],
  [/^duplicate/, 5],
  [/^retrieval/, 6],
];

const NO_ROLE = new Set(["", "none", "first", "delimiter"]);

/** The colour of a role; a head without one is grey, also where it rests. */
export function roleColour(label: string): string {
  if (NO_ROLE.has(label)) return "var(--none)";
  return CATEGORIES[ROLES.find(([pattern]) => pattern.test(label))?.[1] ?? 7]!;
}
