/** One head in the grid: its picture, name, role and value, and a link to more. */
import type { JSX } from "preact";
import type { Thumbnail } from "../blobs";
import { inkOn, rgb, roleColour, sequential } from "../colour";
import type { HeadName } from "../readings";
import { digits, shown } from "../readings";
import { exam, linkTo } from "../store";
import { colouring, extent, measure, measured } from "./grid_state";
import { RoleDot } from "./role_dot";
import { labelOf, roleName, roleSign } from "./roles";
import { ThumbnailImage } from "./thumbnails";
import "./tile.css";

export function Tile(props: {
  head: HeadName;
  name: string;
  picture: Thumbnail | undefined;
  reached: boolean;
  onFocus: () => void;
}): JSX.Element {
  const { head } = props;
  const label = labelOf(exam.value, head);
  const value = measured(exam.value, head);
  const sign = roleSign(label, head.kind);
  return (
    <a
      class="tile"
      href={linkTo("head", head.name)}
      title={tileWords(head)}
      tabIndex={props.reached ? 0 : -1}
      onFocus={props.onFocus}
      data-head={head.name}
      data-at=""
      style={{ "--tile": tileColour(head) }}
    >
      <span class="visually-hidden">{tileWords(head)}</span>
      {props.picture !== undefined ? <ThumbnailImage picture={props.picture} /> : <Plain head={head} label={label} />}
      <span class="tile-line" aria-hidden="true">
        <b>{props.name}</b>
        {value !== null && <span>{digits(value)}</span>}
      </span>
      {sign !== "" && props.picture !== undefined && (
        <span class="tile-role" aria-hidden="true">
          <RoleDot label={label} />
          {sign}
        </span>
      )}
    </a>
  );
}

/** Instead of a picture, where no sentence was kept. */
function Plain({ head, label }: { head: HeadName; label: string }): JSX.Element {
  const share = shareOf(head);
  const shaded = colouring.value === "measure" && share !== null ? sequential(share) : null;
  return (
    <span
      class="tile-plain"
      aria-hidden="true"
      style={shaded === null ? { "--role": roleColour(label) } : { background: rgb(shaded), color: inkOn(shaded) }}
    >
      {roleSign(label, head.kind)}
    </span>
  );
}

/** "head 3.7, previous token, entropy 1.2" */
function tileWords(head: HeadName): string {
  const label = labelOf(exam.value, head);
  const value = measured(exam.value, head);
  return [
    `head ${shown(exam.value, head)}`,
    ...(label === "" ? [] : [roleName(label, head.kind)]),
    ...(value === null ? [] : [`${measure.value.split(".").at(-1)!.replaceAll("_", " ")} ${digits(value)}`]),
  ].join(", ");
}

function tileColour(head: HeadName): string {
  if (colouring.value === "role") {
    const label = labelOf(exam.value, head);
    return label === "none" ? "var(--line)" : roleColour(label);
  }
  const share = shareOf(head);
  return share === null ? "var(--none)" : rgb(sequential(share));
}

/** Where the value lies between the smallest (0) and the largest (1) of all heads. */
function shareOf(head: HeadName): number | null {
  const value = measured(exam.value, head);
  if (value === null || extent.value === null) return null;
  const [low, high] = extent.value;
  return high > low ? (value - low) / (high - low) : 0.5;
}
