/** The model, what stands out in it, and all its heads. */
import type { JSX } from "preact";
import { Findings } from "./findings";
import { HeadGrid } from "./grid";
import { ModelCard } from "./model_card";
import "./overview.css";

export function OverviewView(): JSX.Element {
  return (
    <>
      <h2>Overview</h2>
      <div class="stack">
        <div class="overview-top">
          <ModelCard />
          <Findings />
        </div>
        <HeadGrid />
      </div>
    </>
  );
}
