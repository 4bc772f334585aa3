/** The colour of a role, as a dot; a ring if the head has no role. */
import type { JSX } from "preact";
import { roleColour } from "../colour";
import "./role_dot.css";

export function RoleDot({ label }: { label: string }): JSX.Element {
  const colour = roleColour(label);
  return <i class="role-dot" style={{ borderColor: colour, background: label === "none" ? "transparent" : colour }} />;
}
