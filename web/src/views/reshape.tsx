/** What could be changed in the model, what was changed, and, on the live page, what changes do at once. */
import type { JSX } from "preact";
import { page } from "../store";
import { AdvicePart } from "./reshape_advice";
import { GrowthPart } from "./reshape_growth";
import { LivePart } from "./reshape_live";
import { PlanPart } from "./reshape_plan";
import { ReceiptsPart } from "./reshape_receipts";
import { TrainingPart } from "./reshape_training";
import "./reshape.css";

export function ReshapeView(): JSX.Element {
  return (
    <div class="reshape whole-words stack">
      <header>
        <h2>Reshape</h2>
        <p class="muted">
          Which heads can be removed, where capacity is missing, which cheaper attention would do, and the results of
          changes already made.
        </p>
      </header>
      {page.value.live !== null && <LivePart host={page.value.live} />}
      <PlanPart />
      <GrowthPart />
      <AdvicePart advice={page.value.advice} />
      <ReceiptsPart receipts={page.value.receipts} />
      <TrainingPart />
    </div>
  );
}
