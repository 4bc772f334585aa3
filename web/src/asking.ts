/** Send one request to the server. It waits while the server is busy, and says in words what went wrong. */
import type { Answer, Question, Refusal } from "./contract";

const MOST_TRIES = 60;
const SHORTEST_WAIT = 0.25;

/** A message of the server, or about a missing server. It is shown as it is. */
export class Refused extends Error {}

/** Calls `onWait(true)` while the server is busy. */
export async function answerTo(
  what: "look" | "examine",
  question: Question,
  stop: AbortSignal,
  onWait: (waiting: boolean) => void,
): Promise<Answer> {
  for (let tries = 0; tries < MOST_TRIES; tries++) {
    const response = await send(`api/${what}`, question, stop);
    onWait(response.status === 503);
    if (response.ok) return (await response.json()) as Answer;
    if (response.status !== 503) throw new Refused(await refusalIn(response));
    await pause(Math.max(SHORTEST_WAIT, Number(response.headers.get("Retry-After")) || 1), stop);
  }
  throw new Refused("The server stayed busy for a minute. Try again later.");
}

async function send(path: string, question: Question, stop: AbortSignal): Promise<Response> {
  const headers = { "Content-Type": "application/json" };
  try {
    return await fetch(path, { method: "POST", headers, body: JSON.stringify(question), signal: stop });
  } catch (problem) {
    if (stop.aborted) throw problem;
    throw new Refused("The server has stopped. Start it again with attnworks serve, and open the address it prints.");
  }
}

async function refusalIn(response: Response): Promise<string> {
  const said: unknown = await response.json().catch(() => null);
  const known = typeof said === "object" && said !== null && typeof (said as Refusal).error === "string";
  return known ? (said as Refusal).error : `The server answered ${response.status}.`;
}

function pause(seconds: number, stop: AbortSignal): Promise<void> {
  return new Promise((resolve, reject) => {
    const timer = setTimeout(resolve, 1000 * seconds);
    stop.addEventListener("abort", () => {
      clearTimeout(timer);
      reject(new DOMException("another question was asked", "AbortError"));
    });
  });
}
