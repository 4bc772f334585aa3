/** Changes from layer to layer: whether tokens become the same, the paths of the output, how sharp attention is. */
import { useSignal } from "@preact/signals";
import type { JSX } from "preact";
import type { Kind } from "../contract";
import { Choice } from "../controls";
import { KIND_WORDS, kindsOf } from "../readings";
import { exam, page } from "../store";
import "./depth.css";
import { isThere, nameOf } from "./depth_figures";
import { Sameness, Sharpness } from "./depth_parts";
import { Paths } from "./depth_paths";

export function DepthView(): JSX.Element {
  const chosen = useSignal<Kind | null>(null);
  const kinds = kindsOf(exam.value).filter((kind) => isThere(kind, MEASURED, [exam.value]));
  const kind = kinds.find((one) => one === chosen.value) ?? kinds[0];
  return (
    <section class="stack">
      <h2>Depth</h2>
      <p class="muted">
        How the tokens change from layer to layer. Depth 0 is the embedding; depth 1 is the output of the first layer
        (layer 0). Shaded bands around a curve are 95 % intervals of the mean over sentences.
      </p>
      {kind === undefined ? (
        <p>
          Nothing was measured by depth. To measure it:{" "}
          <code>attnworks examine MODEL --measures rank,residuals,paths,saturation</code>
        </p>
      ) : (
        <>
          {kinds.length > 1 && (
            <Choice
              label="Attention"
              options={kinds}
              value={kind}
              words={KIND_WORDS}
              onChange={(one) => (chosen.value = one)}
            />
          )}
          <Exams />
          <Sameness kind={kind} />
          <Paths kind={kind} />
          <Sharpness kind={kind} />
        </>
      )}
    </section>
  );
}

const MEASURED = /^(rank|ranks|residuals|paths|saturation)\./;

/** Which lines are of which examination, or how to get a second one. */
function Exams(): JSX.Element {
  const [first, second] = page.value.exams;
  if (first !== undefined && second !== undefined) {
    return (
      <p>
        Both examinations are drawn: <b>{nameOf(first)}</b> with solid lines and <b>{nameOf(second)}</b> with dashed
        lines. Where there are bounds, the examinations differ in colour, and dashed lines are the bounds.
      </p>
    );
  }
  if (page.value.live !== null) {
    return <p class="small muted">Cut, project or swap heads in the Reshape view; both models are then drawn here.</p>;
  }
  return (
    <p class="small muted">
      To see how skip connections, MLPs and norms counteract rank collapse, examine the model again with{" "}
      <code>--without skip,mlp --out bare/</code>; <code>attnworks report exam/ bare/</code> then draws both here.
    </p>
  );
}
