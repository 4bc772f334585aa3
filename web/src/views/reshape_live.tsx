/** Changes by hand: heads are cut or given a fixed form, layers another mechanism; what that does is seen at once. */
import type { JSX } from "preact";
import { useState } from "preact/hooks";
import { Choice, Picker } from "../controls";
import type { Live } from "../contract";
import { live } from "../live";
import { cutOrRestore, project } from "../live_changes";
import { slotName, type HeadName } from "../readings";
import { goTo } from "../store";
import { ResidualsSeen } from "./reshape_effects";
import { HeadSwitches } from "./reshape_switches";

type Tool = "cut" | "project";

export function LivePart({ host }: { host: Live }): JSX.Element {
  const [tool, setTool] = useState<Tool>("cut");
  const forms = [...new Set(Object.values(host.forms).flat())];
  const [form, setForm] = useState(forms[0] ?? "");
  const canBeFormed = ({ kind, layer }: HeadName) => host.forms[slotName(kind, layer)]?.includes(form) ?? false;
  if (host.reshape !== true) {
    return (
      <section aria-labelledby="reshape-live">
        <h3 id="reshape-live">Try it</h3>
        <p class="muted">This model cannot be changed here: {host.reshape}.</p>
      </section>
    );
  }
  const act = (head: string): void => {
    const now = live.changes.value;
    live.change(
      tool === "cut" ? cutOrRestore(now, head) : project(now, head, now.project[head] === form ? null : form),
    );
  };
  return (
    <section class="stack" aria-labelledby="reshape-live">
      <h3 id="reshape-live">Try it</h3>
      <div class="reshape-live">
        <div class="stack">
          <div class="card">
            <div class="row reshape-tools">
              {forms.length > 0 && (
                <Choice
                  label="On click"
                  options={["cut", "project"] as const}
                  value={tool}
                  words={{ cut: "cut the head", project: "project it onto a form" }}
                  onChange={setTool}
                />
              )}
              {tool === "project" && (
                <Picker
                  label="Form"
                  options={forms.map((name) => ({ value: name, text: name }))}
                  value={form}
                  onChange={setForm}
                />
              )}
            </div>
            <HeadSwitches
              mechanisms={host.mechanisms}
              possible={(head) => tool === "cut" || canBeFormed(head)}
              onPick={act}
              onKey={(key, head) => {
                if (key === "c") live.change(cutOrRestore(live.changes.value, head.name));
                else if (key === "p" && canBeFormed(head)) live.change(project(live.changes.value, head.name, form));
                else if (key === "o") goTo("head", head.name);
              }}
            />
            <p class="small muted">
              A second click restores the head. The list of a layer replaces its mechanism. Arrow keys move, Enter acts
              like a click, <kbd>c</kbd> cuts, <kbd>p</kbd> projects, <kbd>o</kbd> opens the head. The model on disk is
              not changed.
            </p>
          </div>
        </div>
        <div class="stack">
          <ResidualsSeen />
        </div>
      </div>
    </section>
  );
}
