/** What the bundler puts in place of elements in the source; see build.mjs. */
export { createElement as h, Fragment } from "preact";
