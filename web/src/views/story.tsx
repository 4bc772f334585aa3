/** The model in one scroll: a first screen with all its heads, and what they do, part after part. */
import type { JSX } from "preact";
import type { Exam } from "../contract";
import { exam } from "../store";
import { AllFindings, ChiefFindings } from "./findings";
import { HeadGrid } from "./grid";
import { Sentence } from "./sentence";
import { StoryParts } from "./story_parts";
import "./story.css";

export function StoryView(): JSX.Element {
  const of = exam.value;
  return (
    <div class="story">
      <h2 class="headline" title={of.headline.evidence.join("; ")}>
        {of.headline.text || "This examination has no readings."}
      </h2>
      <p class="story-about small muted">{about(of)}</p>
      <Sentence />
      <div class="first-screen">
        <HeadGrid />
        <ChiefFindings />
      </div>
      <StoryParts />
      <AllFindings />
    </div>
  );
}

/** "all-MiniLM-L6: 22,713,216 parameters in 6 layers of 12 heads · BertModel · examined on 128 sentences" */
function about(of: Exam): string {
  const what = of.story.find(({ name }) => name === "what");
  return what === undefined ? of.model.name : [what.text.replace(/\.$/, ""), ...what.more].join(" · ");
}
